"""Stitch captured ranks into the graph of all ranks."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from prism.emulate.capture import Capture, CapturedEntry, Iterations, cut_all
from prism.emulate.classes import Classes, find_classes, sign_of
from prism.emulate.families import Families, find_families
from prism.emulate.workloads import describe_unlike, split_by_work
from prism.emulate.writers import OWN_LANES, Seat, SerialWriter, StreamWriter, name_tag
from prism.simulate.builder import GraphBuilder, ProgramBuilder
from prism.simulate.graph import Graph

_MESSAGES = ("send", "recv")
_MOST_TAGS = 64  # of one slot; more are numbers that count up, and their messages match in order

ClockName = Literal["work", "wall"]
"""CPU ranks: a thread's own running time, or all time; the second where every live rank had a core to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchConfig:
    """How captures become a graph."""

    warmup: int = 3
    gpus_per_node: int = 8
    overlap: bool = True  # CPU only: communication runs beside computation; false where each rank has one core
    compute_scale: float = 1.0  # times of another GPU over those of this one
    clock: ClockName = "work"
    own_times: bool = True  # where every rank was measured each keeps its own times; false where only calls matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Stitched:
    """The graph of all ranks, and what it was made from."""

    graph: Graph
    families: Families
    classes: Classes  # of the graph; `captured` are the ranks whose times and memory stand for each
    num_iterations: int
    compute_spread_pct: float  # of a plain iteration's compute, between iterations and members of a class
    asymmetry: tuple[str, ...]  # ranks that call the same and do not work alike
    issue_order: tuple[tuple[int, ...], ...]  # per class: of an iteration's communication ops, which was issued when
    iteration_signs: tuple[int, ...]  # equal numbers for iterations that make equal calls
    measured: Mapping[int, Iterations]  # the iterations that count, of every captured rank
    iteration_sources: tuple[str, ...]  # the first call of each that a plain iteration does not make


def stitch(
    captures: Mapping[int, Capture],
    config: StitchConfig,
    name: str = "job",
    survey: Mapping[int, Capture] | None = None,
) -> Stitched:
    """One program per class, with the measured work between its calls; groups and ranks of the full world.

    `survey` are logs of ranks that ran unmeasured: they prove the classes and name the peers of ranks not captured.
    """
    ran = {**(survey or {}), **captures}
    families = find_families(ran.values())
    world = next(iter(captures.values())).world_size
    cut = cut_all(captures)
    seen = cut_all(survey) if survey else cut
    window = _choose_window(cut, seen, config.warmup)
    measured = {rank: [parts[i] for i in window] for rank, parts in cut.items()}
    streams = {rank: [e for part in (parts[1:] or parts) for e in part] for rank, parts in seen.items()}
    classes = find_classes(streams, families, world, config.gpus_per_node)
    asymmetry: tuple[str, ...]
    signs, sources = _sign_iterations(measured, families)
    plain = [i for i, sign in enumerate(signs) if sign == Counter(signs).most_common(1)[0][0]]
    if config.own_times:
        classes, asymmetry = _choose_times(classes, measured, plain, world)
    else:
        asymmetry = ()
    lone_core = next(iter(captures.values())).device == "cpu" and not config.overlap
    writing = _Writing(measured, seen, window, families, classes, lone_core, config)
    builder = GraphBuilder(name)
    orders = tuple(writing.write(builder.program(), class_id) for class_id in range(len(classes.captured)))
    _place_ranks(builder, classes, world, config.gpus_per_node)
    _write_groups(builder, families, writing)
    return Stitched(
        graph=builder.build(),
        families=families,
        classes=classes,
        num_iterations=len(window),
        compute_spread_pct=_measure_spread(classes, measured, plain),
        asymmetry=asymmetry,
        issue_order=orders,
        iteration_signs=signs,
        measured=measured,
        iteration_sources=sources,
    )


def _choose_window(cut: Mapping[int, Iterations], seen: Mapping[int, Iterations], warmup: int) -> list[int]:
    """The iterations that count: after warm-up, as many as every rank has; the first only where there is no other.

    Where partners change in turn, those of which the survey shows the partners of ranks that were not captured.
    """
    shortest = min(len(parts) for parts in cut.values())
    window = list(range(min(warmup, shortest - 1), shortest))
    for rank, parts in cut.items():
        calls = {i: _messages(parts[i]) for i in window}
        if rank in seen and _change_partners(calls.values()):
            shown = seen[rank][1:] or seen[rank]  # the iterations that classes are made from
            known = [i for i in window if not calls[i] or i < len(seen[rank]) or _find_like(calls[i], shown)]
            window = known or window
    return window


def _change_partners(window: Iterable[Sequence[CapturedEntry]]) -> bool:
    """Whether iterations that send alike send to others."""
    peers: dict[object, set[object]] = defaultdict(set)
    for calls in window:
        peers[tuple((e.what, e.compared_bytes) for e in calls)].add(tuple((e.group, e.peer) for e in calls))
    return any(len(found) > 1 for found in peers.values())


