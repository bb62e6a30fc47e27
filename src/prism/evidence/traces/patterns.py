"""Where a rank breaks its own pattern. A training program repeats itself, so whoever differs first went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prism.evidence.traces.flight_recorder import Call

_DEEPEST = 3  # calls before the last one in which a pattern may have broken


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternBreak:
    """A call that is not the one that should have come."""

    rank: int
    call: Call
    usual: Call
    alone: bool  # nobody else's pattern broke


def find_first_break(calls: Mapping[int, Sequence[Call]]) -> PatternBreak | None:
    """The earliest call with which a rank broke its own pattern; it skipped one, called another or swapped two."""
    breaks = {rank: found for rank, own in calls.items() if (found := _break_of(own)) is not None}
    if not breaks:
        return None
    first = min(breaks, key=lambda r: breaks[r][0].created_ns)
    call, usual = breaks[first]
    return PatternBreak(rank=first, call=call, usual=usual, alone=len(breaks) == 1)


def _break_of(own: Sequence[Call]) -> tuple[Call, Call] | None:
    """The call that breaks a rank's pattern and the one that should have come."""
    signs = [(c.group, c.kind, c.sizes) for c in own]
    for depth in range(1, _DEEPEST + 1):
        end = len(signs) - depth
        period = _period_of(signs[:end]) if end > 0 else None
        if period is not None and signs[end] != signs[end - period]:
            return own[end], own[end - period]
    return None


def _period_of(signs: Sequence[tuple[str, str, str]]) -> int | None:
    """The shortest period that the last two rounds and all that follows from them keep."""
    for period in range(1, len(signs) // 2 + 1):
        checked = min(len(signs) - period, 3 * period)
        if checked >= period and all(signs[-1 - i] == signs[-1 - i - period] for i in range(checked)):
            return period
    return None
