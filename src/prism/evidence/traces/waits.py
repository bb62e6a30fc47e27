"""Who waits for whom by the calls that ranks have entered and not left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.evidence.traces.flight_recorder import Call, Dump


@dataclass(slots=True)
class Waits:
    """Who waits for whom, and since when."""

    edges: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    unseen: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # for ranks without a dump
    since_ns: dict[int, int] = field(default_factory=dict)
    stuck: list[tuple[str, Call, tuple[int, ...]]] = field(default_factory=list)  # all entered, none left


def find_waits(by_rank: Mapping[int, Dump], members: Mapping[str, tuple[int, ...]]) -> Waits:
    """Edges from every rank in an unfinished call to the members that have not entered it."""
    waits = Waits()
    seen: dict[tuple[str, int], tuple[frozenset[int], frozenset[int]]] = {}  # who is late, and who left no dump
    for rank, dump in by_rank.items():
        for call in dump.calls:
            if not call.pending:
                continue
            if call.is_message:
                _wait_for_peer(waits, by_rank, members, rank, call)
                continue
            key = (call.group, call.seq)
            if key not in seen:
                seen[key] = _split_members(by_rank, members.get(call.group, ()), call)
            late, unseen = seen[key][0] - {rank}, seen[key][1] - {rank}
            waits.edges[rank] |= late
            if not late:
                waits.unseen[rank] |= unseen
            for r in late or unseen:
                waits.since_ns[r] = min(waits.since_ns.get(r, call.created_ns), call.created_ns)
            if not late and not unseen:
                waits.stuck.append((call.group, call, tuple(members.get(call.group, ()))))
    return waits


def _split_members(
    by_rank: Mapping[int, Dump], members: Sequence[int], call: Call
) -> tuple[frozenset[int], frozenset[int]]:
    """Members that have not entered a call, and those of which nothing is known."""
    late = frozenset(r for r in members if r in by_rank and by_rank[r].enqueued.get(call.group, -1) < call.seq)
    return late, frozenset(r for r in members if r not in by_rank)


def _wait_for_peer(
    waits: Waits, by_rank: Mapping[int, Dump], members: Mapping[str, tuple[int, ...]], rank: int, call: Call
) -> None:
    """A message waits for its other end unless that end waits in the opposite call."""
    group = members.get(call.group, ())
    if call.peer is None or call.peer >= len(group):
        return
    peer = group[call.peer]
    since = min(waits.since_ns.get(peer, call.created_ns), call.created_ns)
    if peer not in by_rank:
        waits.unseen[rank].add(peer)
        waits.since_ns[peer] = since
        return
    opposite = "recv" if call.kind == "send" else "send"
    own = group.index(rank) if rank in group else -1
    met = any(c.pending and c.kind == opposite and c.group == call.group and c.peer == own for c in by_rank[peer].calls)
    if met:
        waits.stuck.append((call.group, call, (rank, peer)))
    else:
        waits.edges[rank].add(peer)
        waits.since_ns[peer] = since


def find_ring(edges: Mapping[int, set[int]], start: int) -> list[int]:
    """A shortest ring through a rank, if there is one."""
    paths = [[start]]
    seen = {start}
    while paths:
        path = paths.pop(0)
        for after in sorted(edges.get(path[-1], ())):
            if after == start:
                return path
            if after not in seen:
                seen.add(after)
                paths.append([*path, after])
    return []
