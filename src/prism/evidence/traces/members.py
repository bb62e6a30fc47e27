"""Members of groups whose dumps do not list them: the ranks that called in a group, and which missing ranks fit.

Groups of a training job are ranks at equal distances (tensor, data and pipeline groups of a grid). A rank that left a
dump and never called in a group is no member of it, so a missing rank belongs to a group only where the distances hold
without such a rank in between. Of the shapes that fit, the one that most groups share is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

WORLD = "0"  # the name of the first group that a program makes, which holds all ranks
_MOST_MISSING = 64  # with more of them nearly every shape fits, so nothing is learned


@dataclass(frozen=True, slots=True)
class _Shape:
    start: int
    stride: int
    size: int

    @property
    def ranks(self) -> range:
        return range(self.start, self.start + self.stride * self.size, self.stride)


def infer_members(seen: Mapping[str, set[int]], missing: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Members of every group, by the ranks that were seen in it and those that left no dump."""
    if not missing or len(missing) > _MOST_MISSING:
        return {group: tuple(sorted(ranks)) for group, ranks in seen.items()}
    everyone = set(missing).union(*seen.values()) if seen else set(missing)
    fitting = {group: list(_list_shapes(ranks, set(missing))) for group, ranks in seen.items() if group != WORLD}
    shared = Counter(shape for shapes in fitting.values() for shape in {(s.stride, s.size) for s in shapes})
    members = {WORLD: tuple(sorted(everyone))}
    for group, shapes in fitting.items():
        most = max((shared[s.stride, s.size] for s in shapes), default=0)
        best = [s for s in shapes if shared[s.stride, s.size] == most]
        members[group] = tuple(sorted(set(seen[group]).union(*(s.ranks for s in best))))
    return members


def _list_shapes(members: set[int], missing: set[int]) -> Iterator[_Shape]:
    """Rows of ranks at one distance, of two or more, that hold all members and otherwise only missing ranks."""
    first, last = min(members), max(members)
    gaps = gcd(*(b - a for a, b in pairwise(sorted(members))))
    reach = max(missing | members) if len(members) == 1 else gaps
    for stride in range(1, reach + 1):
        if gaps % stride or not all(r in members or r in missing for r in range(first, last + 1, stride)):
            continue
        start = first
        while True:
            end = last
            while True:
                if end > start:
                    yield _Shape(start, stride, (end - start) // stride + 1)
                end += stride
                if end not in missing:
                    break
            start -= stride
            if start not in missing:
                break


def find_neighbours(members: Mapping[str, Sequence[int]], rank: int) -> tuple[int, ...]:
    """Ranks that a rank may pass messages to: those at its place in the stages before and after its own.

    A stage is a set of ranks that groups other than the one of all ranks tie together.
    """
    stage_of: dict[int, set[int]] = {r: {r} for ranks in members.values() for r in ranks}
    for group, ranks in members.items():
        if group != WORLD and ranks:
            joined = set().union(*(stage_of[r] for r in ranks))
            stage_of.update(dict.fromkeys(joined, joined))
    stages = sorted({tuple(sorted(stage)) for stage in stage_of.values()})
    at = next((i for i, stage in enumerate(stages) if rank in stage), None)
    if at is None or len({len(stage) for stage in stages}) > 1:
        return ()
    place = stages[at].index(rank)
    return tuple(stages[i][place] for i in (at - 1, at + 1) if 0 <= i < len(stages))
