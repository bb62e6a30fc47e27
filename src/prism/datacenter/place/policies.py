"""Policies: where a job may run, and which job starts first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How jobs and clusters are matched."""

    name: str
    reach: Literal["home", "pool", "chosen", "any", "rounds", "lend"]
    backfill: bool = True  # later jobs may pass one that does not fit, if they end before it could start
    short_first_s: float = 0.0  # largest delay of a job for its expected run time, so that short jobs start first
    patience_s: float = 0.0  # how long other jobs may start before the first one; then GPUs are reserved for it
    fair: bool = False  # the user with the least use, relative to the weight of its cluster, is first
    moves: bool = False  # preemptible guests are moved for owners if that saves GPU time
    round_s: float = 300.0  # how long a job waits before more clusters are asked
    round_size: int = 3  # clusters asked per round
    half_life_s: float = 7 * 86_400.0  # after which past use has half the weight; Slurm's default for fair share

    @property
    def shares(self) -> bool:
        """Whether jobs may start on clusters of others."""
        return self.reach in ("any", "rounds", "lend")


POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        Policy(name="static", reach="home", backfill=False),
        Policy(name="static-easy", reach="home"),
        Policy(name="pooled", reach="pool"),
        Policy(name="shortest-queue", reach="chosen"),
        Policy(name="multikueue-all", reach="any"),
        Policy(name="multikueue-incremental", reach="rounds"),
        Policy(name="fair-share", reach="any", fair=True),
        Policy(name="prism", reach="lend", short_first_s=1_800.0, patience_s=3_600.0, moves=True),
    )
}

DEFAULT = "fair-share"
"""What dispatches: no other has a lower mean wait or a better worst owner on Philly's quarters (docs/place.md)."""
