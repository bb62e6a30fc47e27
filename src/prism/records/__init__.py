"""The shapes that cross packages, and how they are read and written.

The names below load on first use: programs that only read their settings from here start without Polars.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.records.calls import CALLS
    from prism.records.chrome import write_chrome_trace
    from prism.records.findings import FINDINGS, Culprit, Finding, findings_from_frame, findings_to_frame
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

_NAMES = {
    "calls": "CALLS",
    "chrome": "write_chrome_trace",
    "findings": "FINDINGS Culprit Finding findings_from_frame findings_to_frame",
    "flows": "FLOWS",
    "jobs": "JOB_STATES JOBS",
    "layout": "Degree Group Layout",
    "log": "LOG",
    "ops": "COLLECTIVES GROUPS OP_KINDS OPS POINT_TO_POINT RANKS",
    "perfetto": "ARROWS write_perfetto",
    "shape": "Shape",
    "spans": "PAIR_KINDS SPAN_KINDS SPANS",
    "tables": "read_table write_table",
    "topology": "TOPOLOGY",
    "verdict": "CATEGORY_OF_REASON EvidenceLine Verdict",
}
_HOME = {name: f"prism.records.{module}" for module, names in _NAMES.items() for name in names.split()}

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
    "Group",
    "Layout",
    "Shape",
    "Verdict",
    "findings_from_frame",
    "findings_to_frame",
    "read_table",
    "write_chrome_trace",
    "write_perfetto",
    "write_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.records' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
