"""The shortest makespan that any schedule could have: what a plan is measured against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prism.evaluate.schedule.packing import Work

_ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The hardware at its best."""

    ready_s: tuple[float, ...]  # per worker: the earliest that its node can hold a checkpoint
    start_s: float  # the shortest start of a model on a device
    cpus: int  # outputs scored at once, on all nodes together


def lower_bound_s(works: Sequence[Work], supply: Supply) -> float:
    """No schedule ends before T seconds, since

    - a worker works from `ready_s + start_s` to T at most: its room. Before that it has no model;
    - a worker makes a dataset ready for each share it takes of it, so in a room of C seconds it infers at most
      C - setup of it, and a dataset of w seconds is made ready at least ceil(w / (C - setup)) times;
    - a share that leaves less than the shortest set-up of its worker's room has that worker for itself;
    - likewise a checkpoint of W seconds is started at least ceil(W / C) times, and only the first start of each
      worker is in its room already;
    - all shares, set-ups and further starts must find room on the workers together.

    Nor can a dataset end before its largest unsplittable piece (one sample, where it can be split) is inferred and
    scored, nor all scores before the CPUs have worked through them.
    """
    works = [work for work in works if work.samples]
    if not works or not supply.ready_s:
        return 0.0
    begin_s = min(supply.ready_s) + supply.start_s
    alone_s = max(_shortest_s(work) for work in works)
    first_output_s = min(work.setup_s + work.infer_s for work in works)
    scoring_s = first_output_s + sum(work.samples * work.score_s for work in works) / max(1, supply.cpus)
    low = begin_s + max(alone_s, scoring_s)
    starts_s = supply.start_s * len({work.key[0] for work in works})
    high = max(low, begin_s + starts_s + sum(work.setup_s + work.seconds for work in works))
    if _fits(works, supply, low):
        return low
    for _ in range(_ROUNDS):  # what fits until T fits until later, so T can be bisected
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(works, supply, middle) else (middle, high)
    return low


def _shortest_s(work: Work) -> float:
    """With a worker for every share, nothing is faster than one sample, or the whole where it cannot be split."""
    samples = 1 if work.splittable else work.samples
    return work.setup_s + samples * (work.infer_s + work.score_s)


def _fits(works: Sequence[Work], supply: Supply, end_s: float) -> bool:
    """Whether the least that has to be done could find room before `end_s`."""
    rooms = [end_s - ready_s - supply.start_s for ready_s in supply.ready_s]
    largest, smallest = max(rooms), min((room for room in rooms if room > 0), default=0.0)
    shared_s = largest - min(work.setup_s for work in works)  # a longer share has its worker for itself
    used: dict[str, float] = {}
    for work in works:
        if work.setup_s >= largest or (not work.splittable and work.setup_s + work.seconds > largest):
            return False
        needed_s = _needed_s(work, largest, smallest, shared_s)
        used[work.key[0]] = used.get(work.key[0], 0.0) + needed_s
    starts = sum(math.ceil(seconds / largest - 1e-9) for seconds in used.values())
    further = max(0, starts - len(rooms)) * supply.start_s
    return sum(used.values()) + further <= sum(max(0.0, room) for room in rooms)


def _needed_s(work: Work, largest: float, smallest: float, shared_s: float) -> float:
    """The least that a dataset takes of the workers' rooms, set-ups and what it leaves of no use to others included."""
    if not work.splittable:
        whole_s = work.setup_s + work.seconds
        return max(whole_s, smallest) if whole_s > shared_s else whole_s
    full_s, part_s = largest - work.setup_s, shared_s - work.setup_s  # the most that a share infers, alone or not
    num_full = int(work.seconds / full_s + 1e-9)
    rest_s = work.seconds - num_full * full_s
    if rest_s <= 1e-9 * full_s:
        return work.seconds + max(1, num_full) * work.setup_s
    # Shares that fill a worker give the most for their set-up; what they leave goes into shares beside others, or
    # makes for one more share with a worker for itself.
    beside = num_full + (math.ceil(rest_s / part_s - 1e-9) if part_s > 0 else math.inf)
    alone_s = max(work.seconds + (num_full + 1) * work.setup_s, (num_full + 1) * smallest)
    return min(work.seconds + beside * work.setup_s, alone_s)