def _sign_iterations(measured: Mapping[int, Iterations], families: Families) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Which iterations make equal calls, runs of equal calls taken as one, and what makes the others special."""
    numbers: dict[object, int] = {}
    signs: list[int] = []
    for i in range(len(next(iter(measured.values())))):
        calls = tuple(_shorten(sign_of(rank, parts[i], families, frozenset())) for rank, parts in measured.items())
        signs.append(numbers.setdefault(calls, len(numbers)))
    plain = signs.index(Counter(signs).most_common(1)[0][0])
    sources = []
    for i, sign in enumerate(signs):
        extra = ""
        for parts in measured.values():
            usual = {(e.what, e.source) for e in parts[plain] if e.is_communication}
            new = (e.source for e in parts[i] if e.is_communication and (e.what, e.source) not in usual)
            extra = extra or next(new, "")
        sources.append("" if sign == signs[plain] else extra)
    return tuple(signs), tuple(sources)


def _shorten(sign: Sequence[object]) -> tuple[object, ...]:
    return tuple(call for i, call in enumerate(sign) if i == 0 or call != sign[i - 1])


def _choose_times(
    classes: Classes, measured: Mapping[int, Iterations], plain: Sequence[int], world: int
) -> tuple[Classes, tuple[str, ...]]:
    """Say which captured ranks' times stand for each class; ranks that do not work alike get classes of their own."""
    if len(measured) == world:
        # Every rank was measured: each keeps its own times, so that their differences show.
        alone = tuple((r,) for r in range(world))
        named = tuple(classes.by_peer[c] for c in classes.of_rank)
        return Classes(tuple(range(world)), alone, tuple(range(world)), named), ()
    work = {
        rank: statistics.median(sum(e.gap_ns for e in parts[i]) for i in plain if i < len(parts))
        for rank, parts in measured.items()
    }
    of_kind: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(measured):
        of_kind[classes.kind_of(rank)].append(rank)
    clusters = {kind: split_by_work({r: work[r] for r in ranks}) for kind, ranks in of_kind.items()}
    numbers: dict[tuple[int, int], int] = {}
    of_rank = []
    for rank, class_id in enumerate(classes.of_rank):
        found = clusters.get(classes.alike[class_id]) or [sorted(measured)]
        cluster = next((i for i, ranks in enumerate(found) if rank in ranks), len(found) - 1)
        of_rank.append(numbers.setdefault((class_id, cluster), len(numbers)))
    captured: list[tuple[int, ...]] = []
    by_peer: list[frozenset[str]] = []
    alike: list[int] = []
    for class_id, cluster in numbers:
        kind = classes.alike[class_id]
        found = clusters.get(kind) or [sorted(measured)]
        own = [r for r in found[cluster] if classes.of_rank[r] == class_id]
        captured.append((*own, *(r for r in found[cluster] if r not in own)))
        by_peer.append(classes.by_peer[class_id])
        alike.append(kind)
    lines = tuple(line for found in clusters.values() for line in describe_unlike(found, work))
    chosen = Classes(tuple(of_rank), tuple(captured), tuple(alike), tuple(by_peer), classes.unproved, classes.mirrored)
    return chosen, lines


