"""Policies: where a job may run, and who goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How jobs and clusters are matched."""

    name: str
    reach: Literal["home", "pool", "chosen", "any", "rounds", "lend"]
    backfill: bool = True  # later jobs may pass one that does not fit, if they end before it could start
    short_first_s: float = 0.0  # by how much at most a job is put back for the time that it is expected to run
    patience_s: float = 0.0  # how long the first job may be passed by any job that fits before GPUs are kept for it
    fair: bool = False  # who has used least, for the weight of its cluster, goes first
    moves: bool = False  # running guests that may be moved make room for owners, where that pays
    round_s: float = 300.0  # how long a job waits before more clusters are asked
    round_size: int = 3  # clusters asked per round
    half_life_s: float = 7 * 86_400.0  # after which past use counts half; Slurm's default for fair share

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
