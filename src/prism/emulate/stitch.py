"""Stitch captured ranks into the graph of all ranks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prism.emulate.capture import Capture, CapturedEntry, check_iterations, cut_iterations
from prism.emulate.classes import Classes, find_classes
from prism.emulate.families import Families, find_families
from prism.emulate.writers import OWN_LANES, Seat, SerialWriter, StreamWriter
from prism.simulate.builder import GraphBuilder, ProgramBuilder
from prism.simulate.graph import Graph

_MESSAGES = ("send", "recv")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stitched:
    """The graph of all ranks, and what it was made from."""

    graph: Graph
    families: Families
    classes: Classes
    num_iterations: int
    compute_spread_pct: float  # of an iteration's compute, between iterations and members of a class
    asymmetry: tuple[str, ...]  # ranks thought alike that were not
    issue_order: tuple[tuple[int, ...], ...]  # per class: of an iteration's communication ops, which was issued when


def stitch(captures: Mapping[int, Capture], config: StitchConfig, name: str = "job") -> Stitched:
    """One program per class, with the measured work between its calls; groups and ranks of the full world."""
    families = find_families(captures.values())
    cut = {rank: cut_iterations(capture, config.warmup) for rank, capture in captures.items()}
    count = min(len(parts) for parts in cut.values())
    cut = {rank: parts[-count:] for rank, parts in cut.items()}
    for rank, parts in cut.items():
        check_iterations(captures[rank], parts)
    world = next(iter(captures.values())).world_size
    classes = find_classes({rank: parts[-1] for rank, parts in cut.items()}, families, world)
    asymmetry = _describe_asymmetry(classes, cut, families)
    if len(captures) == world:
        # Every rank was measured: each keeps its own times, so that their differences show.
        classes = Classes(tuple(range(world)), tuple((r,) for r in range(world)))
    builder = GraphBuilder(name)
    single = next(iter(captures.values())).device == "cpu" and not config.overlap
    orders = []
    for class_id, members in enumerate(classes.captured):
        program = builder.program()
        orders.append(_write_program(program, members, cut, families, classes.members(class_id), single, config))
    _place_ranks(builder, classes, world, config.gpus_per_node)
    _write_groups(builder, families, cut)
    return Stitched(
        graph=builder.build(),
        families=families,
        classes=classes,
        num_iterations=count,
        compute_spread_pct=_measure_spread(classes, cut),
        asymmetry=asymmetry,
        issue_order=tuple(orders),
    )


def _place_ranks(builder: GraphBuilder, classes: Classes, world: int, per_node: int) -> None:
    ranks = np.arange(world)
    builder.ranks(ranks, classes.of_rank, ranks // per_node, ranks % per_node)


def _write_groups(
    builder: GraphBuilder, families: Families, cut: Mapping[int, Sequence[Sequence[CapturedEntry]]]
) -> None:
    """Only families that somebody uses: a framework makes many groups that it never calls."""
    used = {families.by_name[e.group].slot for parts in cut.values() for e in parts[-1] if e.is_communication}
    for family in families.families:
        if family.slot in used:
            builder.groups(family.slot, np.array(sorted(family.groups)), kind=family.kind)


def _write_program(
    program: ProgramBuilder, members: Sequence[int], cut: Mapping[int, list[tuple[CapturedEntry, ...]]],
    families: Families, ranks: Sequence[int], single: bool, config: StitchConfig,
) -> tuple[int, ...]:  # fmt: skip
    """The iterations of a class, each entry with the median work of the captured members; returns the issue order."""
    emitted: list[int] = []
    rank = members[0]
    writer = SerialWriter if single else StreamWriter
    lanes = {family.slot: OWN_LANES + i for i, family in enumerate(families.families)}
    for number, iteration in enumerate(cut[rank]):
        program.step = number
        others = [cut[m][number] for m in members if len(cut[m][number]) == len(iteration)]
        gaps = [statistics.median(_work(o[i], config.clock) for o in others) for i in range(len(iteration))]
        out = writer(program, Seat(rank, tuple(ranks), families), lanes)
        for entry, gap in zip(iteration, gaps, strict=True):
            out.work(entry, round(gap * config.compute_scale))
            out.write(entry)
        out.close()
        emitted = out.emitted
    first = min(emitted, default=0)
    return tuple(op - first for op in emitted)


def _work(entry: CapturedEntry, clock: ClockName) -> int:
    return entry.wall_ns if clock == "wall" else entry.gap_ns


def _describe_asymmetry(
    classes: Classes, cut: Mapping[int, list[tuple[CapturedEntry, ...]]], families: Families
) -> tuple[str, ...]:
    """Captured ranks at one place of the pipeline that do not call the same."""
    lines = []
    heads = [members[0] for members in classes.captured]
    for i, one in enumerate(heads):
        for two in heads[i + 1 :]:
            same_place = all(
                f.position(one) == f.position(two) for f in families.families if f.kind == "pp" and f.size > 1
            )
            uses_messages = any(e.what in _MESSAGES for e in (*cut[one][-1], *cut[two][-1]))
            if same_place and not uses_messages:
                lines.append(_compare(one, two, cut))
    return tuple(lines)


def _compare(one: int, two: int, cut: Mapping[int, list[tuple[CapturedEntry, ...]]]) -> str:
    first = [e for e in cut[one][-1] if e.is_communication]
    second = [e for e in cut[two][-1] if e.is_communication]
    for a, b in zip(first, second, strict=False):
        if (a.what, a.bytes) != (b.what, b.bytes):
            return (
                f"rank {one} calls {a.what} of {a.bytes} bytes ({a.source}) where rank {two} calls {b.what} of "
                f"{b.bytes} bytes ({b.source})"
            )
    return f"rank {one} makes {len(first)} calls in an iteration, rank {two} makes {len(second)}"


def _measure_spread(classes: Classes, cut: Mapping[int, list[tuple[CapturedEntry, ...]]]) -> float:
    """Half the range of nine in ten iterations' work over their median, in percent, at its worst over classes."""
    worst = 0.0
    for members in classes.captured:
        totals = sorted(sum(e.gap_ns for e in iteration) for rank in members for iteration in cut[rank])
        if len(totals) > 1 and statistics.median(totals) > 0:
            low, high = np.percentile(totals, [5, 95])
            worst = max(worst, float((high - low) / 2 / statistics.median(totals) * 100))
    return worst
