"""Ranks that make the same calls and do not work alike: a rank 0 that also writes logs, or a longer last stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

_UNLIKE_SHARE = 0.25  # of the smaller one's work; equal ranks of a busy machine differ by 5 to 15 %
_UNLIKE_NS = 300_000  # shorter differences are noise


def split_by_work(work_ns: Mapping[int, float]) -> list[list[int]]:
    """Ranks in sets that work alike; the last set is the one that stands for ranks that were not captured."""
    order = sorted(work_ns, key=lambda rank: work_ns[rank])
    sets = [[order[0]]]
    for before, rank in pairwise(order):
        if work_ns[rank] - work_ns[before] > max(_UNLIKE_NS, _UNLIKE_SHARE * work_ns[before]):
            sets.append([])
        sets[-1].append(rank)
    # Rank 0 is often special, so the set of the highest rank stands for the others unless a larger one does.
    sets.sort(key=lambda ranks: (len(ranks), max(ranks)))
    return [sorted(ranks) for ranks in sets]


def describe_unlike(sets: Sequence[Sequence[int]], work_ns: Mapping[int, float]) -> Iterator[str]:
    """One line per set that differs from the usual one."""
    usual = sets[-1][0]
    for ranks in sets[:-1]:
        yield (
            f"rank {ranks[0]} works {work_ns[ranks[0]] / 1e6:.2f} ms in an iteration where rank {usual}, which makes "
            f"the same calls, works {work_ns[usual] / 1e6:.2f} ms"
        )
