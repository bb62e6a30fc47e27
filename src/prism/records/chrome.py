"""SPANS as Chrome's trace JSON, for chrome://tracing and tools that read nothing else; a Perfetto trace is smaller.

A process stands for a rank (or, for findings, a job) and a thread for a lane. Times are microseconds with three
decimals since the first slice: viewers read them as doubles, in which nanoseconds since 1970 would not be exact.
`otherData.start_ns` is when the first slice starts, as text for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from prism.records.tracks import NOTES, gather_slices, lay_out_tracks

SLICES_PER_BATCH = 100_000


def write_chrome_trace(spans: pl.DataFrame, path: Path, *, findings: pl.DataFrame | None = None) -> None:
    """Write SPANS, and FINDINGS on a process of their job, as trace JSON; times before 0 are refused."""
    slices = gather_slices(spans, findings)
    layout = lay_out_tracks(slices)
    tracks = _number_processes(layout.tracks)
    slices = slices.with_columns(tracks.select("pid", "tid")[layout.track_of_slice])
    slices = slices.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)  # outer first
    first_ns = slices["start_ns"].item(0) if len(slices) else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f'{{"displayTimeUnit":"ns","otherData":{{"start_ns":"{first_ns}"}},"traceEvents":[')
        separator = "\n"
        for events in _format_events(tracks, slices.with_columns(pl.col("start_ns", "end_ns") - first_ns)):
            file.write(separator + events.str.join(",\n").item())
            separator = ",\n"
        file.write("\n]}\n")


def _format_events(tracks: pl.DataFrame, slices: pl.DataFrame) -> Iterator[pl.Series]:
    """All events as JSON text, in batches of at least one."""
    if len(slices):
        yield _name_tracks(tracks)
    for batch in slices.iter_slices(SLICES_PER_BATCH):
        yield _format_slices(batch)


def _number_processes(tracks: pl.DataFrame) -> pl.DataFrame:
    """The tracks with `pid` and `tid`, both from 1 in the order of the table."""
    return tracks.with_row_index("tid", offset=1).with_columns(pid=pl.struct("job", "rank").rle_id() + 1)


def _name_tracks(tracks: pl.DataFrame) -> pl.Series:
    """The metadata events that name and order processes and threads."""
    again = pl.when(pl.col("overflow") > 0).then(pl.format(" ({})", pl.col("overflow") + 1)).otherwise(pl.lit(""))
    rank = pl.when(pl.col("rank").is_null()).then(pl.lit("")).otherwise(pl.format(" rank {}", "rank"))
    named = tracks.select("pid", "tid", process=pl.col("job") + rank, thread=pl.col("lane") + again)
    named = named.with_columns(_quote(named["process"]), _quote(named["thread"]))
    pid, tid = pl.col("pid"), pl.col("tid")
    process = _join('{"ph":"M","pid":', pid)
    thread = _join(process, ',"tid":', tid)
    first = named.unique("pid", keep="first", maintain_order=True)
    return pl.concat(
        [
            first.select(_join(process, ',"name":"process_name","args":{"name":', pl.col("process"), "}}")),
            first.select(_join(process, ',"name":"process_sort_index","args":{"sort_index":', pid, "}}")),
            named.select(_join(thread, ',"name":"thread_name","args":{"name":', pl.col("thread"), "}}")),
            named.select(_join(thread, ',"name":"thread_sort_index","args":{"sort_index":', tid, "}}")),
        ]
    ).to_series()


def _format_slices(slices: pl.DataFrame) -> pl.Series:
    """One complete event ("ph": "X") for each slice; its args are the notes that are not null."""
    notes = [c for c in NOTES if c in slices.columns]
    texts = [c for c in ("name", "category", *notes) if slices.schema[c] == pl.String]
    floats = [c for c in notes if slices.schema[c].is_float()]
    slices = slices.with_columns(_quote(slices[c]) for c in texts)
    slices = slices.with_columns(pl.when(pl.col(c).is_finite()).then(c) for c in floats)  # JSON has no infinity
    args = pl.concat_str([_join(f'"{c}":', pl.col(c)) for c in notes], separator=",", ignore_nulls=True)
    event = _join(
        *('{"ph":"X","pid":', pl.col("pid"), ',"tid":', pl.col("tid")),
        *(',"ts":', _microseconds(pl.col("start_ns"))),
        *(',"dur":', _microseconds(pl.col("end_ns") - pl.col("start_ns"))),
        *(',"name":', pl.col("name"), ',"cat":', pl.col("category"), ',"args":{', args, "}}"),
    )
    return slices.select(event).to_series()


def _join(*parts: str | pl.Expr) -> pl.Expr:
    """Text and columns, concatenated by row; null where a column is null."""
    return pl.concat_str(pl.lit(part) if isinstance(part, str) else part.cast(pl.String) for part in parts)


def _microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    return _join(nanoseconds // 1000, ".", (nanoseconds % 1000).cast(pl.String).str.zfill(3))


def _quote(strings: pl.Series) -> pl.Series:
    """Each string as JSON text; encoded once for each distinct one."""
    distinct = strings.drop_nulls().unique()
    quoted = pl.Series(strings.name, [json.dumps(s, ensure_ascii=False) for s in distinct], dtype=pl.String)
    return quoted.gather(strings.cast(pl.Enum(distinct)).to_physical())
