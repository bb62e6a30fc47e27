"""Dumps of several hosts made comparable: on one clock, with calls that never completed pending."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from prism.evidence.traces.flight_recorder import Dump

_CLOCK_OFF_NS = 60 * 10**9


def find_clock_offsets(dumps: Sequence[Dump]) -> dict[int, int]:
    """By how much ranks' clocks differ from the median rank's, where it is over a minute.

    Ranks enter the same collective within seconds of each other, so what differs in most of their calls is the clock.
    """
    entered: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for dump in dumps:
        for call in dump.calls:
            if not call.is_message and call.created_ns > 0 and not call.pending:
                entered[call.group, call.seq].append((dump.rank, call.created_ns))
    apart: dict[int, list[int]] = defaultdict(list)
    for members in entered.values():
        if len(members) > 1:
            middle = sorted(ns for _, ns in members)[len(members) // 2]
            for rank, ns in members:
                apart[rank].append(ns - middle)
    offsets = {rank: sorted(all_)[len(all_) // 2] for rank, all_ in apart.items()}
    return {rank: ns for rank, ns in offsets.items() if abs(ns) > _CLOCK_OFF_NS}


def move_clock(dump: Dump, offset_ns: int) -> Dump:
    return replace(dump, calls=tuple(replace(c, created_ns=c.created_ns - offset_ns) for c in dump.calls))


def reopen(dumps: Sequence[Dump], known_places: Mapping[int, str]) -> list[Dump]:
    """Calls that were retired without completing are pending.

    Gloo retires a call when its own part is done or fails. A rank's last call is pending where the rank is known to
    have failed in a collective, or where a member of its group has not entered it or shows it as pending itself.
    """
    reached: dict[str, dict[int, int]] = defaultdict(dict)
    open_calls = {(c.group, c.seq) for d in dumps for c in d.calls if c.pending}
    differ = _find_differing(dumps)
    if not open_calls and not differ and "collective" not in known_places.values():
        return list(dumps)  # nothing hangs; ranks that run are never at the same call
    for dump in dumps:
        for group, seq in dump.enqueued.items():
            reached[group][dump.rank] = seq
    opened = []
    for dump in dumps:
        last = max((c for c in dump.calls if not c.is_message), key=lambda c: c.created_ns, default=None)
        if last is not None and last.retired and not last.pending:
            behind = any(seq < last.seq for seq in reached[last.group].values())
            told = known_places.get(dump.rank)
            unlike = (last.group, last.seq) in differ
            if told == "collective" or unlike or (told is None and (behind or (last.group, last.seq) in open_calls)):
                calls = tuple(replace(c, pending=True) if c is last else c for c in dump.calls)
                dump = replace(dump, calls=calls)
        opened.append(dump)
    return opened


def _find_differing(dumps: Sequence[Dump]) -> set[tuple[str, int]]:
    """Calls that are the last of two ranks or more and not the same one: none of them can have completed."""
    lasts: dict[tuple[str, int], set[tuple[str, str]]] = defaultdict(set)
    for dump in dumps:
        last = max((c for c in dump.calls if not c.is_message), key=lambda c: c.created_ns, default=None)
        if last is not None and last.retired:
            lasts[last.group, last.seq].add(last.signature)
    return {call for call, signatures in lasts.items() if len(signatures) > 1}
