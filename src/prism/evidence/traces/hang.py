"""Who a hang waits for: the rank whose absence explains all others.

A rank that entered a collective and did not leave it waits for every member that has not entered it. Whoever others
wait for and who waits for nobody is the root. A rank that left no dump may be the root where all others have entered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from prism.evidence.traces.aligned_dumps import find_clock_offsets, move_clock, reopen
from prism.evidence.traces.flight_recorder import Call, Dump
from prism.evidence.traces.reliability import Situation, be_sure
from prism.evidence.traces.unlisted import Root, Told, find_root, list_alive
from prism.evidence.traces.waits import Waits, find_ring, find_waits

_LATEST = 1  # calls of a group that ranks of a job that ended together may be apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What the dumps of a job say together."""

    what: str  # absent, mismatch, deadlock, missing_dump, stuck, none
    ranks: tuple[int, ...]  # the root, or all that cannot be told apart
    since_ns: int
    confidence: float
    text: str
    waiting: tuple[int, ...] = ()  # who waits for them
    missing: tuple[int, ...] = ()  # ranks without a dump
    alternatives: tuple[int, ...] = ()
    line: str = ""  # of the program, where the root was last seen
    situation: Situation = "none"
    notes: tuple[str, ...] = ()
    alive: frozenset[int] = frozenset()  # ranks whose processes lived when the others hung


def find_hang(
    dumps: Sequence[Dump],
    *,
    world_size: int | None = None,
    known_places: Mapping[int, str] | None = None,
    ahead: Collection[int] = (),
) -> Hang:
    """The root of a hang over all groups, on one clock.

    `world_size` tells of ranks that left no dump. `known_places` says where ranks stood by their logs or stacks, in a
    `collective`, in a `message` or elsewhere: a rank that fails dumps afterwards, and then its last call is off the
    list of pending ones although it never completed. `ahead` are ranks whose logs name a later step than the others'.
    """
    offsets = find_clock_offsets(dumps)
    aligned = [move_clock(d, offsets[d.rank]) if d.rank in offsets else d for d in dumps]
    known_places = known_places or {}
    aligned = reopen(aligned, known_places)
    told = Told(in_message=frozenset(r for r, w in known_places.items() if w == "message"), ahead=frozenset(ahead))
    hang = _find_hang(aligned, world_size, told)
    if not offsets:
        return hang
    first = min(offsets)
    such = f"rank {first} by {offsets[first] / 1e9:.0f} s"
    note = f"clocks of {len(offsets)} ranks are off, such as {such}; aligned by their calls"
    return replace(hang, notes=(*hang.notes, note))


def _find_hang(dumps: Sequence[Dump], world_size: int | None, told: Told) -> Hang:
    by_rank = {dump.rank: dump for dump in dumps}
    members = _list_members(dumps)
    world = set(by_rank).union(*members.values()) if members else set(by_rank)
    missing = tuple(sorted(set(range(max(max(world, default=-1) + 1, world_size or 0))) - set(by_rank)))
    if not any(call.pending for dump in dumps for call in dump.calls):
        return _find_gone(dumps, missing)
    alive = frozenset(by_rank)
    odd = _find_mismatch(by_rank, members, missing)
    tied = odd is not None and len(odd.ranks) > len(odd.waiting)
    if (odd is None or tied) and not any(group.ranks for dump in dumps for group in dump.groups.values()):
        alive = frozenset(list_alive(dumps, missing))
        root = find_root(dumps, missing, told)
        if root is not None:
            return Hang(
                alive=alive,
                what=root.what,
                ranks=root.ranks,
                since_ns=root.since_ns,
                situation=root.situation,
                confidence=be_sure(root.situation) / _split(root),
                text=root.text,
                waiting=root.waiting,
                missing=missing,
                line=root.line,
            )
    found = odd
    if found is None:
        waits = find_waits(by_rank, members)
        found = (
            _find_absent(by_rank, waits, missing)
            or _find_deadlock(by_rank, waits, missing)
            or _describe_stuck(waits, missing)
        )
    return replace(found, alive=alive)


