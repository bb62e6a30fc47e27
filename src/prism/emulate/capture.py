"""What live ranks recorded, read back and cut into iterations."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from prism.emulate.inside.memory_peak import Peak
from prism.errors import BadFileError, ScriptError


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
    tag: int = 0
    takes: tuple[int, ...] = ()  # of an all-to-all: bytes expected from each position; empty if unknown
    values: str = ""  # type of the elements, and the reduction where there is one
    pickled: bool = False  # an object, some members of which did not run: its size is not the program's

    @property
    def is_communication(self) -> bool:
        """Whether peers take part."""
        return self.what not in ("wait", "record", "hold", "step", "backward")

    @property
    def compared_bytes(self) -> int:
        """The size that ranks of one class share; -1 where it follows the data, as in an all-to-all."""
        return -1 if self.pickled or self.what in ("all_to_all", "barrier") else self.bytes


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
    cpu_s: float = 0.0
    private_bytes: int = 0
    unmet: tuple[
        CapturedEntry, ...
    ] = ()  # calls that other ranks were stopped before, so that they are in no iteration

    @property
    def num_steps(self) -> int:
        """Steps of its first optimizer."""
        return sum(entry.what == "step" for entry in self.entries)

    def main_thread(self) -> Capture:
        """Without what other threads of a CPU rank called: when that was is a race, and nothing waits for it."""
        if self.device != "cpu" or not any(entry.stream for entry in self.entries):
            return self
        return replace(self, entries=tuple(entry for entry in self.entries if not entry.stream))


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
        for name in ("entries", "unmet"):
            document[name] = tuple(
                CapturedEntry(**{**entry, "sizes": tuple(entry["sizes"]), "takes": tuple(entry.get("takes", ()))})
                for entry in document.get(name, ())
            )
        return Capture(**document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFileError(f"{path}: not a capture ({error}); run the emulation again") from None


Iterations = list[tuple[CapturedEntry, ...]]
_MOST_AFTER = 32  # calls after the last iteration of a program that has no optimizer


def cut_all(captures: Mapping[int, Capture]) -> dict[int, Iterations]:
    """The iterations of every rank, from the first on: by its optimizer, its backward passes, or its peers' steps."""
    captures = {rank: capture.main_thread() for rank, capture in captures.items()}
    first = next(iter(captures.values()))
    # One rank has nobody to call: FSDP makes no collective then, and its steps are what there is.
    alone = first.world_size == 1 and first.num_steps > 0
    if not alone and not any(entry.is_communication for capture in captures.values() for entry in capture.entries):
        raise _nothing_to_emulate(first)
    cut = {rank: _cut_by_steps(capture.entries) for rank, capture in captures.items()}
    if not any(cut.values()):
        cut = {rank: _cut_by_backward(capture.entries) for rank, capture in captures.items()}
    if not any(cut.values()):
        return {rank: _cut_by_period(capture) for rank, capture in captures.items()}
    known = _note_iterations(captures, cut)
    count = min(len(parts) for parts in cut.values() if parts)
    stepping = frozenset(rank for rank, parts in cut.items() if parts)
    return {rank: parts or _cut_by_others(captures[rank], known, count, stepping) for rank, parts in cut.items()}


def _nothing_to_emulate(capture: Capture) -> ScriptError:
    if capture.groups:
        return ScriptError(
            f"rank {capture.rank} joined a process group and never called a collective: every rank works alone, and "
            "would do so under torchrun (the Hugging Face Trainer on a CPU needs use_cpu=True to join its ranks)"
        )
    return ScriptError(
        f"rank {capture.rank} never called a collective; there is nothing to emulate (does the script use "
        "torch.distributed?)"
    )


def _cut_by_steps(entries: Sequence[CapturedEntry]) -> Iterations:
    ends = [i + 1 for i, entry in enumerate(entries) if entry.what == "step"]
    return [tuple(entries[start:end]) for start, end in pairwise([0, *ends])]


