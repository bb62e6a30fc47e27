"""How many workers each checkpoint gets, and which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PACE_STEP = 0.1  # nodes whose logarithms differ by less are taken to be as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A checkpoint that has samples waiting."""

    checkpoint: str
    weight: float
    useful: int  # workers beyond this number would not pay for their start
    served_s: float = 0.0  # worker seconds it has had


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker that can be given to a checkpoint."""

    worker: str
    node: str
    holds: str | None = None  # the checkpoint on its device
    nearby: frozenset[str] = frozenset()  # checkpoints in its node's memory
    pace: float = 1.0  # how many times longer than elsewhere trials take on its node


def share_workers(claims: Sequence[Claim], seats: Sequence[Seat]) -> dict[str, str]:
    """Give each worker a checkpoint: numbers by weight, places where the model is already."""
    held = {seat.holds for seat in seats}
    # With fewer workers than checkpoints, those begun are brought to their end before others are loaded.
    claims = sorted(claims, key=lambda c: (c.checkpoint not in held, c.served_s / c.weight))[: len(seats)]
    free = {seat.worker: seat for seat in seats}
    left = apportion(claims, len(seats))
    given: dict[str, str] = {}
    for near in (_holds, _nearby):
        for worker, seat in list(free.items()):
            checkpoint = near(seat, left)
            if checkpoint is not None:
                given[worker] = checkpoint
                left[checkpoint] -= 1
                del free[worker]
    # Fast nodes first, and whole nodes to one checkpoint, so that few nodes have to load it.
    wanting = [checkpoint for checkpoint, number in left.items() for _ in range(number)]
    rest = sorted(free.values(), key=lambda seat: (round(math.log(seat.pace) / _PACE_STEP), seat.node))
    given.update({seat.worker: checkpoint for seat, checkpoint in zip(rest, wanting, strict=False)})
    return given


def apportion(claims: Sequence[Claim], workers: int) -> dict[str, int]:
    """Divide workers by weight, one at least each; what a checkpoint cannot use goes to the others."""
    numbers = {claim.checkpoint: 0 for claim in claims}
    open_claims = list(claims)
    for _ in range(min(workers, sum(claim.useful for claim in claims))):
        # The next worker goes where a worker has to serve the most weight (d'Hondt's method).
        best = max(open_claims, key=lambda c: (numbers[c.checkpoint] == 0, c.weight / (numbers[c.checkpoint] + 1)))
        numbers[best.checkpoint] += 1
        if numbers[best.checkpoint] >= best.useful:
            open_claims.remove(best)
    return numbers


def _holds(seat: Seat, left: Mapping[str, int]) -> str | None:
    return seat.holds if seat.holds is not None and left.get(seat.holds, 0) > 0 else None


def _nearby(seat: Seat, left: Mapping[str, int]) -> str | None:
    return max((c for c in sorted(seat.nearby) if left.get(c, 0) > 0), key=lambda c: left[c], default=None)
