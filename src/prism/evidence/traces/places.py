"""What ranks were doing when they hung, as stacks and logs tell it beside dumps.

A rank that stands at the line of its last recorded call is still in that call. One that stands in the communication
library at another line is in a call that the recorder does not list, such as a message of gloo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prism.evidence.traces.consensus import Consensus
from prism.evidence.traces.flight_recorder import Dump
from prism.evidence.traces.rank_logs import RankLog
from prism.evidence.traces.stacks import RankStack, same_line


def place_ranks(
    dumps: Sequence[Dump], stacks: Iterable[RankStack], found: Consensus, logs: Iterable[RankLog]
) -> dict[int, str]:
    """By rank: in a `collective`, in a `message`, or `elsewhere`; ranks of which it is unknown are left out."""
    lines = {d.rank: max(d.calls, key=lambda c: c.created_ns).line if d.calls else "" for d in dumps}
    apart = {rank for division in found.apart[:1] for rank in division.ranks}
    places: dict[int, str] = {}
    for log in logs:
        if log.lost_peer and log.line and lines.get(log.rank):
            places[log.rank] = "collective" if same_line(log.line, lines[log.rank]) else "message"
    for stack in stacks:
        last = lines.get(stack.rank)
        if stack.rank in apart and stack.place != "communication":
            places[stack.rank] = "elsewhere"
        elif stack.place == "communication" and stack.line and last is not None and not same_line(stack.line, last):
            places[stack.rank] = "message"
    return places
