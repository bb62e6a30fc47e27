"""Whether a silent job stands still, and which rank holds it up: two looks at the stacks of its ranks, seconds apart.

Spinning is no progress: a rank in an endless loop computes as much as one that trains. A change of stacks counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from prism.evidence.traces.consensus import find_apart
from prism.evidence.traces.stacks import RankStack, describe_place, parse_threads
from prism.recover.supervise.launchers.node import find_ranks, read_processor_ticks
from prism.recover.supervise.stacks import read_stacks_of

_APART_S = 3.0
_AGREEMENT = "recover/checkpoint/ranks.py"  # a checkpointer's wait for other ranks, which shows no frame of torch
_BACKWARD = "torch/autograd/graph.py:_engine_run_backward"  # DDP's collectives wait in here, in C++; so does computing
_IDLE_TICKS = 30  # of processor time between two looks: a rank that computes uses ten times as much
_TOLD = 0.6  # the least confidence with which a rank is named that is not proven to hold up the others

Role = Literal["waits", "outside", "unclear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """One rank at one moment."""

    stack: RankStack
    ticks: int  # processor time used so far


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
    now = {pid: second[pid].stack for pid in first if pid in second}
    if not now or len(now) < len(first) or any(not one.functions and not one.is_stopped for one in now.values()):
        return Standstill(moved=True, text="its stacks cannot be read")
    if any(first[pid].stack.functions != one.functions for pid, one in now.items()):
        return Standstill(moved=True)
    roles = {pid: _find_role(one, second[pid].ticks - first[pid].ticks) for pid, one in now.items()}
    outside = sorted((one for pid, one in now.items() if roles[pid] == "outside"), key=lambda one: one.rank)
    waiting = [one for pid, one in now.items() if roles[pid] == "waits"]
    if waiting and outside and len(waiting) + len(outside) == len(now):
        named = "; ".join(f"rank {one.rank} {describe_place(one)}" for one in outside[:4])
        text = f"{named}: outside of what the other ranks wait in ({len(waiting)}), in two looks"
        return Standstill(moved=False, outside=tuple(one.rank for one in outside), text=text)
    apart = find_apart(list(now.values())).apart
    if apart and apart[0].confidence >= _TOLD:
        named = "; ".join(f"rank {one.rank} {describe_place(one)}" for one in apart[0].stacks[:4])
        return Standstill(moved=False, text=f"{named}: apart from the others ({apart[0].confidence:.0%})")
    places = sorted({describe_place(one) for one in now.values()})
    return Standstill(moved=False, text=f"all {len(now)} ranks {'; '.join(places[:3])}, unchanged in two looks")


def _find_role(one: RankStack, used_ticks: int) -> Role:
    """Whether a rank waits for others. One in the backward pass does if it uses no processor."""
    if one.is_stopped:
        return "outside"
    if one.place == "communication" or any(_AGREEMENT in function for function in one.functions):
        return "waits"
    if any(_BACKWARD in function for function in one.functions):
        return "waits" if used_ticks < _IDLE_TICKS else "unclear"
    return "outside" if one.place == "program" else "unclear"


def _glance(ranks: list[int]) -> dict[int, Glance]:
    found = {}
    for order, stack in enumerate(read_stacks_of(ranks)):
        rank = order if stack.rank is None else stack.rank
        one = RankStack(rank=rank, pid=stack.pid, state=stack.state, threads=parse_threads(stack.text))
        found[stack.pid] = Glance(stack=one, ticks=read_processor_ticks(stack.pid))
    return found
