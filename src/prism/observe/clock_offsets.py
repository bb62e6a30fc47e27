"""Offsets between the clocks of exporters, read from what happens at one moment and is stamped by several of them.

The ranks of a worker send over all rails of their host at once, and an exchange goes both ways at once. Where such
messages are stamped by different exporters, the difference is that of their clocks, the same for all messages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.medians import find_median, take_median

Ints = NDArray[np.int64]

_SAMPLE = 80_000  # flows that offsets are estimated from
_FAR_NS = 20_000_000  # larger differences are not looked for, nor such as come near the distance of messages
_TIGHT_NS = 100_000  # spread of the differences between messages of one moment
_CLOSE = 0.7  # share of the differences that lie within this spread
_ENOUGH = 8  # messages that make a comparison
_SMALLEST_NS = 150_000  # offsets below are left alone
_MOST_STREAMS = 4_000
_CONSISTENT = 0.6  # share of the differences that the offsets of exporters account for


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """How far the clock of each exporter is ahead of the middle one, in nanoseconds."""

    offsets_ns: dict[str, int]

    @property
    def note(self) -> str | None:
        """A line for the reader of a diagnosis; None where nothing was done."""
        if not self.offsets_ns:
            return None
        largest = max(self.offsets_ns.values(), key=abs)
        return f"clocks of {len(self.offsets_ns)} exporters were set right by up to {abs(largest) / 1e6:.2f} ms"


def align_clocks(flows: pl.DataFrame, topology: pl.DataFrame | None) -> tuple[pl.DataFrame, ClockOffsets]:
    """FLOWS on one clock, and what was taken off."""
    column = _choose_column(flows, topology)
    if column is None or flows.height < 100:
        return flows, ClockOffsets({})
    sample = flows.head(_SAMPLE)
    values, named = _name_exporters(sample, column, topology)
    exporter = sample[column].replace_strict(values, named, default="", return_dtype=pl.String)
    found = estimate_offsets(sample.with_columns(exporter.alias("_exporter")), topology)
    if not found.offsets_ns:
        return flows, found
    values, named = _name_exporters(flows, column, topology)
    offsets = named.replace_strict(found.offsets_ns, default=0, return_dtype=pl.Int64)
    shift = flows[column].replace_strict(values, offsets, default=0, return_dtype=pl.Int64)
    return flows.with_columns(pl.col("start_ns") - shift, pl.col("end_ns") - shift), found


def _choose_column(flows: pl.DataFrame, topology: pl.DataFrame | None) -> str | None:
    """What tells who stamped a flow: the exporter it names, or its path, or where its sender sits."""
    for column in ("exporter", "path"):
        if column in flows.columns and flows[column].null_count() == 0:
            return column
    return "src" if topology is not None and topology["switch"].null_count() == 0 else None


def _name_exporters(flows: pl.DataFrame, column: str, topology: pl.DataFrame | None) -> tuple[pl.Series, pl.Series]:
    """The values of a column, and the exporter of each: as named, or the first switch on a path, or the sender's."""
    if column == "src" and topology is not None:
        table = topology.unique("address")
        return table["address"], table["switch"]
    values = flows[column].unique()
    return values, values if column == "exporter" else values.str.split(">").list.first()


def estimate_offsets(flows: pl.DataFrame, topology: pl.DataFrame | None) -> ClockOffsets:
    """Offsets from a sample of flows with `_exporter`; empty where clocks agree or cannot be compared."""
    if flows["_exporter"].n_unique() < 2:
        return ClockOffsets({})
    edges = _compare_streams(flows, topology)
    offsets = _settle(edges)
    if not offsets:
        return ClockOffsets({})
    settled = {name: round(value) for name, value in offsets.items()}
    return ClockOffsets(settled if max(map(abs, settled.values())) >= _SMALLEST_NS else {})


