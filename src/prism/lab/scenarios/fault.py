"""The faults of a scenario: kind, place and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prism.errors import BadConfigError
from prism.records.settings import Checked, number, one_of

FaultKind = Literal[
    "slow_gpu", "slow_host", "thermal", "slow_link", "flapping_link", "slow_switch", "ecmp_collision", "contention",
    "load_imbalance", "stage_imbalance", "hang", "node_loss", "gc_pauses", "checkpoint_stall",
]  # fmt: skip

NEEDS: dict[str, tuple[str, ...]] = {
    "slow_gpu": ("job", "rank"),
    "slow_host": ("host",),
    "thermal": ("host",),
    "slow_link": ("host", "nic"),
    "flapping_link": ("host", "nic"),
    "slow_switch": ("switch",),
    "ecmp_collision": ("job",),
    "contention": ("job", "other"),
    "load_imbalance": ("job",),
    "stage_imbalance": ("job", "stage"),
    "hang": ("job", "rank"),
    "node_loss": ("host",),
    "gc_pauses": ("job",),
    "checkpoint_stall": ("job",),
}
"""The parameters that each kind needs in addition to its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Checked):
    """One planted fault; its parameters other than the window depend on the kind."""

    kind: FaultKind = field(default="slow_gpu", metadata=one_of(FaultKind))
    start_s: float = number(0.0, 0, 1e7)
    end_s: float | None = number(None, 0, 1e7)  # the end of the scenario where not given
    speed: float = number(0.5, 0.001, 1)  # of what is slow, as a share of normal
    job: str | None = None
    other: str | None = None  # contention: the other job
    rank: int | None = number(None, 0, 10_000_000)
    host: int | None = number(None, 0, 1_000_000)
    nic: int | None = number(None, 0, 63)
    switch: str | None = None
    stage: int | None = number(None, 0, 1023)
    period_s: float = number(2.0, 0.001, 1e6)  # flapping and pauses: time from one to the next
    pause_ms: float = number(300.0, 0.001, 1e7)  # garbage collection: length of each pause
    spread: float = number(0.6, 0.01, 5)  # load imbalance: standard deviation of a replica's work
    down_s: float = number(10.0, 0, 1e6)  # node loss: until the job is back

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        missing = next((name for name in NEEDS[self.kind] if getattr(self, name) is None), None)
        if missing is not None:
            raise BadConfigError(f"a {self.kind} fault needs '{missing}'")
        if self.end_s is not None and self.end_s <= self.start_s:
            raise BadConfigError(f"'end_s' is {self.end_s:g}, not after 'start_s' = {self.start_s:g}")
