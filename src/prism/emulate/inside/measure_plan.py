"""What `prism calibrate` times, and what it finds. Without torch: the command reads it before a rank starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "barrier")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One collective to time, over groups of this many ranks."""

    kind: str
    num_ranks: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """What to time and how long to try."""

    backend: str
    wanted: tuple[Wanted, ...]
    repetitions: int = 25
    budget_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """One measured collective, as CALIBRATION has it."""

    backend: str
    kind: str
    num_ranks: int
    num_hosts: int
    bytes: int
    duration_ns: int


def read_plan(path: Path) -> MeasurePlan:
    """The plan that the launcher wrote."""
    document = json.loads(path.read_text())
    document["wanted"] = tuple(Wanted(**wanted) for wanted in document["wanted"])
    return MeasurePlan(**document)
