"""Offsets between the clocks of exporters, from simultaneous events that several of them time-stamp.

The ranks of a worker send over all rails of their host at once, and an exchange goes both ways at once. If such
messages are stamped by different exporters, the difference is that of their clocks, the same for all messages.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.traffic.medians import find_median

Ints = NDArray[np.int64]

_SAMPLE = 300_000  # flows that offsets are estimated from
_FAR_NS = 20_000_000  # larger differences are not looked for
_TIGHT_NS = 100_000  # spread of the differences between messages of one moment
_CLOSE = levels.SHARE_LARGE  # share of the messages that have one difference, within this spread
_ENOUGH = levels.MIN_STATISTICS  # messages that make a comparison
_CLEARLY = levels.SHARE_LARGE  # times the root of how many messages a difference fits: any other one fits fewer by this
_OVERLAP = levels.SHARE_HALF  # of what a message takes
_CONSISTENT = levels.SHARE_MAJORITY  # share of the differences that the offsets of exporters account for
_MOST_STREAMS = levels.MAX_RECORDS
_MOST_MESSAGES = levels.SAMPLED_MESSAGES  # of a stream
_MOST_TIMES = levels.MIN_EVENTS  # that two exporters are compared


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
    """The column that shows which exporter stamped a flow: its exporter, its path, or its sender's switch."""
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


@dataclass(frozen=True, slots=True)
class StreamStarts:
    """When the messages from one host to another begin and end, each in order, as one exporter stamps them."""

    src: str
    exporter: str
    begun: Ints
    done: Ints
    took_ns: float  # as a rule


def estimate_offsets(flows: pl.DataFrame, topology: pl.DataFrame | None) -> ClockOffsets:
    """Offsets from a sample of flows with `_exporter`; empty where clocks agree or cannot be compared."""
    if flows["_exporter"].n_unique() < 2:
        return ClockOffsets({})
    edges = _compare_streams(flows, topology)
    offsets = _settle(edges)
    if not offsets:
        return ClockOffsets({})
    settled = {name: round(value) for name, value in offsets.items()}
    return ClockOffsets(settled if max(map(abs, settled.values())) >= _TIGHT_NS else {})


def _compare_streams(flows: pl.DataFrame, topology: pl.DataFrame | None) -> dict[tuple[str, str], list[float]]:
    """For pairs of exporters, the differences between their stamps of messages of one moment."""
    edges: dict[tuple[str, str], list[float]] = defaultdict(list)
    for members in _list_streams(flows, topology).values():
        first = max(members, key=lambda m: len(m.begun))
        for other in members:
            known = edges[first.exporter, other.exporter]
            if other.exporter == first.exporter or len(known) == _MOST_TIMES:
                continue
            shift = _compare_two(first, other)
            if not np.isnan(shift):
                known.append(shift)
    return edges


def _compare_two(one: StreamStarts, other: StreamStarts) -> float:
    """How much later one exporter stamps what another does too; nan where nothing is surely of one moment."""
    if one.src == other.src:
        shift: float = find_shift(one.begun, other.begun, _FAR_NS)
        # Ranks arrive at a collective one by one, and leave it together.
        return find_shift(one.done, other.done, _FAR_NS) if np.isnan(shift) else shift
    # An answer follows its cause; only messages that overlap are surely both ways at once, to the end.
    shift = find_shift(one.done, other.done, _FAR_NS)
    return shift if abs(shift) <= _OVERLAP * one.took_ns else np.nan


