"""Restarts inside living processes: when a rank dies the others go on in theirs, and a booted spare takes its place.

python -m prism.recover.checkpoint.inplace --ranks 8 --spares 1 -- train.py

def train(place: Place) -> None: ...      # restores, trains, saves; called again after every failure
run_in_place(train)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.recover.checkpoint.inplace.member import Place, run_in_place

__all__ = ["Place", "run_in_place"]


def __getattr__(name: str) -> Any:
    """Load what members use on first use: the launcher needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'prism.recover.checkpoint.inplace' has no attribute {name!r}")
    return getattr(importlib.import_module("prism.recover.checkpoint.inplace.member"), name)
