"""A summary of a FLOWS table."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.errors import BadRowError
from prism.records.addresses import first_bad_address
from prism.records.flows import FLOWS


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSummary:
    """Rows, time span, endpoints, rate, and what is missing."""

    rows: int
    start_ns: int | None
    end_ns: int | None
    endpoints: int
    pairs: int
    bytes: int
    gbit_per_s: float | None
    without_end: int
    same_endpoint: int  # rows whose source is their destination
    zero_bytes: int
    max_sampling_rate: int | None
    columns: tuple[str, ...]
    missing_columns: tuple[str, ...]
    busiest: tuple[tuple[str, int], ...]  # (endpoint, bytes sent)


def endpoints_of(flows: pl.DataFrame) -> pl.Series:
    """Every address in a FLOWS table, sorted; raises where one cannot be an address."""
    addresses = pl.concat([flows["src"].unique(), flows["dst"].unique()]).unique().sort().alias("address")
    stray = first_bad_address(addresses)
    if stray is not None:
        raise BadRowError(f'flows: "{stray}" is not an address; fix its rows or pass --skip-bad-rows')
    return addresses


def summarize_flows(flows: pl.DataFrame) -> FlowSummary:
    """Summarize a FLOWS table."""
    sent = flows.group_by("src", "dst").agg(pl.len(), pl.col("bytes").sum())
    by_source = sent.group_by("src").agg(pl.col("bytes").sum()).sort("bytes", "src", descending=[True, False]).head(5)
    start, end, total = flows.select(
        pl.col("start_ns").min(),
        pl.max_horizontal(pl.col("end_ns").max(), pl.col("start_ns").max()).alias("end"),
        pl.col("bytes").sum(),
    ).row(0)
    span_ns = (end - start) if flows.height else 0
    rate = flows["sampling_rate"].max() if "sampling_rate" in flows.columns else None
    return FlowSummary(
        rows=flows.height,
        start_ns=start,
        end_ns=end,
        endpoints=len(endpoints_of(sent)),
        pairs=sent.height,
        bytes=total,
        gbit_per_s=total * 8 / span_ns if span_ns else None,
        without_end=flows["end_ns"].null_count(),
        same_endpoint=int(sent.filter(pl.col("src") == pl.col("dst"))["len"].sum()),
        zero_bytes=int((flows["bytes"] == 0).sum()),
        max_sampling_rate=rate if isinstance(rate, int) else None,
        columns=tuple(flows.columns),
        missing_columns=tuple(c for c in FLOWS.optional if c not in flows.columns),
        busiest=tuple(by_source.iter_rows()),
    )
