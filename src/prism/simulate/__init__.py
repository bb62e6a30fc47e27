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
    "solving.pricing": ("CostModel", "LinearCosts"),
    "solving.slowdowns": ("FOREVER", "Jitter", "Slowdown"),
    "solving.solver": ("BandwidthChange", "Solution", "SolveConfig", "sample_steps", "solve"),
    "solving.contention": ("solve_shared",),
    "solving.online": ("OnlineSolver",),
    "spans": ("write_spans",),
    "solving.critical_path": ("find_critical_path", "share_path"),
    "solving.usage": ("USAGE", "measure_usage", "sum_usage"),
    "what_if.changes": ("Plan",),
    "what_if.words": ("apply_change",),
    "what_if.comparison": ("Comparison", "compare_plans"),
    "chakra": ("export_chakra",),
    "chakra_reading": ("read_chakra",),
    "cluster": ("Cluster",),
    "cluster_file": ("load_cluster",),
    "calibration": ("Calibration", "read_calibration"),
    "costs": ("ClusterCosts", "Estimate", "estimate"),
    "assessment": ("Assessment", "assess_communication"),
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
