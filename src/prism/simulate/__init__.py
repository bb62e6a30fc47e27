"""One execution graph, what its communication costs, and when every op of every rank runs.

The names below load on first use, so that importing the package stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "graph": ("Graph", "label_groups", "load_graph", "make_graph", "repeat_graph", "save_graph"),
    "builder": ("GraphBuilder", "ProgramBuilder"),
    "verification": ("verify",),
    "pricing": ("CostModel", "LinearCosts"),
    "slowdowns": ("FOREVER", "Jitter", "Slowdown"),
    "solver": ("BandwidthChange", "Solution", "SolveConfig", "sample_steps", "solve"),
    "contention": ("solve_shared",),
    "online": ("OnlineSolver",),
    "spans": ("write_spans",),
    "critical_path": ("find_critical_path", "share_path"),
    "usage": ("USAGE", "measure_usage", "sum_usage"),
    "what_if": ("Plan",),
    "what_if_words": ("apply_change",),
    "comparison": ("Comparison", "compare_plans"),
    "chakra": ("export_chakra",),
    "cluster": ("Cluster",),
    "cluster_file": ("load_cluster",),
    "calibration": ("Calibration", "read_calibration"),
    "costs": ("ClusterCosts", "Estimate", "estimate"),
    "messages": ("find_messages",),
    "flows": ("make_flows",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.simulate' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prism.simulate.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
