"""Replay what ranks called, with gloo's rules of waiting: a deadlock among ranks that really ran.

A send ends when its receiver has asked for it, a receive when its sender has offered it, a collective when all members
have made it. A rank at the end of its log was stopped there, so ranks that wait for it would have gone on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prism.emulate.capture import Capture, CapturedEntry
from prism.emulate.comparing import name_ranks
from prism.emulate.problems import CallsDifferError, Problem, hang_problem

_MESSAGES = ("send", "recv")
_MOST_NAMED = 4
_Channel = tuple[str, int, int, int]  # group, source, target, tag


@dataclass(slots=True)
class _Call:
    """One call of a rank, and the ranks it still needs."""

    entry: CapturedEntry
    peers: Sequence[int]
    missing: Callable[[], list[int]]


@dataclass(slots=True)
class _Replay:
    """How far every rank got."""

    captures: Mapping[int, Capture]
    at: dict[int, int] = field(default_factory=dict)
    offered: Counter[tuple[str, _Channel]] = field(default_factory=Counter)
    reached: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    calls: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    open: dict[int, dict[int, _Call]] = field(default_factory=lambda: defaultdict(dict))
    held: dict[int, _Call] = field(default_factory=dict)  # who waits, and in what

    def is_over(self, rank: int) -> bool:
        """Whether nothing more is known of a rank."""
        return rank not in self.captures or self.at.get(rank, 0) >= len(self.captures[rank].entries)

    def advance(self, rank: int, members: Mapping[str, Sequence[int]]) -> bool:
        """Go on until the rank has to wait; whether it got any further."""
        entries, begun = self.captures[rank].entries, self.at.get(rank, 0)
        while self.at.setdefault(rank, 0) < len(entries):
            held = self.held.get(rank)
            if held is not None:
                if held.missing():
                    return self.at[rank] > begun
                del self.held[rank]
                self.at[rank] += 1
                continue
            entry = entries[self.at[rank]]
            call = self._post(rank, entry, members[entry.group]) if entry.is_communication else None
            if call is not None:
                self.open[rank][entry.op] = call
            blocks = call if call is not None and entry.lane >= 0 else None
            if entry.what == "wait":
                blocks = self.open[rank].pop(entry.op, None)
            if blocks is None or entry.stream > 0:  # another thread waits, and the rank goes on
                self.at[rank] += 1
            else:
                self.held[rank] = blocks
        return self.at[rank] > begun

    def _post(self, rank: int, entry: CapturedEntry, members: Sequence[int]) -> _Call:
        if entry.what not in _MESSAGES:
            number = self.calls[rank][entry.group]
            self.calls[rank][entry.group] += 1
            reached = self.reached[entry.group, number]
            reached.add(rank)
            return _Call(entry, members, lambda: self._absent(members, reached))
        peer = members[entry.peer]
        source, target = (rank, peer) if entry.what == "send" else (peer, rank)
        channel = (entry.group, source, target, entry.tag)
        number, other = self.offered[entry.what, channel], "recv" if entry.what == "send" else "send"
        self.offered[entry.what, channel] += 1
        return _Call(
            entry, (peer,), lambda: [] if self.offered[other, channel] > number or self.is_over(peer) else [peer]
        )

    def _absent(self, members: Sequence[int], reached: set[int]) -> list[int]:
        if len(reached) == len(members):
            return []
        return [r for r in members if r not in reached and not self.is_over(r)]


def check_order(captures: Mapping[int, Capture]) -> None:
    """Raise CallsDifferError where ranks wait for each other in a cycle."""
    members = {g.name: g.ranks or range(c.world_size) for c in captures.values() for g in c.groups}
    replay = _Replay(captures)
    moving = True
    while moving:
        moved = [replay.advance(rank, members) for rank in captures]
        moving = any(moved)
    if replay.held:
        raise CallsDifferError(_describe_cycle(replay))


def _describe_cycle(replay: _Replay) -> Problem:
    """The ranks of one cycle, each with the call that it waits in."""
    path: list[int] = []
    rank = min(replay.held)
    while rank not in path:
        path.append(rank)
        rank = replay.held[rank].missing()[0]
    cycle = path[path.index(rank) :]
    calls = "; ".join(_describe(r, replay.held[r].entry, replay.held[r].peers) for r in cycle[:_MOST_NAMED])
    text = f"{calls}; each waits for the next"
    held = [replay.held[r] for r in cycle]
    if len(cycle) == 2 and all(call.entry.what not in _MESSAGES for call in held):
        text = f"{name_ranks(sorted(cycle))} make two calls in opposite orders: {text}"
    return hang_problem(text, cycle, held[0].entry.source)


def _describe(rank: int, entry: CapturedEntry, peers: Sequence[int]) -> str:
    place = f" ({entry.source})" if entry.source else ""
    size = f" of {entry.bytes:,} bytes" if entry.bytes else ""
    way = {"send": f" to rank {peers[0]}", "recv": f" from rank {peers[0]}"}.get(entry.what, "")
    return f"rank {rank} waits in {entry.what}{size}{way}{place}"