class _Writing:
    """Writes the programs of all classes from the measured ranks and, for peers, from the surveyed ones."""

    def __init__(
        self, measured: Mapping[int, Iterations], seen: Mapping[int, Iterations], window: list[int], families: Families,
        classes: Classes, lone_core: bool, config: StitchConfig,
    ) -> None:  # fmt: skip
        self._measured = measured
        self._seen = seen
        self._window = window
        self._families = families
        self._classes = classes
        self._writer = SerialWriter if lone_core else StreamWriter
        self._config = config
        self._lanes = {family.slot: OWN_LANES + i for i, family in enumerate(families.families)}
        self.used = self._list_slots()
        self._uneven = self._find_uneven()
        self.tagged = frozenset(
            (slot, tag) for slot, tags in self.used.items() if 1 < len(tags) <= _MOST_TAGS for tag in tags
        )

    def write(self, program: ProgramBuilder, class_id: int) -> tuple[int, ...]:
        """The iterations of a class, each entry with the median work of the captured members; the issue order."""
        members = self._classes.captured[class_id]
        rank = members[0]
        head = rank if self._classes.of_rank[rank] == class_id else self._classes.members(class_id)[0]
        seat = Seat(head, self._families, self._classes.by_peer[class_id], self.tagged, self._uneven)
        emitted: list[int] = []
        for number, iteration in enumerate(self._measured[rank]):
            program.step = number
            gaps = self._gaps(members, number)
            out = self._writer(program, seat, self._lanes)
            for entry, gap in zip(self._name_peers(iteration, rank, head, number), gaps, strict=True):
                out.work(entry, round(gap * self._config.compute_scale))
                out.write(entry)
            out.close()
            emitted = out.emitted
        first = min(emitted, default=0)
        return tuple(op - first for op in emitted)

    def _gaps(self, members: Sequence[int], number: int) -> list[float]:
        """The work before each entry: the median of the members that made the same calls."""
        first = self._measured[members[0]][number]
        kinds = [entry.what for entry in first]
        parts = [self._measured[m][number] for m in members]
        alike = [part for part in parts if [entry.what for entry in part] == kinds]
        return [statistics.median(self._work(part[i]) for part in alike) for i in range(len(first))]

    def _work(self, entry: CapturedEntry) -> int:
        return entry.wall_ns if self._config.clock == "wall" else entry.gap_ns

    def _name_peers(
        self, iteration: Sequence[CapturedEntry], rank: int, head: int, number: int
    ) -> Sequence[CapturedEntry]:
        """The calls of `rank` with the peers of `head`, which was surveyed and not captured."""
        calls = _messages(iteration)
        if rank != head and head in self._classes.mirrored:
            return [self._mirror(entry, rank, head) for entry in iteration]
        if rank == head or not calls or head not in self._seen:
            return iteration
        own = [_messages(part) for part in self._seen[head]]
        # Beyond the survey it is the iteration in which the captured rank had these peers; they may change in turn.
        order = [self._window[number], *_find_like(calls, self._seen.get(rank, ())), *range(len(own) - 1, -1, -1)]
        found = next((own[i] for i in order if i < len(own) and _match(own[i], calls)), None)
        if found is None:
            return iteration
        named = iter(found)
        out = []
        for entry in iteration:
            if entry.what in _MESSAGES:
                other = next(named)
                out.append(replace(entry, peer=other.peer, tag=other.tag, group=other.group))
            else:
                out.append(entry)
        return out

    def _mirror(self, entry: CapturedEntry, rank: int, head: int) -> CapturedEntry:
        if entry.what not in _MESSAGES:
            return entry
        family = self._families.by_name[entry.group]
        return replace(entry, peer=entry.peer ^ family.position(rank) ^ family.position(head))

    def _list_slots(self) -> dict[str, set[int]]:
        """Slots that are used, and the tags in each: a framework makes many groups that it never calls."""
        used: dict[str, set[int]] = {}
        everything = [*self._measured.values(), *self._seen.values()]
        for parts in everything:
            for part in parts:
                for entry in part:
                    if entry.is_communication:
                        slot = self._families.by_name[entry.group].slot
                        used.setdefault(slot, set()).update([entry.tag] if entry.what in _MESSAGES else [])
        return used

    def _find_uneven(self) -> frozenset[str]:
        """Slots with an all-to-all whose parts differ: in the size of one rank's parts, or between ranks."""
        found: dict[tuple[str, int], set[int]] = defaultdict(set)
        for parts in (*self._measured.values(), *self._seen.values()):
            for part in parts:
                count: Counter[str] = Counter()
                for entry in part:
                    if entry.what == "all_to_all":
                        slot = self._families.by_name[entry.group].slot
                        count[slot] += 1
                        found[slot, count[slot]].update(
                            entry.sizes or (entry.bytes // self._families.by_name[entry.group].size,)
                        )
        return frozenset(slot for (slot, _), sizes in found.items() if len(sizes) > 1)


def _messages(part: Sequence[CapturedEntry]) -> list[CapturedEntry]:
    return [entry for entry in part if entry.what in _MESSAGES]


def _find_like(calls: Sequence[CapturedEntry], parts: Sequence[Sequence[CapturedEntry]]) -> list[int]:
    """The iterations of a rank that have these messages, peers included."""
    wanted = [(e.what, e.compared_bytes, e.group, e.peer) for e in calls]
    have = ([(e.what, e.compared_bytes, e.group, e.peer) for e in _messages(part)] for part in parts)
    return [i for i, messages in enumerate(have) if messages == wanted]


def _match(one: Sequence[CapturedEntry], two: Sequence[CapturedEntry]) -> bool:
    return [(e.what, e.compared_bytes) for e in one] == [(e.what, e.compared_bytes) for e in two]


def _place_ranks(builder: GraphBuilder, classes: Classes, world: int, per_node: int) -> None:
    ranks = np.arange(world)
    builder.ranks(ranks, classes.of_rank, ranks // per_node, ranks % per_node)


def _write_groups(builder: GraphBuilder, families: Families, writing: _Writing) -> None:
    for family in families.families:
        if family.slot in writing.used:
            tags = [tag for slot, tag in writing.tagged if slot == family.slot]
            for slot in (family.slot, *(name_tag(family.slot, tag) for tag in sorted(tags))):
                builder.groups(slot, np.array(sorted(family.groups)), kind=family.kind)


def _measure_spread(classes: Classes, measured: Mapping[int, Iterations], plain: Sequence[int]) -> float:
    """Half the range of nine in ten plain iterations' work over their median, in percent, at its worst over classes."""
    worst = 0.0
    for members in classes.captured:
        totals = sorted(sum(e.gap_ns for e in measured[rank][i]) for rank in members for i in plain)
        if len(totals) > 1 and statistics.median(totals) > 0:
            low, high = np.percentile(totals, [5, 95])
            worst = max(worst, float((high - low) / 2 / statistics.median(totals) * 100))
    return worst
