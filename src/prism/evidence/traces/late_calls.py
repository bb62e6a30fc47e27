"""Who comes late to collectives that do complete, by Flight Recorder dumps of a job that runs or was ended.

What a dump holds is when a rank's host made the call, so a rank is late here where its program or its host is slow.
Clocks of hosts differ by some milliseconds, and a constant difference looks like lateness: less is not told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prism.evidence.traces.flight_recorder import Dump

_MOST_CALLS = 400  # of each rank, the newest
_LAST_SHARE = 0.6  # of a rank's calls to which it must have come last
_LEAST_NS = 10_000_000  # per call: what clocks of hosts may differ by
_CLEARLY = 2.0  # times that the others waited for the next rank


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """The rank that the others wait for."""

    rank: int
    last: int  # calls to which it came last
    calls: int
    held_ns: int  # that the median member waited for it, in all


def find_late_rank(dumps: Sequence[Dump]) -> LateRank | None:
    """The rank that comes last to most of its collectives; None where nobody clearly does."""
    entered: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for dump in dumps:
        for call in dump.calls[-_MOST_CALLS:]:
            if not call.is_message and not call.pending and call.created_ns > 0:
                entered[call.group, call.seq].append((call.created_ns, dump.rank))
    last: dict[int, int] = defaultdict(int)
    held: dict[int, int] = defaultdict(int)
    calls: dict[int, int] = defaultdict(int)
    for members in entered.values():
        if len(members) < 2:
            continue
        members.sort()
        latest, rank = members[-1]
        held[rank] += latest - members[(len(members) - 1) // 2][0]
        last[rank] += 1
        for _, member in members:
            calls[member] += 1
    ranked = sorted(held, key=lambda r: -held[r])
    if not ranked:
        return None
    first = ranked[0]
    second = held[ranked[1]] if len(ranked) > 1 else 0
    slow = held[first] >= _LEAST_NS * calls[first] and held[first] >= _CLEARLY * second
    if not slow or last[first] < _LAST_SHARE * calls[first]:
        return None
    return LateRank(rank=first, last=last[first], calls=calls[first], held_ns=held[first])
