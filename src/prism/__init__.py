"""Prism: observe, emulate, diagnose and recover large-model training.

The names below load on first use, so that `import prism` stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

from prism.version import __version__

_HOME = {
    **dict.fromkeys(
        ("FLOWS", "TOPOLOGY", "SPANS", "OPS", "FINDINGS", "JOBS", "LOG", "Layout", "Finding", "Culprit", "Verdict",
         "read_flows", "scan_flows", "write_flows", "read_table", "write_table", "write_perfetto", "write_chrome_trace"),
        "prism.records"),
    **dict.fromkeys(("PrismError", "InputError"), "prism.errors"),
}  # fmt: skip

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
