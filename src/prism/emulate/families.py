"""Families of process groups: groups made alike that together cover the world, such as all tensor-parallel groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prism.emulate.capture import Capture, CapturedGroup

_KIND_WORDS = (
    ("embedding", "embedding"), ("expert", "ep"), ("pipeline", "pp"), ("context", "cp"), ("tensor", "tp"),
    ("sequence", "tp"), ("data", "dp"), ("fsdp", "dp"), ("shard", "dp"), ("replica", "dp"), ("zero", "dp"),
)  # fmt: skip
_KIND_PARTS = ("dp", "tp", "pp", "cp", "ep")


@dataclass(slots=True)
class Family:
    """Disjoint groups of one size that were made at one place; a rank is in at most one of them."""

    slot: str
    kind: str
    size: int
    groups: list[tuple[int, ...]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    seat: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> (group, position)

    def add(self, name: str, ranks: Sequence[int]) -> None:
        """Take in one group."""
        self.names.add(name)
        for position, rank in enumerate(ranks):
            self.seat[rank] = (len(self.groups), position)
        self.groups.append(tuple(ranks))

    def position(self, rank: int) -> int:
        """A rank's place in its group; -1 where it is in none."""
        return self.seat[rank][1] if rank in self.seat else -1


@dataclass(frozen=True, slots=True)
class Families:
    """All families of a job, and the way from a group's name to its family."""

    families: tuple[Family, ...]
    by_name: dict[str, Family]


def find_families(captures: Iterable[Capture]) -> Families:
    """Sort the groups that the captured ranks made into families; groups that only members saw are completed."""
    known = list(captures)
    world = known[0].world_size
    merged: dict[str, CapturedGroup] = {}
    for capture in known:
        for group in capture.groups:
            merged.setdefault(group.name, group)
    found: dict[tuple[str, str, int], list[Family]] = {}
    by_name: dict[str, Family] = {}
    for name, group in merged.items():
        ranks = group.ranks or tuple(range(world))
        instances = found.setdefault((group.label, group.source, len(ranks)), [])
        home = next((f for f in instances if not any(r in f.seat for r in ranks)), None)
        if home is None:
            home = Family(slot="", kind=_guess_kind(group.label, len(ranks), world), size=len(ranks))
            instances.append(home)
        home.add(name, ranks)
        by_name[name] = home
    families = [f for instances in found.values() for f in instances]
    _name_slots(families, {id(f): key[0] for key, instances in found.items() for f in instances})
    seen = {c.rank for c in known}
    for family in families:
        _complete(family, world, seen)
    return Families(tuple(families), by_name)


def _guess_kind(label: str, size: int, world: int) -> str:
    """What a group is for, from the name the framework gave it."""
    lowered = label.lower()
    parts = re.split(r"[^a-z]+", lowered)
    for kind in _KIND_PARTS:
        if kind in parts:
            return kind
    for word, kind in _KIND_WORDS:
        if word in lowered:
            return kind
    return "dp" if size == world and world > 1 and lowered == "default_pg" else "unknown"


def _name_slots(families: list[Family], labels: dict[int, str]) -> None:
    used: set[str] = set()
    for family in families:
        label = labels[id(family)].lower().removeprefix("mesh_")
        base = "world" if label == "default_pg" else label if label not in ("", "undefined") else family.kind
        slot, number = base, 1
        while slot in used:
            number += 1
            slot = f"{base}{number}"
        used.add(slot)
        family.slot = slot


def _complete(family: Family, world: int, captured: set[int]) -> None:
    """Where ranks made only their own group, the others follow by moving it: meshes are regular."""
    if len(family.seat) == world or not all(any(r in captured for r in group) for group in family.groups):
        return
    first = family.groups[0]
    stride = first[1] - first[0] if len(first) > 1 else 1
    if stride < 1 or any(_tile(g[0], stride, family.size) != g for g in family.groups):
        return
    for rank in range(world):
        group = _tile(rank, stride, family.size)
        # A rank that ran and is in none of the groups is in none.
        if group[-1] < world and not any(r in family.seat or r in captured for r in group):
            family.add(f"{family.slot}@{rank}", group)


def _tile(rank: int, stride: int, size: int) -> tuple[int, ...]:
    """The group of evenly spaced ranks that holds `rank` when such groups tile the world."""
    first = rank - (rank // stride % size) * stride
    return tuple(first + i * stride for i in range(size))
