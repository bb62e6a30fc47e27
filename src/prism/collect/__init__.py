"""Where flows come from: export protocols, packets, folders; each bounded in memory and counting what it loses."""

from prism.collect.assembler import BurstConfig
from prism.collect.collector import Collector
from prism.collect.counts import SourceCounts
from prism.collect.flow_inputs import load_inputs
from prism.collect.packet_files import PacketsRead, read_packets
from prism.collect.source import Source, SourceConfig, open_source

__all__ = [
    "BurstConfig",
    "Collector",
    "PacketsRead",
    "Source",
    "SourceConfig",
    "SourceCounts",
    "load_inputs",
    "open_source",
    "read_packets",
]
