"""Where flows come from: export protocols, packets, folders; each bounded in memory and counting what it loses."""

from prism.observe.sources.assembler import BurstConfig
from prism.observe.sources.collector import Collector
from prism.observe.sources.counts import SourceCounts
from prism.observe.sources.packet_files import PacketsRead, read_packets
from prism.observe.sources.source import Source, SourceConfig, open_source

__all__ = [
    "BurstConfig",
    "Collector",
    "PacketsRead",
    "Source",
    "SourceConfig",
    "SourceCounts",
    "open_source",
    "read_packets",
]
