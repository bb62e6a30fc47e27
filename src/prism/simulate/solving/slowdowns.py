"""What disturbs a run: ranks and links that are slower for a while, and durations that vary by chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from prism.errors import BadConfigError

FOREVER = 2**62
"""The end of a window that never closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A rank's compute, a group's transfers, or a host's network at `speed` times normal within a time window."""

    target: Literal["rank", "group", "host"]
    id: int
    speed: float  # 1 is normal, 0 stands still until the window ends
    start_ns: int = 0
    end_ns: int = FOREVER

    def __post_init__(self) -> None:
        where = f"{self.target} {self.id}"
        if not (np.isfinite(self.speed) and self.speed >= 0):
            raise BadConfigError(f"{where}: speed is {self.speed}, expected a number from 0 up")
        if self.end_ns <= self.start_ns:
            raise BadConfigError(f"{where}: the window ends at {self.end_ns} ns, before it starts; swap the times")
        if self.speed == 0 and self.end_ns >= FOREVER:
            raise BadConfigError(f"{where}: speed 0 without an end never finishes; give the window an end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Every duration is multiplied by a lognormal factor of mean 1, drawn for each op and seed."""

    compute_sigma: float = 0.0  # of compute and host ops, standard deviation of the logarithm
    communication_sigma: float = 0.0  # of transfers; all members of a collective see the same factor
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("compute_sigma", "communication_sigma"):
            if not 0 <= getattr(self, name) <= 3:
                raise BadConfigError(f"jitter: {name} is {getattr(self, name)}, expected 0 to 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Disjoint windows in time order for each of several profiles; profile 0 has none."""

    start: npt.NDArray[np.int64]  # profile p owns rows start[p] to start[p + 1]
    rows: npt.NDArray[np.float64]  # begin, end, speed


def merge_windows(slowdowns: Iterable[Slowdown]) -> list[tuple[int, int, float]]:
    """Overlapping windows as disjoint ones; where several hold, their speeds multiply."""
    items = list(slowdowns)
    edges = sorted({edge for s in items for edge in (s.start_ns, s.end_ns)})
    out = []
    for begin, end in pairwise(edges):
        speed = float(np.prod([s.speed for s in items if s.start_ns <= begin and s.end_ns >= end]))
        if speed != 1.0:
            out.append((begin, end, speed))
    return out


def pack_windows(profiles: Sequence[Sequence[Slowdown]]) -> Windows:
    """Profiles of slowdowns as arrays; the first profile is the undisturbed one."""
    merged = [merge_windows(profile) for profile in profiles]
    flat = [window for profile in merged for window in profile]
    return Windows(
        start=np.cumsum([0, *(len(profile) for profile in merged)]).astype(np.int64),
        rows=np.array(flat, np.float64).reshape(-1, 3),
    )
