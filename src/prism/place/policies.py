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
    short_first: float = 0.0  # seconds of waiting that one second of expected run time is worth in the order
    round_s: float = 300.0  # how long a job waits before more clusters are asked
    round_size: int = 3  # clusters asked per round


POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        Policy(name="static", reach="home", backfill=False),
        Policy(name="static-easy", reach="home"),
        Policy(name="pooled", reach="pool"),
        Policy(name="shortest-queue", reach="chosen"),
        Policy(name="multikueue-all", reach="any"),
        Policy(name="multikueue-incremental", reach="rounds"),
        Policy(name="prism", reach="lend", short_first=1.0),
    )
}
