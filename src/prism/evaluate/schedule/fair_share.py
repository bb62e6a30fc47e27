"""How many workers each checkpoint gets, and which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A checkpoint that has samples waiting."""

    checkpoint: str
    weight: float
    useful: int  # workers beyond this number would not pay for their start
    served_s: float = 0.0  # worker seconds it has had


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker that can be given to a checkpoint."""

    worker: str
    node: str
    holds: str | None = None  # the checkpoint on its device
    nearby: frozenset[str] = frozenset()  # checkpoints in its node's memory


def share_workers(demands: Sequence[Demand], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Give each worker a checkpoint: numbers by weight, places where the model is already."""
    held = {candidate.holds for candidate in candidates}
    # With fewer workers than checkpoints, those begun are brought to their end before others are loaded.
    demands = sorted(demands, key=lambda c: (c.checkpoint not in held, c.served_s / c.weight))[: len(candidates)]
    free = {candidate.worker: candidate for candidate in candidates}
    left = apportion(demands, len(candidates))
    given: dict[str, str] = {}
    for near in (_holds, _nearby):
        for worker, candidate in list(free.items()):
            checkpoint = near(candidate, left)
            if checkpoint is not None:
                given[worker] = checkpoint
                left[checkpoint] -= 1
                del free[worker]
    # Whole nodes to one checkpoint, so that few nodes have to load it.
    wanting = [checkpoint for checkpoint, number in left.items() for _ in range(number)]
    rest = sorted(free.values(), key=lambda candidate: candidate.node)
    given.update({candidate.worker: checkpoint for candidate, checkpoint in zip(rest, wanting, strict=False)})
    return given


def apportion(demands: Sequence[Demand], workers: int) -> dict[str, int]:
    """Divide workers by weight, one at least each; what a checkpoint cannot use goes to the others."""
    numbers = {demand.checkpoint: 0 for demand in demands}
    open_demands = list(demands)
    for _ in range(min(workers, sum(demand.useful for demand in demands))):
        # The next worker goes where a worker has to serve the most weight (d'Hondt's method).
        best = max(open_demands, key=lambda c: (numbers[c.checkpoint] == 0, c.weight / (numbers[c.checkpoint] + 1)))
        numbers[best.checkpoint] += 1
        if numbers[best.checkpoint] >= best.useful:
            open_demands.remove(best)
    return numbers


def _holds(candidate: Candidate, left: Mapping[str, int]) -> str | None:
    return candidate.holds if candidate.holds is not None and left.get(candidate.holds, 0) > 0 else None


def _nearby(candidate: Candidate, left: Mapping[str, int]) -> str | None:
    return max((c for c in sorted(candidate.nearby) if left.get(c, 0) > 0), key=lambda c: left[c], default=None)