def _compare_streams(flows: pl.DataFrame, topology: pl.DataFrame | None) -> dict[tuple[str, str], list[float]]:
    """For pairs of exporters, the differences between their stamps of like messages of one moment."""
    host = flows
    if topology is not None:
        table = topology.unique("address")
        host = flows.with_columns(
            pl.col(c).replace_strict(table["address"], table["host"], default=pl.col(c), return_dtype=pl.String)
            for c in ("src", "dst")
        )
    size = ((pl.col("bytes") + 1).log() * 10).round().alias("size")
    ends = [pl.min_horizontal("src", "dst").alias("a"), pl.max_horizontal("src", "dst").alias("b")]
    streams = (
        host.sort("start_ns")
        .group_by(*ends, size, "src", "_exporter", maintain_order=True)
        .agg("start_ns", (pl.col("end_ns") - pl.col("start_ns")).median().alias("took"))
        .filter(pl.col("start_ns").list.len() >= _ENOUGH)
        .head(_MOST_STREAMS)
    )
    beside: dict[tuple[str, str, float], list[tuple[str, str, Ints, float]]] = defaultdict(list)
    for (a, b, size_of, src, exporter, took), starts in zip(
        streams.drop("start_ns").iter_rows(), streams["start_ns"], strict=True
    ):
        beside[a, b, size_of].append((src, exporter, np.unique(starts.to_numpy()), float(took or 0)))
    edges: dict[tuple[str, str], list[float]] = defaultdict(list)
    for members in beside.values():
        first_src, first, times, took = max(members, key=lambda m: len(m[2]))
        for src, exporter, others, _ in members:
            if exporter == first:
                continue
            # An answer follows its cause; only messages that overlap are surely both ways at once.
            reach = min(_FAR_NS, 0.4 * float(take_median(np.diff(times))) if len(times) > 1 else 0.0)
            reach = reach if src == first_src else min(took, reach)
            shift = _same_moments(times, others, reach)
            if not np.isnan(shift):
                edges[first, exporter].append(shift)
    return edges


@numba.njit(cache=True, nogil=True)
def _same_moments(times: Ints, others: Ints, reach: float) -> float:
    """The constant difference between two streams of messages; nan where there is none. Both are in order."""
    near = np.empty(len(others))
    num = at = 0
    for k in range(len(others)):
        while at < len(times) - 1 and times[at] < others[k]:
            at += 1
        before, after = others[k] - times[max(at - 1, 0)], others[k] - times[at]
        nearest = before if abs(before) <= abs(after) else after
        if abs(nearest) <= reach:
            near[num] = nearest
            num += 1
    if num < max(_ENOUGH, 0.7 * len(others)):
        return np.nan
    middle = find_median(near[:num].copy())
    tight = 0
    for k in range(num):
        tight += abs(near[k] - middle) <= _TIGHT_NS
    return middle if tight >= _CLOSE * num else np.nan


def _settle(edges: dict[tuple[str, str], list[float]]) -> dict[str, float]:
    """One offset per exporter from all differences; exporters that share no messages keep clocks of their own.

    Clocks make all differences agree, whatever way round; what does not was never stamped at one moment.
    """
    links: dict[str, dict[str, float]] = defaultdict(dict)
    for (a, b), values in edges.items():
        links[a][b] = float(np.median(values))
        links[b][a] = -links[a][b]
    offsets: dict[str, float] = {}
    settled: set[str] = set()
    for start in sorted(links, key=lambda n: -len(links[n])):
        if start in settled:
            continue
        island = {start: 0.0}
        queue = [start]
        while queue:
            here = queue.pop(0)
            for there, shift in links[here].items():
                if there not in island:
                    island[there] = island[here] + shift
                    queue.append(there)
        settled |= island.keys()
        left = [abs(v - island[b] + island[a]) <= _TIGHT_NS for (a, b), vs in edges.items() if a in island for v in vs]
        if np.mean(left) < _CONSISTENT:
            continue
        middle = float(np.median(list(island.values())))
        offsets |= {name: value - middle for name, value in island.items()}
    return offsets
