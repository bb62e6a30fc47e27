"""Assign ranks that did not run to classes, by the memberships in which those that ran differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from prism.emulate.families import Families, Family

_MOST_VALUES = 16  # positions or groups of a family that are each worth a run
_MOST_PROBES = 48
_NUM_PLACES = 4  # features of a rank's place, the last ones of the list

Feature = Callable[[int], Hashable]


@dataclass(frozen=True, slots=True)
class Placed:
    """The class of every rank, and ranks whose class is not proved by one that ran."""

    of_rank: tuple[int, ...]
    unproved: tuple[int, ...]


def assign_others(own: Mapping[int, int], families: Families, world: int, per_node: int) -> Placed:
    """Give every rank the class of those with its memberships; `own` are the classes of the ranks that ran."""
    if len(own) == world:
        return Placed(tuple(own[r] for r in range(world)), ())
    if len(set(own.values())) == 1:
        only = next(iter(own.values()))
        return Placed((only,) * world, ())
    chosen = _choose_features(own, list_features(families, world, per_node), world)
    seen: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for rank, class_id in own.items():
        seen[chosen(rank)][class_id] += 1
    usual = Counter(own.values()).most_common(1)[0][0]
    of_rank: list[int] = []
    unproved: dict[Hashable, int] = {}
    for rank in range(world):
        if rank in own:
            of_rank.append(own[rank])
            continue
        value = chosen(rank)
        if value not in seen:
            unproved.setdefault(value, rank)
        of_rank.append(seen[value].most_common(1)[0][0] if value in seen else usual)
    return Placed(tuple(of_rank), tuple(sorted(unproved.values())[:_MOST_PROBES]))


def choose_probes(
    families: Families, world: int, per_node: int, ran: Sequence[int], most: int = _MOST_PROBES
) -> list[int]:
    """Further ranks to run, which together have every membership that few enough ranks share."""
    features = list_features(families, world, per_node)
    wanted: set[tuple[int, Hashable]] = set()
    have: dict[int, set[tuple[int, Hashable]]] = {}
    for rank in range(world):
        have[rank] = {(i, feature(rank)) for i, feature in enumerate(features)}
        wanted |= have[rank]
    many = Counter(i for i, _ in wanted)
    wanted = {(i, value) for i, value in wanted if many[i] <= _MOST_VALUES}
    for rank in ran:
        wanted -= have[rank]
    probes: list[int] = []
    candidates = sorted({world - 1, world // 2, 1 % world, *range(0, world, max(1, world // 2048))})
    while wanted and len(probes) < most:
        best = max(candidates, key=lambda rank: len(have[rank] & wanted))
        if not have[best] & wanted:
            # What is left belongs to few ranks: take one that has it.
            best = next((r for r in range(world) if have[r] & wanted), -1)
            if best < 0:
                break
        wanted -= have[best]
        probes.append(best)
    return [rank for rank in probes if rank not in ran]


def list_features(families: Families, world: int, per_node: int) -> list[Feature]:
    """Properties in which ranks of two classes may differ: groups from coarse to fine, then hosts, then the rank."""
    coarse: list[Feature] = []
    fine: list[Feature] = []
    places: list[Feature] = [
        lambda r: r % per_node == 0,
        lambda r: r % per_node,
        lambda r: _third(r // per_node, -(-world // per_node)),
        lambda r: _third(r, world),
    ]
    for family in families.families:
        if family.slot == "world":
            continue
        coarse.append(lambda r, f=family: r in f.seat)  # type: ignore[misc]
        coarse.append(lambda r, f=family: _third(f.position(r), f.size))  # type: ignore[misc]
        coarse.append(lambda r, f=family: _third(_group(f, r), len(f.groups)))  # type: ignore[misc]
        fine.append(lambda r, f=family: f.position(r))  # type: ignore[misc]
        fine.append(lambda r, f=family: _group(f, r))  # type: ignore[misc]
    return [*coarse, *fine, *places]


def _choose_features(own: Mapping[int, int], features: Sequence[Feature], world: int) -> Feature:
    """The feature, or pair of them, that separates the classes with fewest values unseen; the best one if none does."""
    scored: list[tuple[int, int, int, int, Feature]] = []
    for number, feature in enumerate([*features, *_pairs(features)]):
        if number == len(features) and min(entry[0] for entry in scored) == 0:
            break
        mixed = _count_mixed(own, feature)
        unseen = len({feature(r) for r in range(world)} - {feature(r) for r in own}) if mixed == 0 else world
        scored.append((mixed, _tier(number, len(features)), unseen, number, feature))
        if mixed == 0 and number >= len(features):
            break
    return min(scored, key=lambda entry: entry[:4])[4]


def _tier(number: int, num_single: int) -> int:
    """Memberships of groups say more than where a rank sits, and one of them more than two together."""
    return 2 if number >= num_single else int(number >= num_single - _NUM_PLACES)


def _pairs(features: Sequence[Feature]) -> list[Feature]:
    return [lambda r, a=a, b=b: (a(r), b(r)) for a, b in combinations(features, 2)]  # type: ignore[misc]


def _count_mixed(own: Mapping[int, int], feature: Feature) -> int:
    """How many ranks that ran are not of the class that most of their value are in."""
    seen: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for rank, class_id in own.items():
        seen[feature(rank)][class_id] += 1
    return sum(sum(counts.values()) - max(counts.values()) for counts in seen.values())


def _group(family: Family, rank: int) -> int:
    return family.seat[rank][0] if rank in family.seat else -1


def _third(place: int, count: int) -> str:
    """First, last or between."""
    if place < 0:
        return "none"
    return "first" if place == 0 else "last" if place == count - 1 else "between"
