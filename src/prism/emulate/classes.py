"""Rank classes: ranks that run the same program, told apart by what the captured ones did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prism.emulate.capture import Capture, CapturedEntry
from prism.emulate.families import Families, Family
from prism.errors import BadConfigError

_MESSAGES = ("send", "recv")
Sign = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Classes:
    """Which class each rank of the world is in, and which captured ranks stand for each class."""

    of_rank: tuple[int, ...]
    captured: tuple[tuple[int, ...], ...]

    def twins(self, live: Sequence[int]) -> tuple[int, ...]:
        """For each rank the live rank that stands for it: itself, or the first live one of its class."""
        first: dict[int, int] = {}
        for rank in live:
            first.setdefault(self.of_rank[rank], rank)
        present = set(live)
        return tuple(r if r in present else first[c] for r, c in enumerate(self.of_rank))

    def members(self, class_id: int) -> list[int]:
        """The ranks of a class."""
        return [rank for rank, c in enumerate(self.of_rank) if c == class_id]


def find_classes(streams: Mapping[int, Sequence[CapturedEntry]], families: Families, world_size: int) -> Classes:
    """Group captured ranks by what they call, then give every other rank the class of its place in the pipeline."""
    ranks = sorted(streams)
    by_shift = {r: _sign(r, streams[r], families, by_shift=True) for r in ranks}
    by_peer = {r: _sign(r, streams[r], families, by_shift=False) for r in ranks}
    heads: list[int] = []
    own: dict[int, int] = {}
    for rank in ranks:
        alike = (i for i, h in enumerate(heads) if by_shift[h] == by_shift[rank] or by_peer[h] == by_peer[rank])
        own[rank] = next(alike, len(heads))
        if own[rank] == len(heads):
            heads.append(rank)
    places = _find_places(own, families, world_size)
    of_rank = tuple(own[r] if r in own else _class_of(r, own, places) for r in range(world_size))
    captured = tuple(tuple(r for r in ranks if own[r] == c) for c in range(len(heads)))
    return Classes(of_rank, captured)


def _sign(rank: int, entries: Sequence[CapturedEntry], families: Families, *, by_shift: bool) -> Sign:
    """What a rank calls, as others of its class would call it: peers by distance or by position."""
    out: list[tuple[object, ...]] = []
    for entry in entries:
        if not entry.is_communication:
            continue
        family = families.by_name[entry.group]
        peer = entry.peer
        if entry.what in _MESSAGES and by_shift:
            peer = (entry.peer - family.position(rank)) % family.size
        # Sizes of an uneven exchange follow the data, not the class.
        size = -1 if entry.what == "all_to_all" else entry.bytes
        out.append((entry.what, family.slot, size, peer))
    return tuple(out)


def _find_places(own: Mapping[int, int], families: Families, world_size: int) -> Family | None:
    """The family whose positions tell the classes apart, such as the pipeline; None where there is one class."""
    if len(set(own.values())) == 1:
        return None
    best: tuple[int, int, Family] | None = None
    for family in families.families:
        seen: dict[int, set[int]] = {}
        for rank, class_id in own.items():
            seen.setdefault(family.position(rank), set()).add(class_id)
        whole = len(family.seat) == world_size and set(seen) == set(range(family.size))
        if whole and len(seen) > 1:
            mixed = sum(len(classes) - 1 for classes in seen.values())
            if best is None or (mixed, family.size) < best[:2]:
                best = (mixed, family.size, family)
    return best[2] if best else None


def _class_of(rank: int, own: Mapping[int, int], places: Family | None) -> int:
    """The class of an uncaptured rank: that of the last captured one at its place, since the first is often special."""
    near = [r for r in own if places is None or places.position(r) == places.position(rank)]
    if not near:
        raise BadConfigError(f"no captured rank stands for rank {rank}; add it, or one like it, to --ranks")
    return own[max(near)]


def choose_ranks(classes: Classes, *, check: bool, company: int) -> list[int]:
    """Ranks to capture: the first of each class, its last to check that they are alike, and company on this machine."""
    chosen: list[int] = []
    for class_id in range(len(classes.captured)):
        members = classes.members(class_id)
        chosen.append(members[0])
        if check and len(members) > 1:
            chosen.append(members[-1])
    if company >= len(classes.of_rank):
        return list(range(len(classes.of_rank)))
    for rank in range(len(classes.of_rank)):
        if len(chosen) >= company:
            break
        if rank not in chosen:
            chosen.append(rank)
    return sorted(chosen)


def streams_of(captures: Mapping[int, Capture]) -> dict[int, tuple[CapturedEntry, ...]]:
    """Everything each captured rank did."""
    return {rank: capture.entries for rank, capture in captures.items()}
