"""Rank classes: ranks that run the same program. Those that ran are compared; others are placed by memberships."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

from prism.emulate.capture import CapturedEntry
from prism.emulate.families import Families
from prism.emulate.memberships import assign_others

_MESSAGES = ("send", "recv")
_MOST_MODES = 4  # slots with messages whose way of naming peers is chosen jointly
Sign = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Classes:
    """Which class each rank of the world is in, and how each class's program is to be read."""

    of_rank: tuple[int, ...]
    captured: tuple[tuple[int, ...], ...]  # per class the ranks that ran
    alike: tuple[int, ...] = ()  # per class a number; classes of one number differ in their peers only
    by_peer: tuple[frozenset[str], ...] = ()  # per class the slots whose messages name a fixed position
    unproved: tuple[int, ...] = ()  # ranks to run next: nothing that ran has their memberships
    mirrored: frozenset[int] = frozenset()  # ranks whose positions differ from their peers' in the same bits

    def twins(self, live: Sequence[int]) -> tuple[int, ...]:
        """For each rank the live rank that stands for it: itself, or the first live one that is alike."""
        first: dict[int, int] = {}
        for rank in live:
            first.setdefault(self.kind_of(rank), rank)
        present, some = set(live), live[0]
        return tuple(r if r in present else first.get(self.kind_of(r), some) for r in range(len(self.of_rank)))

    def kind_of(self, rank: int) -> int:
        """Ranks of one kind do the same work, but may exchange messages with different peers."""
        class_id = self.of_rank[rank]
        return self.alike[class_id] if self.alike else class_id

    def kinds(self) -> list[list[int]]:
        """All ranks, by kind."""
        found: dict[int, list[int]] = defaultdict(list)
        for rank in range(len(self.of_rank)):
            found[self.kind_of(rank)].append(rank)
        return [found[kind] for kind in sorted(found, key=lambda kind: found[kind][0])]

    def members(self, class_id: int) -> list[int]:
        """The ranks of a class."""
        return [rank for rank, c in enumerate(self.of_rank) if c == class_id]


def find_classes(
    streams: Mapping[int, Sequence[CapturedEntry]], families: Families, world_size: int, per_node: int = 8
) -> Classes:
    """Group the ranks that ran by what they call, then place the others."""
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(streams):
        kinds[sign_of(rank, streams[rank], families)].append(rank)
    captured: list[tuple[int, ...]] = []
    alike: list[int] = []
    by_peer: list[frozenset[str]] = []
    folded: set[int] = set()
    for kind, ranks in enumerate(kinds.values()):
        found = _split_by_peers(ranks, streams, families)
        if len(found) > 1 and _is_butterfly(ranks, streams, families):
            folded.add(len(captured))
            found = [(frozenset(_message_slots(streams[ranks[0]], families)), list(ranks))]
        for slots, members in found:
            captured.append(tuple(members))
            alike.append(kind)
            by_peer.append(slots)
    own = {rank: c for c, members in enumerate(captured) for rank in members}
    placed = assign_others(own, families, world_size, per_node)
    classes = Classes(placed.of_rank, tuple(captured), tuple(alike), tuple(by_peer), placed.unproved)
    return _unfold(classes, folded) if folded else classes


def _message_slots(entries: Sequence[CapturedEntry], families: Families) -> set[str]:
    return {families.by_name[e.group].slot for e in entries if e.what in _MESSAGES}


def _is_butterfly(ranks: Sequence[int], streams: Mapping[int, Sequence[CapturedEntry]], families: Families) -> bool:
    """Whether all of these ranks reach their peers by flipping the same bits of their own position."""

    def flipped(rank: int) -> list[int]:
        messages = [e for e in streams[rank] if e.what in _MESSAGES]
        return [entry.peer ^ families.by_name[entry.group].position(rank) for entry in messages]

    first = flipped(ranks[0])
    return all(flipped(rank) == first for rank in ranks[1:])


def _unfold(classes: Classes, folded: set[int]) -> Classes:
    """A graph names peers by position or distance, so every rank of a butterfly is written as a class of its own."""
    numbers: dict[tuple[int, int], int] = {}
    mirrored = frozenset(rank for rank, c in enumerate(classes.of_rank) if c in folded)
    keys = [(c, rank if rank in mirrored else -1) for rank, c in enumerate(classes.of_rank)]
    of_rank = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
    captured = []
    for class_id, rank in numbers:
        ran = classes.captured[class_id]
        captured.append((rank, *(r for r in ran if r != rank)) if rank in ran else ran)
    return Classes(
        of_rank,
        tuple(captured),
        tuple(classes.alike[c] for c, _ in numbers),
        tuple(classes.by_peer[c] for c, _ in numbers),
        classes.unproved,
        mirrored,
    )


def sign_of(
    rank: int, entries: Sequence[CapturedEntry], families: Families, by_peer: frozenset[str] | None = None
) -> Sign:
    """What a rank calls, as others of its class would call it: without peers, or with each by position or distance."""
    out: list[tuple[object, ...]] = []
    for entry in entries:
        if not entry.is_communication:
            if entry.what == "step":
                out.append(("step",))
            continue
        family = families.by_name[entry.group]
        peer: object = entry.peer
        if entry.what in _MESSAGES:
            if by_peer is None:
                peer = -1
            elif family.slot not in by_peer:
                peer = ("shift", (entry.peer - family.position(rank)) % family.size)
        out.append((entry.what, family.slot, entry.compared_bytes, peer, entry.tag))
    return tuple(out)


def _split_by_peers(
    ranks: Sequence[int], streams: Mapping[int, Sequence[CapturedEntry]], families: Families
) -> list[tuple[frozenset[str], list[int]]]:
    """Classes of ranks that are alike but for their peers, with the naming of peers that needs fewest."""
    slots = sorted(_message_slots(streams[ranks[0]], families))
    if not slots:
        return [(frozenset(), list(ranks))]
    best: tuple[int, frozenset[str], dict[Hashable, list[int]]] | None = None
    free, rest = slots[:_MOST_MODES], slots[_MOST_MODES:]
    for chosen in product((False, True), repeat=len(free)):
        by_peer = frozenset(chain((s for s, fixed in zip(free, chosen, strict=True) if fixed), rest))
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for rank in ranks:
            groups[sign_of(rank, streams[rank], families, by_peer)].append(rank)
        if best is None or len(groups) < best[0]:
            best = (len(groups), by_peer, groups)
    assert best is not None
    everything = frozenset(slots)
    # A class of one rank names its peers as they are.
    return [(best[1] if len(members) > 1 else everything, members) for members in best[2].values()]


def choose_ranks(classes: Classes, *, check: bool, at_once: int) -> list[int]:
    """Ranks to capture: the first of each kind, its last to check that they are alike, and more up to `at_once`."""
    chosen: list[int] = []
    for members in classes.kinds():
        chosen.append(members[0])
        if check and len(members) > 1:
            chosen.append(members[-1])
    world = len(classes.of_rank)
    if at_once >= world:
        return list(range(world))
    for rank in range(world):
        if len(chosen) >= at_once:
            break
        if rank not in chosen:
            chosen.append(rank)
    return sorted(chosen)