def _cut_by_backward(entries: Sequence[CapturedEntry]) -> Iterations:
    """Without an optimizer: an iteration begins at a backward pass that follows communication."""
    starts, communicated = [], True
    for i, entry in enumerate(entries):
        if entry.what == "backward" and communicated:
            starts.append(i)
            communicated = False
        communicated = communicated or entry.is_communication
    # What precedes the first backward pass is start-up; what follows the last may be cut short.
    return [tuple(entries[start:end]) for start, end in pairwise(starts)]


_Meeting = tuple[object, ...]


def _meetings(capture: Capture) -> Iterator[tuple[int, _Meeting]]:
    """Which call of which group or channel each entry is, as the other side would name it too."""
    places = {group.name: group.ranks or range(capture.world_size) for group in capture.groups}
    count: Counter[_Meeting] = Counter()
    for i, entry in enumerate(capture.entries):
        if not entry.is_communication:
            continue
        key: _Meeting = (entry.group,)
        if entry.what in ("send", "recv"):
            other = places[entry.group][entry.peer]
            ends = (capture.rank, other) if entry.what == "send" else (other, capture.rank)
            key = (entry.group, *ends, entry.tag)
        count[key] += 1
        yield i, (*key, count[key])


def _note_iterations(captures: Mapping[int, Capture], cut: Mapping[int, Iterations]) -> dict[_Meeting, int]:
    """In which iteration of a rank that has steps each call takes place."""
    known: dict[_Meeting, int] = {}
    for rank, parts in cut.items():
        ends = list(accumulate(len(part) for part in parts))
        if ends:
            for i, meeting in _meetings(captures[rank]):
                known.setdefault(meeting, bisect_right(ends, i))
    return known


def _cut_by_others(capture: Capture, known: Mapping[_Meeting, int], count: int, stepping: frozenset[int]) -> Iterations:
    """A rank without an optimizer: an evaluator, or a server of parameters. Its calls are in its peers' iterations."""
    parts: dict[int, list[CapturedEntry]] = {}
    at, begun = 0, 0
    for i, meeting in _meetings(capture):
        # A message that is not in its peer's log was sent after that peer was stopped.
        late = meeting not in known and not stepping.isdisjoint(set(meeting[1:3]) - {capture.rank})
        is_message = capture.entries[i].what in ("send", "recv")
        at = max(at, count if late and is_message else known.get(meeting, at))
        parts.setdefault(at, []).extend(capture.entries[begun : i + 1])
        begun = i + 1
    parts.setdefault(at, []).extend(capture.entries[begun:])
    return [tuple(parts.get(number, ())) for number in range(max(count, max(parts) + 1))]


def _cut_by_period(capture: Capture) -> Iterations:
    """Without optimizer and backward pass: the shortest sequence of calls that the log repeats, thrice or more.

    A few calls may follow it, such as a last barrier. Where sizes follow the data, they are not compared.
    """
    entries = capture.entries
    exact = [(e.what, e.group, e.bytes, e.peer, e.source) for e in entries]
    for signs in (exact, [(what, group, 0, peer, source) for what, group, _, peer, source in exact]):
        found = (_find_period(signs[: len(signs) - after]) for after in range(min(_MOST_AFTER, len(signs))))
        first, period, count = next((repeats for repeats in found if repeats[1]), (0, 0, 0))
        if period:
            return [entries[first + i * period : first + (i + 1) * period] for i in range(1, count)]
    raise ScriptError(
        f"rank {capture.rank} made {capture.entries[-1].op + 1} calls with neither an optimizer step nor a pattern; "
        "Prism cannot tell its iterations apart"
    )


def _find_period(signs: Sequence[object]) -> tuple[int, int, int]:
    """Where the repetition at the end begins, how long its shortest period is and how often it is there; 0 for none."""
    for period in range(1, len(signs) // 3 + 1):
        last = signs[-period:]
        if signs[-1] == signs[-1 - period] and signs[-2 * period : -period] == last == signs[-3 * period : -2 * period]:
            count = 3
            while len(signs) >= (count + 1) * period and signs[-(count + 1) * period : -count * period] == last:
                count += 1
            return len(signs) - count * period, period, count
    return 0, 0, 0