def _find_gone(dumps: Sequence[Dump], missing: tuple[int, ...]) -> Hang:
    """Nothing is unfinished; but where all others came equally far and left a dump, who left none ended first.

    Some backends take calls that failed off their lists, so the dumps of a job that broke off look like these.
    """
    reached: dict[str, list[int]] = defaultdict(list)
    for dump in dumps:
        for group, seq in dump.enqueued.items():
            reached[group].append(seq)
    together = bool(reached) and all(max(own) - min(own) <= _LATEST for own in reached.values())
    failed = any(call.retired for dump in dumps for call in dump.calls)
    if together and failed and 0 < len(missing) <= len(dumps) // 2:
        return Hang(
            what="missing_dump",
            ranks=missing,
            since_ns=max(c.created_ns for d in dumps for c in d.calls),
            situation="no_dump_nothing_pending",
            confidence=be_sure("no_dump_nothing_pending"),
            missing=missing,
            text=f"all others came equally far and left a dump; rank {_name(missing)} left none, so it may have ended "
            "first",
        )
    return Hang(
        what="none",
        ranks=(),
        since_ns=0,
        confidence=0.5,
        missing=missing,
        text="no collective is unfinished in any dump: nothing hung when they were written",
    )


def _list_members(dumps: Sequence[Dump]) -> dict[str, tuple[int, ...]]:
    """Members of every group: as any rank recorded them, else the ranks that made a call in it."""
    told: dict[str, tuple[int, ...]] = {}
    seen: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        for group in dump.groups.values():
            if group.ranks:
                told.setdefault(group.name, group.ranks)
        for name in {call.group for call in dump.calls} | set(dump.enqueued):
            seen[name].add(dump.rank)
    everyone = max((dump.rank for dump in dumps), default=-1) + 1
    for name, ranks in seen.items():
        if name not in told:
            # The first group that a program makes, named 0, holds all ranks.
            told[name] = tuple(range(everyone)) if name == "0" else tuple(sorted(ranks))
    return told


def _find_mismatch(
    by_rank: Mapping[int, Dump], members: Mapping[str, tuple[int, ...]], missing: tuple[int, ...]
) -> Hang | None:
    """The first unfinished collective whose members do not do the same thing; the odd one out is the root."""
    calls: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    for rank, dump in by_rank.items():
        for call in dump.calls:
            if not call.is_message:
                calls[call.group, call.seq][rank] = call
    found: list[tuple[int, Hang]] = []
    for (group, seq), by_member in calls.items():
        if len(by_member) < 2 or not any(call.pending for call in by_member.values()):
            continue
        kinds = Counter(call.signature for call in by_member.values())
        if len(kinds) < 2:
            continue
        usual, count = kinds.most_common(1)[0]
        odd = tuple(sorted(r for r, call in by_member.items() if call.signature != usual))
        if count == len(by_member) - count:  # a tie: either half may be wrong
            odd = tuple(sorted(by_member))
        situation: Situation = "odd_call" if count > len(odd) else "odd_call_tied"
        first = by_member[odd[0]]
        since = min(call.created_ns for call in by_member.values())
        what = "another collective" if first.kind != usual[0] else "another size"
        found.append(
            (
                since,
                Hang(
                    what="mismatch",
                    ranks=odd,
                    since_ns=since,
                    situation=situation,
                    confidence=be_sure(situation),
                    missing=missing,
                    line=first.line,
                    waiting=tuple(sorted(set(by_member) - set(odd))),
                    text=f"in collective {seq} of group {group} rank {_name(odd)} called {first.kind} {first.sizes}, "
                    f"{what} than the {count} others ({usual[0]} {usual[1]})".replace("  ", " "),
                ),
            )
        )
    return min(found, key=lambda f: f[0])[1] if found else None


