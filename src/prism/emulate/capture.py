"""What live ranks recorded, read back and cut into iterations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.emulate.inside.memory_peak import Peak
from prism.errors import BadFileError, GraphError, PrismError


@dataclass(frozen=True, slots=True)
class CapturedGroup:
    """A process group as the program made it; the whole world where `ranks` is empty."""

    name: str
    label: str
    source: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CapturedEntry:
    """One thing a rank did, and the work on its stream since the one before."""

    what: str
    stream: int
    op: int
    group: str
    bytes: int
    sizes: tuple[int, ...]
    peer: int
    lane: int
    batch: int
    source: str
    gap_ns: int
    wall_ns: int = 0

    @property
    def is_communication(self) -> bool:
        """Whether peers take part."""
        return self.what not in ("wait", "record", "hold", "step")


@dataclass(frozen=True, slots=True)
class Capture:
    """The log of one live rank."""

    rank: int
    world_size: int
    status: str
    reason: str
    wall_s: float
    device: str
    device_bytes: int
    torch: str
    threads: int
    memory: Peak
    groups: tuple[CapturedGroup, ...]
    step_walls_ns: tuple[int, ...]
    diverged: int
    entries: tuple[CapturedEntry, ...]


def read_capture(path: Path) -> Capture:
    """Read the log that a live rank left."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        if document.pop("schema") != "prism.capture/1":
            raise ValueError("another version")
        document["memory"] = Peak(**document["memory"])
        document["groups"] = tuple(
            CapturedGroup(**{**group, "ranks": tuple(group["ranks"])}) for group in document["groups"]
        )
        document["step_walls_ns"] = tuple(document["step_walls_ns"])
        document["entries"] = tuple(
            CapturedEntry(**{**entry, "sizes": tuple(entry["sizes"])}) for entry in document["entries"]
        )
        return Capture(**document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFileError(f"{path}: not a capture ({error}); run the emulation again") from None


def cut_iterations(capture: Capture, warmup: int) -> list[tuple[CapturedEntry, ...]]:
    """The entries of each measured iteration; warm-up and what follows the last step are left out."""
    ends = [i for i, entry in enumerate(capture.entries) if entry.what == "step"]
    if not any(entry.is_communication for entry in capture.entries):
        raise PrismError(
            f"rank {capture.rank} never called a collective; there is nothing to emulate (does the script use "
            "torch.distributed?)"
        )
    if not ends:
        return _cut_by_period(capture)
    starts = [0, *(end + 1 for end in ends)]
    parts = [capture.entries[start : end + 1] for start, end in zip(starts, ends, strict=False)]
    # The first part holds start-up too; it only counts where there is nothing else.
    return parts[min(warmup, len(parts) - 1) :]


def _cut_by_period(capture: Capture) -> list[tuple[CapturedEntry, ...]]:
    """Without an optimizer step: the shortest sequence of calls that the log repeats at its end, thrice or more."""
    entries = capture.entries
    signs = [(e.what, e.group, e.bytes, e.peer) for e in entries]
    for period in range(1, len(signs) // 3 + 1):
        tail = signs[-3 * period :]
        if tail[:period] == tail[period : 2 * period] == tail[2 * period :]:
            count = 3
            while len(signs) >= (count + 1) * period and signs[-(count + 1) * period :][:period] == tail[:period]:
                count += 1
            first = len(signs) - count * period
            return [entries[first + i * period : first + (i + 1) * period] for i in range(1, count)]
    raise PrismError(
        f"rank {capture.rank} made {capture.entries[-1].op + 1} calls with neither an optimizer step nor a pattern; "
        "Prism cannot tell its iterations apart"
    )


def check_iterations(capture: Capture, iterations: Sequence[tuple[CapturedEntry, ...]]) -> None:
    """Every iteration must make the same calls: else their times cannot be put together."""
    first = [e for e in iterations[0] if e.is_communication]
    for number, iteration in enumerate(iterations[1:], 1):
        calls = [e for e in iteration if e.is_communication]
        for one, two in zip(first, calls, strict=False):
            if (one.what, one.group, one.peer) != (two.what, two.group, two.peer):
                raise GraphError(
                    f"rank {capture.rank} changes its calls between iterations: {one.what} ({one.source}) in one, "
                    f"{two.what} ({two.source}) in the one {number} later; emulate a stretch in which they repeat"
                )
        if len(first) != len(calls):
            odd = (first if len(first) > len(calls) else calls)[min(len(first), len(calls))]
            raise GraphError(
                f"rank {capture.rank} makes {len(first)} calls in one iteration and {len(calls)} in the one {number} "
                f"later; the first that is not in both is {odd.what} ({odd.source})"
            )