def _list_streams(flows: pl.DataFrame, topology: pl.DataFrame | None) -> dict[frozenset[str], list[StreamStarts]]:
    """By two hosts the streams between them, one each way for every exporter."""
    host = dict(topology.select("address", "host").iter_rows()) if topology is not None else {}
    start, end = (c.head(_MOST_MESSAGES) for c in (pl.col("start_ns"), pl.coalesce("end_ns", "start_ns")))
    grouped = flows.group_by("src", "dst", "_exporter", maintain_order=True).agg(
        start.sort().alias("begun"), end.sort().alias("done"), (end - start).median().alias("took")
    )
    grouped = grouped.filter(pl.col("begun").list.len() >= _ENOUGH).head(_MOST_STREAMS)
    cut = np.cumsum(grouped["begun"].list.len().to_numpy())[:-1]
    begun, done = (np.split(grouped[c].explode().to_numpy(), cut) for c in ("begun", "done"))
    found: dict[tuple[str, str, str], StreamStarts] = {}
    for i, (src, dst, exporter, took) in enumerate(grouped.select("src", "dst", "_exporter", "took").iter_rows()):
        key = host.get(src, src), host.get(dst, dst), exporter
        if key not in found or len(begun[i]) > len(found[key].begun):
            found[key] = StreamStarts(key[0], exporter, begun[i], done[i], took)
    between: dict[frozenset[str], list[StreamStarts]] = defaultdict(list)
    for (src, dst, _), stream in found.items():
        between[frozenset((src, dst))].append(stream)
    return between


@kernel
def find_shift(times: Ints, others: Ints, reach: float) -> float:
    """The one difference, of at most `reach`, between two streams of messages that nearly all of them have in common.

    Nan where there is none, or where several are as common: messages at even distances fit at each of these. Both
    streams are in order.
    """
    apart = _list_differences(times, others, reach)
    half = int(reach / _TIGHT_NS) + 1
    count = np.zeros(2 * half + 2, np.int64)  # by difference, in steps of what is taken as equal
    for difference in apart:
        count[int(difference / _TIGHT_NS + half)] += 1
    both = count[:-1] + count[1:]  # A common difference may lie on both sides of a border.
    best = int(both.argmax())
    most = both[best]
    both[max(best - 1, 0) : best + 2] = 0
    clear = both.max() <= most - _CLEARLY * np.sqrt(most)
    if not clear or most < max(_ENOUGH, _CLOSE * min(len(times), len(others))):
        return np.nan
    place = (apart / _TIGHT_NS + half).astype(np.int64)
    return float(find_median(apart[(place == best) | (place == best + 1)]))


@kernel
def _list_differences(times: Ints, others: Ints, reach: float) -> NDArray[np.float64]:
    """How much later than each time any of the others is, where it is near."""
    low = np.searchsorted(others, times - int(reach))
    high = np.searchsorted(others, times + int(reach), side="right")
    found = np.empty((high - low).sum())
    num = 0
    for k in range(len(times)):
        for j in range(low[k], high[k]):
            found[num] = others[j] - times[k]
            num += 1
    return found


def _settle(edges: dict[tuple[str, str], list[float]]) -> dict[str, float]:
    """One offset per exporter from all differences; exporters that share no messages keep clocks of their own.

    Clocks make all differences agree, whatever way round; what does not was never stamped at one moment.
    """
    links: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
    for (a, b), values in edges.items():
        middle = np.sort(values)[len(values) // 2] if values else 0.0
        times = sum(abs(v - middle) <= _TIGHT_NS for v in values)
        if 2 * times > len(values):
            links[a][b], links[b][a] = (times, middle), (times, -middle)
    offsets: dict[str, float] = {}
    settled: set[str] = set()
    for start in sorted(links, key=lambda n: -len(links[n])):
        if start in settled:
            continue
        island: dict[str, float] = {}
        queue = [(0, start, 0.0)]
        while queue:  # What was compared most often comes first.
            _, here, at = heapq.heappop(queue)
            if here not in island:
                island[here] = at
                for there, (times, shift) in links[here].items():
                    heapq.heappush(queue, (-times, there, at + shift))
        settled |= island.keys()
        inside = [(island[b] - island[a], vs) for (a, b), vs in edges.items() if a in island and b in island]
        if np.mean([abs(v - apart) <= _TIGHT_NS for apart, vs in inside for v in vs]) < _CONSISTENT:
            continue
        middle = float(np.median(list(island.values())))
        offsets |= {name: value - middle for name, value in island.items()}
    return offsets