def _find_absent(by_rank: Mapping[int, Dump], waits: Waits, missing: tuple[int, ...]) -> Hang | None:
    """Ranks that others wait for and that wait for nobody."""
    awaited = set().union(*waits.edges.values()) if waits.edges else set()
    roots = sorted(r for r in awaited if not waits.edges.get(r) and not waits.unseen.get(r))
    if roots:
        first = by_rank[roots[0]]
        last = max(first.calls, key=lambda c: c.created_ns, default=None)
        waiting = tuple(sorted(r for r, others in waits.edges.items() if others & set(roots)))
        situation: Situation = "absent" if len(roots) < len(by_rank) / 2 else "most_absent"
        seen = f"its last call was {last.kind} of group {last.group}" if last else "it had no call under way"
        return Hang(
            what="absent",
            ranks=tuple(roots),
            since_ns=min(waits.since_ns[r] for r in roots),
            situation=situation,
            confidence=be_sure(situation),
            waiting=waiting,
            missing=missing,
            line=last.line if last else "",
            text=f"rank {_name(roots)} did not enter what {len(waiting)} ranks wait in; {seen}",
        )
    unseen = [others for others in waits.unseen.values() if others]
    if not unseen:
        return None
    # A rank that all stuck collectives lack explains more than one that only some of them lack.
    common = set.intersection(*unseen) or set.union(*unseen)
    counted = Counter(r for others in unseen for r in others)
    ranks = tuple(sorted(common))
    return Hang(
        what="missing_dump",
        ranks=ranks,
        since_ns=min(waits.since_ns[r] for r in ranks),
        situation="no_dump",
        confidence=round(be_sure("no_dump") / len(ranks), 2),
        waiting=tuple(sorted(waits.unseen)),
        missing=missing,
        alternatives=tuple(sorted(set(counted) - common)),
        text=f"everyone who left a dump entered; rank {_name(ranks)} left none, so it died or was held",
    )


def _find_deadlock(by_rank: Mapping[int, Dump], waits: Waits, missing: tuple[int, ...]) -> Hang | None:
    """Ranks that wait for each other in different groups."""
    for start in sorted(waits.edges):
        ring = find_ring(waits.edges, start)
        if ring:
            at = [next(c for c in by_rank[r].calls if c.pending) for r in ring]
            told = "; ".join(
                f"rank {r} is in {c.kind} of group {c.group}" for r, c in zip(ring[:4], at[:4], strict=True)
            )
            return Hang(
                what="deadlock",
                ranks=tuple(sorted(ring)),
                since_ns=max(c.created_ns for c in at),
                situation="deadlock",
                confidence=be_sure("deadlock"),
                waiting=tuple(sorted(waits.edges)),
                missing=missing,
                line=next((c.line for c in at if c.line), ""),
                text=f"ranks wait for each other in different calls: {told}",
            )
    return None


def _describe_stuck(waits: Waits, missing: tuple[int, ...]) -> Hang:
    """All members entered and none left: the dumps cannot tell a link from a GPU."""
    if not waits.stuck:
        return Hang(
            what="none", ranks=(), since_ns=0, confidence=0.3, missing=missing, text="no rank waits for another"
        )
    group, call, ranks = min(waits.stuck, key=lambda s: s[1].created_ns)
    return Hang(
        what="stuck",
        ranks=ranks,
        since_ns=call.created_ns,
        confidence=round(1 / max(len(ranks), 1), 2),
        missing=missing,
        line=call.line,
        text=f"all of group {group} entered {call.kind} {call.seq} and none left: a link or a GPU among them; "
        "NCCL RAS, kernel logs or flow records of that time can tell which",
    )


def _split(root: Root) -> int:
    """Several roots of one kind cannot be told apart, unless what they did was seen."""
    return len(root.ranks) if root.situation in ("no_dump", "beyond_message", "absent", "most_absent") else 1


def _name(ranks: Sequence[int]) -> str:
    return ", ".join(str(r) for r in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
