"""Whether a silent job stands still, and which rank holds it up: two looks at the stacks of its ranks, seconds apart.

Spinning is no progress: a rank in an endless loop computes as much as one that trains. A change of stacks counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from prism.evidence.traces.standing import Standing, read_stack
from prism.recover.supervise.launchers.node import find_ranks, read_processor_ticks
from prism.recover.supervise.stacks import Stack, read_stacks_of

_APART_S = 3.0
_WAITS_IN = ("recover/checkpoint/ranks.py",)  # a wait for other ranks that shows no frame of torch
_BACKWARD = "_engine_run_backward"  # a collective of DDP waits in here, in C++; so does computing
_IDLE_TICKS = 30  # of processor time between two looks, 0.1 s each: a rank that computes uses ten times as much


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """One rank at one moment."""

    standing: Standing
    frames: tuple[str, ...]  # functions and files of its main thread, without lines: a loop changes its line
    ticks: int  # processor time used so far
    in_backward: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """What two looks at a silent job show."""

    moved: bool  # some stack changed: it is at work
    outside: tuple[int, ...] = ()  # ranks that stand outside of what all others wait in
    text: str = ""

    @property
    def proven(self) -> bool:
        """Whether it is certain that the job cannot go on, and because of whom."""
        return not self.moved and bool(self.outside)


def look_twice(pids: Callable[[], list[int]], sleep: Callable[[float], None] = time.sleep) -> Standstill:
    """Look at the ranks on this machine, wait, look again."""
    ranks = find_ranks(pids())
    first = _glance(ranks)
    sleep(_APART_S)
    return judge_looks(first, _glance(ranks))


def judge_looks(first: dict[int, Glance], second: dict[int, Glance]) -> Standstill:
    """Compare two looks, by process."""
    both = [pid for pid in first if pid in second]
    readable = [pid for pid in both if first[pid].frames or second[pid].standing.where == "stopped"]
    if not readable or len(readable) < len(first):
        return Standstill(moved=True, text="its stacks cannot be read")
    if any(first[pid].frames != second[pid].frames for pid in both):
        return Standstill(moved=True)
    now = [_settle(second[pid], second[pid].ticks - first[pid].ticks) for pid in both]
    waiting = [one for one in now if one.where in ("collective", "message")]
    outside = sorted((one for one in now if one.where in ("elsewhere", "stopped")), key=lambda one: one.rank)
    if waiting and outside and len(waiting) + len(outside) == len(now):
        told = ", ".join(f"rank {one.rank} {_tell(one)}" for one in outside[:4])
        text = f"{told}, outside of what the other ranks wait in ({len(waiting)}), in two looks"
        return Standstill(moved=False, outside=tuple(one.rank for one in outside), text=text)
    places = sorted({_tell(one) for one in now})
    return Standstill(moved=False, text=f"{_count(len(now), 'rank')} {'; '.join(places[:3])}, unchanged in two looks")


def _settle(glance: Glance, used_ticks: int) -> Standing:
    """A rank in the backward pass that uses no processor waits for the others."""
    if glance.in_backward and glance.standing.where == "elsewhere" and used_ticks < _IDLE_TICKS:
        return replace(glance.standing, where="collective")
    return glance.standing


def _tell(one: Standing) -> str:
    if one.where == "stopped":
        return "is stopped by a signal"
    place = "/".join(Path(one.line).parts[-2:]) if one.line else "an unknown line"
    return f"{'waits' if one.where in ('collective', 'message') else 'stands'} at {place}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _glance(ranks: list[int]) -> dict[int, Glance]:
    found = {}
    for order, stack in enumerate(read_stacks_of(ranks)):
        standing = read_stack(
            stack.text, rank=order if stack.rank is None else stack.rank, pid=stack.pid, state=stack.state
        )
        frames = _main_frames(stack)
        if any(place in frame for frame in frames for place in _WAITS_IN):
            standing = replace(standing, where="stopped" if standing.where == "stopped" else "collective")
        found[stack.pid] = Glance(
            standing=standing,
            frames=frames,
            ticks=read_processor_ticks(stack.pid),
            in_backward=any(_BACKWARD in frame for frame in frames),
        )
    return found


def _main_frames(stack: Stack) -> tuple[str, ...]:
    _, found, rest = stack.text.partition('"MainThread"')
    lines = rest.partition("\nThread ")[0].splitlines()[1:] if found else []
    return tuple(line.strip().rpartition(":")[0] for line in lines if line.startswith("    "))
