"""The root of a hang where dumps do not list group members or messages, as gloo's do not.

A rank whose last calls break its own pattern went wrong by itself. Where nobody's pattern breaks, the root is a rank
that others wait for and that is not seen to wait, or that left no dump. Ranks that wait in a message look the same; of
all such ranks the root is the one whose missing call came first in earlier steps, since the others follow from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prism.evidence.traces.flight_recorder import Call, Dump
from prism.evidence.traces.members import WORLD, find_neighbours, infer_members
from prism.evidence.traces.patterns import find_first_break
from prism.evidence.traces.reliability import Situation

_FIRST_SHARE = 0.75  # of earlier steps in which a call must have come before another to be its cause
_EARLIER_SHARE = 0.02  # of a step by which it must have come earlier; the two ends of a message differ by less


_FEWEST_STEPS = 4  # gaps between calls that tell how long one takes
_EARLY_SHARE = 0.75  # of the shortest earlier gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Who it was, and what shows it."""

    what: str  # mismatch, deadlock, absent, missing_dump
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    since_ns: int
    situation: Situation
    text: str
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What logs and stacks say of ranks beside their dumps."""

    in_message: frozenset[int] = frozenset()  # they send or receive
    ahead: frozenset[int] = frozenset()  # their logs name a later step than the others'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missed:
    """A call that a rank did not enter: known by who waits in it, and by its place in a step."""

    rank: int
    seen: bool  # it left a dump
    waiting: tuple[int, ...]
    places: Mapping[int, int]  # number of the call in a step, by rank whose earlier steps tell when it used to come


def find_root(dumps: Sequence[Dump], missing: Sequence[int], told: Told) -> Root | None:
    """The root over all groups; None where nothing is seen to wait."""
    calls = {d.rank: sorted((c for c in d.calls if not c.is_message), key=lambda c: c.created_ns) for d in dumps}
    waiting = {rank: own[-1] for rank, own in calls.items() if own and own[-1].pending}
    return _read_break(calls, waiting) or _find_early(calls, waiting) or _find_awaited(calls, waiting, missing, told)


def list_alive(dumps: Sequence[Dump], missing: Sequence[int]) -> set[int]:
    """Ranks that lived when the others hung: they wrote a dump, or a peer still waited on their connection."""
    alive = {d.rank for d in dumps}
    members = infer_members(_list_seen({d.rank: d.calls for d in dumps}), missing)
    for dump in dumps:
        for call in dump.calls:
            if call.pending and not call.retired:
                alive |= set(members.get(call.group, ()))
    return alive


def _read_break(calls: Mapping[int, Sequence[Call]], waiting: Mapping[int, Call]) -> Root | None:
    found = find_first_break(calls)
    if found is None:
        return None
    call, usual = found.call, found.usual
    return Root(
        what="mismatch" if call.group == usual.group else "deadlock",
        ranks=(found.rank,),
        waiting=tuple(sorted(set(waiting) - {found.rank})),
        since_ns=call.created_ns,
        situation="pattern_broken" if found.alone else "patterns_broken",
        line=call.line,
        text=f"rank {found.rank} called {call.kind} {call.sizes} of group {call.group[:12]} where it has always called "
        f"{usual.kind} {usual.sizes} of group {usual.group[:12]} before",
    )


def _find_early(calls: Mapping[int, Sequence[Call]], waiting: Mapping[int, Call]) -> Root | None:
    """The only rank that waits, if it came sooner after its last call than ever before: it left something out."""
    if len(waiting) != 1 or len(calls) < 3:
        return None
    ((rank, call),) = waiting.items()
    own = calls[rank]
    gaps = [
        b.created_ns - a.created_ns for a, b in pairwise(own) if (b.group, b.signature) == (call.group, call.signature)
    ]
    if len(gaps) < _FEWEST_STEPS or gaps[-1] > _EARLY_SHARE * min(gaps[:-1]):
        return None
    others = tuple(r for r in sorted(calls) if r != rank)
    return Root(
        what="deadlock",
        ranks=(rank,),
        waiting=others,
        since_ns=call.created_ns,
        situation="came_early",
        line=call.line,
        text=f"rank {rank} alone called {call.kind} {call.seq} of group {call.group[:12]}, {gaps[-1] / 1e6:.0f} ms "
        f"after its last call where it never took less than {min(gaps[:-1]) / 1e6:.0f}, so it left something out",
    )


def _list_seen(calls: Mapping[int, Sequence[Call]]) -> dict[str, set[int]]:
    seen: dict[str, set[int]] = defaultdict(set)
    for rank, own in calls.items():
        for call in own:
            seen[call.group].add(rank)
    return seen


def _find_awaited(
    calls: Mapping[int, Sequence[Call]], waiting: Mapping[int, Call], missing: Sequence[int], told: Told
) -> Root | None:
    """Ranks that are awaited and not seen to wait, of which the one is named whose call used to come first."""
    seen = _list_seen(calls)
    members = infer_members(seen, missing or _infer_missing(calls, seen))
    missed = _list_missed(calls, waiting, members)
    if not missed:
        return None
    others = [m for m in missed if m.rank not in told.in_message]
    skipped = [m for m in missed if m.rank in told.ahead]
    if not others and not skipped:
        found = _follow_messages(sorted({m.rank for m in missed}), members, waiting, told.in_message)
        if found is not None:
            return found
    roots = _keep_first(skipped or others or missed, calls)
    ranks = tuple(sorted({m.rank for m in roots}))
    by = tuple(sorted({r for m in roots for r in m.waiting}))
    since = min(waiting[r].created_ns for r in by)
    gone = [m.rank for m in roots if not m.seen]
    if gone:
        text = f"all who left a dump entered what they wait in; rank {_name(gone)} left none: it died or is held"
        return Root(what="missing_dump", ranks=ranks, waiting=by, since_ns=since, situation="no_dump", text=text)
    last = calls[ranks[0]][-1] if calls[ranks[0]] else None
    return Root(
        what="absent",
        ranks=ranks,
        waiting=by,
        since_ns=since,
        # Where most have not come, they may all wait for the one that has, in messages that the dumps do not list.
        situation="most_absent" if len(by) < len(calls) - len(by) else "absent",
        line=last.line if last else "",
        text=f"rank {_name(ranks)} did not enter what {len(by)} ranks wait in"
        + (f"; its last call was {last.kind} {last.seq} of group {last.group[:12]}" if last else ""),
    )


def _follow_messages(
    held: Sequence[int], members: Mapping[str, Sequence[int]], waiting: Mapping[int, Call], in_message: Collection[int]
) -> Root | None:
    """Whom ranks that wait in a message wait for: a neighbour that went on to a collective, or left no dump."""
    around = {n for rank in held for n in find_neighbours(members, rank)}
    past = sorted(r for r in around if r in waiting)
    gone = sorted(r for r in around if r not in waiting and r not in in_message)
    ranks = past or gone
    if not ranks:
        return None
    did = "called a collective instead" if past else "is not seen to send or receive"
    return Root(
        what="deadlock" if past else "missing_dump",
        ranks=tuple(ranks),
        waiting=tuple(held),
        since_ns=min(waiting[r].created_ns for r in past or waiting),
        situation="beyond_message",
        text=f"rank {_name(held)} waits in a message, and rank {_name(ranks)}, its neighbour in the pipeline, {did}",
        line=waiting[past[0]].line if past else "",
    )


def _list_missed(
    calls: Mapping[int, Sequence[Call]], waiting: Mapping[int, Call], members: Mapping[str, Sequence[int]]
) -> list[_Missed]:
    """Who did not enter what others wait in: those behind by their dumps, else members without a dump."""
    reached: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, own in calls.items():
        for call in own:
            reached[call.group][rank] = max(reached[call.group].get(rank, -1), call.seq)
    by_call: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, call in waiting.items():
        by_call[call.group, call.seq].append(rank)
    behind: dict[int, list[int]] = defaultdict(list)
    missed = []
    for (group, seq), ranks in by_call.items():
        late = [r for r, at in reached[group].items() if at < seq]
        for rank in late:
            if rank not in waiting:
                behind[rank] += ranks
        for rank in () if late else [r for r in members.get(group, ()) if r not in calls]:
            places = {r: _place_in_step(calls[r]) - 1 for r in ranks}
            missed.append(_Missed(rank=rank, seen=False, waiting=tuple(ranks), places=places))
    for rank, by in behind.items():
        missed.append(_Missed(rank=rank, seen=True, waiting=tuple(by), places={rank: _place_in_step(calls[rank])}))
    return missed


def _infer_missing(calls: Mapping[int, Sequence[Call]], seen: Mapping[str, set[int]]) -> tuple[int, ...]:
    """The rank after the highest, where a group has one member alone: no group is that small."""
    alone = len(calls) == 1 or any(len(members) == 1 for members in seen.values())
    return (max(calls, default=-1) + 1,) if alone else ()


def _keep_first(missed: Sequence[_Missed], calls: Mapping[int, Sequence[Call]]) -> list[_Missed]:
    """Drop a missed call where another one clearly came before it in earlier steps, since it may follow from that one.

    Of those that are left, ranks without a dump are kept alone: that a rank is held explains both its silence and the
    hang, while a dump that was lost just there would be a coincidence.
    """
    steps = {rank: _cut_steps(own) for rank, own in calls.items()}
    times = [_times_of(m, steps) for m in missed]
    margin_ns = _EARLIER_SHARE * _median(_step_lengths(calls))
    left = [m for m, own in zip(missed, times, strict=True) if not any(_precedes(t, own, margin_ns) for t in times)]
    left = left or list(missed)
    return [m for m in left if not m.seen] or left


def _precedes(one: Mapping[int, int], other: Mapping[int, int], margin_ns: float) -> bool:
    """Whether a call came before another one in most steps, and by more than the time of a message."""
    gaps = [other[step] - one[step] for step in set(one) & set(other)]
    return len(gaps) >= 2 and sum(g > 0 for g in gaps) >= _FIRST_SHARE * len(gaps) and _median(gaps) > margin_ns


def _step_lengths(calls: Mapping[int, Sequence[Call]]) -> list[int]:
    ends = [[c.created_ns for c in own if c.group == WORLD] for own in calls.values()]
    return [b - a for times in ends for a, b in pairwise(times)]


def _median(values: Sequence[int]) -> float:
    return float(sorted(values)[len(values) // 2]) if values else 0.0


def _cut_steps(own: Sequence[Call]) -> dict[int, list[Call]]:
    """A rank's calls after each call of all ranks, which ends a step, by that call's number; the last step is open."""
    steps: dict[int, list[Call]] = {}
    for before, call in pairwise(own):
        if before.group == WORLD:
            steps[before.seq] = []
        if steps:
            steps[max(steps)].append(call)
    return steps


def _times_of(missed: _Missed, steps: Mapping[int, Mapping[int, Sequence[Call]]]) -> dict[int, int]:
    """When the missed call came in each earlier step."""
    found: dict[int, int] = {}
    for rank, place in missed.places.items():
        for step, own in steps[rank].items():
            if len(own) > place and not own[place].pending:
                found[step] = min(found.get(step, own[place].created_ns), own[place].created_ns)
    return found


def _place_in_step(own: Sequence[Call]) -> int:
    """Calls after the last completed one of all ranks, which ends a step."""
    count = 0
    for call in reversed(own):
        if call.group == WORLD and not call.pending:
            break
        count += 1
    return count


def _name(ranks: Sequence[int]) -> str:
    return ", ".join(str(r) for r in sorted(ranks)[:8])
