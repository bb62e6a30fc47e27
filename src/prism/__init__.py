"""Prism: observe, emulate, diagnose and recover large-model training.

The names below load on first use, so that `import prism` stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

from prism.kernel_cache import choose_cache_folder
from prism.version import __version__

choose_cache_folder()

_NAMES = {
    "prism.records": (
        "FINDINGS FLOWS JOBS LOG OPS SPANS TOPOLOGY Culprit Finding Layout Verdict read_table "
        "write_chrome_trace write_perfetto write_table"
    ),
    "prism.collect.tables": "read_flows scan_flows write_flows",
    "prism.observe": "Diagnosis build_timeline diagnose",
    "prism.lab.scenarios": "load_scenario make_scenario random_scenario",
    "prism.simulate": "Graph GraphBuilder solve verify",
    "prism.errors": "InputError PrismError",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
