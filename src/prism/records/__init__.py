"""The shapes that cross packages, and how they are read and written."""

from prism.records.calls import CALLS
from prism.records.chrome import write_chrome_trace
from prism.records.findings import FINDINGS, Culprit, Finding, findings_from_frame, findings_to_frame
from prism.records.flow_files import (
    FlowOptions,
    FlowsRead,
    ReadReport,
    load_flows,
    read_flows,
    scan_flows,
    write_flows,
)
from prism.records.flows import FLOWS
from prism.records.jobs import JOB_STATES, JOBS
from prism.records.layout import Degree, Group, Layout
from prism.records.log import LOG
from prism.records.ops import COLLECTIVES, GROUPS, OP_KINDS, OPS, POINT_TO_POINT, RANKS
from prism.records.perfetto import ARROWS, write_perfetto
from prism.records.shape import Shape
from prism.records.spans import PAIR_KINDS, SPAN_KINDS, SPANS
from prism.records.tables import read_table, write_table
from prism.records.topology import TOPOLOGY
from prism.records.verdict import CATEGORY_OF_REASON, EvidenceLine, Verdict

__all__ = [
    "ARROWS",
    "CALLS",
    "CATEGORY_OF_REASON",
    "COLLECTIVES",
    "FINDINGS",
    "FLOWS",
    "GROUPS",
    "JOBS",
    "JOB_STATES",
    "LOG",
    "OPS",
    "OP_KINDS",
    "PAIR_KINDS",
    "POINT_TO_POINT",
    "RANKS",
    "SPANS",
    "SPAN_KINDS",
    "TOPOLOGY",
    "Culprit",
    "Degree",
    "EvidenceLine",
    "Finding",
    "FlowOptions",
    "FlowsRead",
    "Group",
    "Layout",
    "ReadReport",
    "Shape",
    "Verdict",
    "findings_from_frame",
    "findings_to_frame",
    "load_flows",
    "read_flows",
    "read_table",
    "scan_flows",
    "write_chrome_trace",
    "write_flows",
    "write_perfetto",
    "write_table",
]
