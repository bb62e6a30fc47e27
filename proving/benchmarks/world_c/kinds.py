"""The kinds of captures, by name; each takes a random generator and varies with it."""

from __future__ import annotations

from collections.abc import Callable

from . import churn, coarse, faults, fine
from .capture import Capture
from .sites import Rng

KINDS: dict[str, Callable[[Rng], Capture]] = {
    name: function
    for module in (fine, faults, churn, coarse)
    for name, function in vars(module).items()
    if name.startswith(("fine_", "churn_", "coarse_"))
}
