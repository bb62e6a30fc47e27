"""Where flows come from: tables, export protocols, packets, folders; each bounded in memory and counting what it loses.

The names below load on first use: a reader of tables starts without the decoders of packets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.collect.assembler import BurstConfig
    from prism.collect.collector import Collector
    from prism.collect.counts import SourceCounts
    from prism.collect.flow_inputs import load_inputs
    from prism.collect.packet_files import PacketsRead, read_packets
    from prism.collect.source import Source, SourceConfig, open_source

_NAMES = {
    "assembler": "BurstConfig",
    "collector": "Collector",
    "counts": "SourceCounts",
    "flow_inputs": "load_inputs",
    "packet_files": "PacketsRead read_packets",
    "source": "Source SourceConfig open_source",
}
_HOME = {name: f"prism.collect.{module}" for module, names in _NAMES.items() for name in names.split()}

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.collect' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
