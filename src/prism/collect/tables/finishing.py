"""The last steps once a table's columns are FLOWS: directions, samples, and a note on coarse times."""

from __future__ import annotations

import polars as pl

from prism.collect.tables.plan import REVERSE, SAMPLE
from prism.collect.tables.samples import put_together

_WITH_PORT = r"^(\d+(\.\d+){3}|\[[0-9A-Fa-f:.]+\]):\d+$"
_LEAST_ROWS = 20  # rows that must agree before they decide about a table


def finish_table(frame: pl.DataFrame, *, samples: bool) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Split two-way records, join samples to transfers, and note times that cannot show steps.

    `samples` leaves packet samples unchanged, for a stream that joins them over its window.
    """
    notes: list[str] = []
    if set(REVERSE[:1]) <= set(frame.columns):
        frame = _split_two_ways(frame)
        notes.append("two-way records: each became a flow in either direction")
    sampled = frame[SAMPLE] if SAMPLE in frame.columns else None
    frame = frame.drop(*REVERSE, SAMPLE, strict=False)
    if sampled is not None and sampled.any() and len(sampled) == frame.height:
        rate = pl.col("sampling_rate") if "sampling_rate" in frame.columns else pl.lit(1, pl.Int64)
        frame = frame.with_columns(sampling_rate=rate, packets=pl.when(sampled).then(rate).otherwise(pl.col("packets")))
    else:
        sampled = None
    if frame["src"].unique().str.contains(_WITH_PORT).any():
        notes.append(
            "addresses with ports: each address:port counts as an endpoint of its own; if the ports are those of "
            "connections, write them in columns of their own"
        )
    if samples:
        return frame, tuple(notes)
    frame, said = put_together(frame, sampled)
    notes += said
    if not said and are_whole_seconds(frame):
        notes.append(
            "all times are whole seconds: they show who talks to whom, but neither steps below ten seconds nor what "
            "slows them"
        )
    return frame, tuple(notes)


def _split_two_ways(frame: pl.DataFrame) -> pl.DataFrame:
    """A two-way record becomes two flows, without a flow for a direction that carries nothing."""
    swapped = {"src": "dst", "dst": "src", "src_port": "dst_port", "dst_port": "src_port"}
    sizes = {"_reverse_bytes": "bytes", "_reverse_packets": "packets"}
    back = frame.filter(pl.col("_reverse_bytes") > 0).select(
        *(pl.col(b).alias(a) for a, b in swapped.items() if b in frame.columns),
        *(pl.col(a).alias(b) for a, b in sizes.items() if a in frame.columns),
        *(c for c in ("start_ns", "end_ns", "sampling_rate", "exporter", "path") if c in frame.columns),
    )
    forth = frame.filter((pl.col("bytes") > 0) | (pl.col("_reverse_bytes").fill_null(0) == 0))
    return pl.concat([forth.drop(*REVERSE, strict=False), back], how="diagonal")


def are_whole_seconds(frame: pl.DataFrame) -> bool:
    """Whether every time of a table is a whole second."""
    if frame.height < _LEAST_ROWS:
        return False
    times = frame.select(pl.col("start_ns"), pl.col("end_ns").fill_null(0))
    return not bool(times.select(((pl.col("start_ns") % 10**9 != 0) | (pl.col("end_ns") % 10**9 != 0)).any()).item())
