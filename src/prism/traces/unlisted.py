"""The root of a hang where dumps do not list group members or messages, as gloo's do not.

A training program repeats itself, so a rank whose last calls break its own pattern went wrong by itself: it skipped a
collective, called another one, another size, or two groups in another order. Where nobody's pattern breaks, the root is
a rank that others wait for and that is not seen to wait; ranks that wait in messages look the same, and are told apart
by who came first in earlier steps. A rank without a dump is the root where all who left one entered what they wait in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from prism.traces.flight_recorder import Call, Dump

_DEEPEST = 3  # calls before the last one in which a pattern may have broken
_FIRST_SHARE = 0.75  # of earlier steps in which the upstream rank must have come first


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Who it was, and what shows it."""

    what: str  # mismatch, deadlock, absent, missing_dump
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    since_ns: int
    confidence: float
    text: str
    line: str = ""


def find_root(dumps: Sequence[Dump], missing: Sequence[int]) -> Root | None:
    """The root over all groups; None where nothing is seen to wait."""
    calls = {d.rank: sorted((c for c in d.calls if not c.is_message), key=lambda c: c.created_ns) for d in dumps}
    waiting = {rank: own[-1] for rank, own in calls.items() if own and own[-1].pending}
    return _find_pattern_break(calls, waiting) or _find_awaited(calls, waiting, missing)


def _find_pattern_break(calls: Mapping[int, Sequence[Call]], waiting: Mapping[int, Call]) -> Root | None:
    breaks = {rank: found for rank, own in calls.items() if (found := _break_of(own)) is not None}
    if not breaks:
        return None
    first = min(breaks, key=lambda r: breaks[r][0].created_ns)
    call, usual = breaks[first]
    same_group = call.group == usual.group
    return Root(
        what="mismatch" if same_group else "deadlock",
        ranks=(first,),
        waiting=tuple(sorted(set(waiting) - {first})),
        since_ns=call.created_ns,
        confidence=0.9 if len(breaks) == 1 else 0.7,
        line=call.line,
        text=f"rank {first} called {call.kind} {call.sizes} of group {call.group[:12]} where it has always called "
        f"{usual.kind} {usual.sizes} of group {usual.group[:12]} before",
    )


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


def _find_awaited(
    calls: Mapping[int, Sequence[Call]], waiting: Mapping[int, Call], missing: Sequence[int]
) -> Root | None:
    """Ranks that are awaited and not seen to wait; else those without a dump."""
    reached: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, own in calls.items():
        for call in own:
            reached[call.group][rank] = max(reached[call.group].get(rank, -1), call.seq)
    awaited: dict[int, set[int]] = defaultdict(set)
    stuck: list[tuple[int, Call]] = []
    for rank, call in waiting.items():
        behind = [r for r, seq in reached[call.group].items() if seq < call.seq]
        for other in behind:
            awaited[other].add(rank)
        if not behind:
            stuck.append((rank, call))
    unseen = _members_unseen(stuck, reached, set(missing) or _infer_missing(calls, reached))
    if unseen:
        since = min(c.created_ns for _, c in stuck)
        return Root(
            what="missing_dump",
            ranks=tuple(sorted(unseen)),
            waiting=tuple(sorted(waiting)),
            since_ns=since,
            confidence=round(0.85 / len(unseen), 2),
            text=f"all who left a dump entered what they wait in; rank {_name(unseen)} left none: it died or is held",
        )
    roots = sorted(r for r in awaited if r not in waiting)
    if not roots:
        return None
    roots = _most_upstream(roots, calls) if len(roots) > 1 else roots
    by = set().union(*(awaited[r] for r in roots))
    last = calls[roots[0]][-1] if calls[roots[0]] else None
    return Root(
        what="absent",
        ranks=tuple(roots),
        waiting=tuple(sorted(by)),
        since_ns=min(waiting[r].created_ns for r in by),
        confidence=0.9 if len(roots) == 1 else round(0.8 / len(roots), 2),
        line=last.line if last else "",
        text=f"rank {_name(roots)} did not enter what {len(by)} ranks wait in"
        + (f"; its last call was {last.kind} {last.seq} of group {last.group[:12]}" if last else ""),
    )


def _infer_missing(calls: Mapping[int, Sequence[Call]], reached: Mapping[str, Mapping[int, int]]) -> set[int]:
    """The rank after the highest, where a group has one member alone: no group is that small."""
    alone = len(calls) == 1 or any(len(members) == 1 for members in reached.values())
    return {max(calls, default=-1) + 1} if alone else set()


def _members_unseen(
    stuck: Sequence[tuple[int, Call]], reached: Mapping[str, Mapping[int, int]], missing: set[int]
) -> set[int]:
    """Missing ranks that may belong to every group that is stuck: those that fit the distance between its members."""
    fitting: list[set[int]] = []
    for group in {call.group for _, call in stuck}:
        members = sorted(reached[group])
        fit = {r for r in missing if group == "0" or _fits(r, members)}
        if fit:
            fitting.append(fit)
    if not fitting:
        return set()
    both = set.intersection(*fitting)
    return both or min(fitting, key=len)


def _fits(rank: int, members: Sequence[int]) -> bool:
    """Whether a rank stands at the distance from the members that they have among themselves, or halfway."""
    gaps = [b - a for a, b in pairwise(members)]
    halfway = any(2 * rank == a + b for a, b in pairwise(members))
    return not gaps or halfway or (rank - members[0]) % gcd(*gaps) == 0


def _most_upstream(roots: Sequence[int], calls: Mapping[int, Sequence[Call]]) -> list[int]:
    """Of ranks that all seem to be the root, the one that came least far in its step.

    Where several came equally far: the one that came first in most earlier steps, since others wait for its messages.
    """
    done = {rank: _calls_in_step(calls[rank]) for rank in roots}
    roots = [r for r in roots if done[r] == min(done.values())]
    after = {rank: _first_after_world(calls[rank]) for rank in roots}
    common = set.intersection(*(set(a) for a in after.values()))
    if len(roots) == 1 or len(common) < 2:
        return list(roots)
    firsts = [min(roots, key=lambda r: after[r][step]) for step in common]
    best = max(set(firsts), key=firsts.count)
    return [best] if firsts.count(best) >= _FIRST_SHARE * len(firsts) else list(roots)


def _calls_in_step(own: Sequence[Call]) -> int:
    """Calls after the last one of all ranks, which ends a step."""
    count = 0
    for call in reversed(own):
        if call.group == "0":
            break
        count += 1
    return count


def _first_after_world(own: Sequence[Call]) -> dict[int, int]:
    """When a rank made its first call after each call of all ranks."""
    return {before.seq: call.created_ns for before, call in pairwise(own) if before.group == "0" and call.group != "0"}


def _name(ranks: Sequence[int] | set[int]) -> str:
    return ", ".join(str(r) for r in sorted(ranks)[:8])
