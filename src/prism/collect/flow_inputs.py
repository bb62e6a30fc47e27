"""Flow records from whatever files an operator has: tables, captures, nfcapd files, sflowtool's text, protobuf."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import polars as pl

from prism.collect.counter_tables import holds_counters, read_counter_table
from prism.collect.counts import SourceCounts
from prism.collect.goflow import cut_delimited, decode_messages
from prism.collect.nfcapd import read_nfcapd
from prism.collect.packet_files import read_packets
from prism.collect.sflowtool import read_sflowtool
from prism.collect.tables import FlowOptions, FlowsRead, ReadReport, load_flows
from prism.collect.tables.samples import put_together
from prism.records import files
from prism.records.files import Format, read_content, read_text


def load_inputs(
    paths: str | Path | Iterable[str | Path],
    options: FlowOptions | None = None,
    progress: Callable[[int], None] | None = None,
) -> FlowsRead:
    """Like `records.load_flows`, for every format that Prism reads; tables of port counters may lie among the files."""
    given = files.expand(paths)
    counters = [path for path in given.files if holds_counters(path)]
    if not counters:
        return load_flows(paths, options, progress, _READERS)
    read = load_flows([path for path in given.files if path not in counters], options, progress, _READERS)
    tables = [read.counters] if read.counters.height else []
    tables += [read_counter_table(path) for path in counters]
    report = replace(read.report, skipped_files=(*read.report.skipped_files, *given.left_out))
    # Agents number their ports, and monitoring may name them.
    return replace(read, report=report, counters=pl.concat(tables, how="diagonal_relaxed"))


def _read_capture(path: Path, options: FlowOptions) -> FlowsRead:
    read = read_packets(path)
    return replace(_finish(read.flows, read.counts, read.notes), counters=read.counters)


def _read_sflowtool(path: Path, options: FlowOptions) -> FlowsRead:
    counts = SourceCounts()
    flows, notes = _finish_samples(read_sflowtool(path, read_text(path), counts), options)
    return _finish(flows, counts, notes)


def _read_goflow(path: Path, options: FlowOptions) -> FlowsRead:
    data = read_content(path)
    counts = SourceCounts()
    places, rest = cut_delimited(data)
    flows, notes = _finish_samples(decode_messages(data, places, counts), options)
    if rest:
        notes = (*notes, f"{path}: the last {rest:,} bytes are no whole message; what is before them was read")
    return _finish(flows, counts, notes)


def _finish_samples(flows: pl.DataFrame, options: FlowOptions) -> tuple[pl.DataFrame, tuple[str, ...]]:
    return (flows, ()) if options.samples else put_together(flows)


def _finish(flows: pl.DataFrame, counts: SourceCounts, notes: tuple[str, ...]) -> FlowsRead:
    left_out = {why: num for why, num in (counts.dropped + counts.malformed).items() if num}
    if counts.lost:
        left_out["records lost on the way"] = counts.lost
    return FlowsRead(flows=flows, report=ReadReport(files=1, rows=flows.height, skipped_rows=left_out, notes=notes))


_READERS = {
    Format.PACKETS: _read_capture,
    Format.NFCAPD: read_nfcapd,
    Format.SFLOWTOOL: _read_sflowtool,
    Format.GOFLOW: _read_goflow,
}
