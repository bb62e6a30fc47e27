"""Flows made ready for analysis: endpoints and pairs as numbers, records of one transfer joined, oddities counted."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from prism.records.flow_summary import endpoints_of

SIZE_TOLERANCE = 0.02
"""Messages of one pair whose sizes differ by less are of one size: headers and retransmissions add a few in ten
thousand, sampling at 1 in 100 about two in a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One observation: messages between numbered endpoints.

    `messages`: start_ns end_ns bytes pair size_class, ordered by pair and start; `pairs`: pair src dst num bytes
    first_ns last_ns; `endpoints`: endpoint address host_id host rail switch.
    """

    messages: pl.DataFrame
    pairs: pl.DataFrame
    endpoints: pl.DataFrame
    notes: tuple[str, ...] = ()


def prepare_traffic(flows: pl.DataFrame, topology: pl.DataFrame | None = None) -> Traffic:
    """Number the endpoints and pairs of FLOWS and clean the records; without a topology every endpoint is a host."""
    notes: list[str] = []
    total = flows.height
    flows = flows.filter(pl.col("src") != pl.col("dst"))
    if flows.height < total:
        notes.append(f"{total - flows.height:,} flows from an endpoint to itself were left out")
    unique = flows.unique() if _may_repeat(flows) else flows
    if unique.height < flows.height:
        notes.append(f"{flows.height - unique.height:,} repeated flows were left out")
    endpoints = _number_endpoints(endpoints_of(unique), topology, notes)
    index = endpoints.select("address", "endpoint")
    numbered = (
        unique.select("start_ns", pl.coalesce("end_ns", "start_ns").alias("end_ns"), "bytes", "src", "dst")
        .join(index.rename({"address": "src", "endpoint": "s"}), on="src", how="left")
        .join(index.rename({"address": "dst", "endpoint": "d"}), on="dst", how="left")
        .with_columns(key=pl.col("s").cast(pl.UInt64) * endpoints.height + pl.col("d"))
    )
    pairs = (
        numbered.group_by("key")
        .agg(
            pl.col("s").first().alias("src"),
            pl.col("d").first().alias("dst"),
            pl.len().alias("num"),
            pl.col("bytes").sum(),
            pl.col("start_ns").min().alias("first_ns"),
            pl.col("end_ns").max().alias("last_ns"),
        )
        .sort("key")
        .with_row_index("pair")
    )
    messages = (
        numbered.join(pairs.select("key", "pair"), on="key", how="left")
        .select("pair", "start_ns", "end_ns", "bytes")
        .sort("pair", "start_ns", "end_ns")
    )
    return Traffic(messages=classify_sizes(messages), pairs=pairs.drop("key"), endpoints=endpoints, notes=tuple(notes))


def classify_sizes(messages: pl.DataFrame) -> pl.DataFrame:
    """Add `size_class`: within a pair, sizes closer than the tolerance share one, numbered from the smallest."""
    ranked = messages.with_row_index("_i").sort("pair", "bytes")
    jump = pl.col("bytes").log1p().diff().over("pair", order_by="bytes").fill_null(0.0) > SIZE_TOLERANCE
    ranked = ranked.with_columns(jump.cast(pl.UInt32).alias("_jump"))
    ranked = ranked.with_columns(pl.col("_jump").cum_sum().over("pair").alias("size_class"))
    return ranked.sort("_i").drop("_i", "_jump")


def _may_repeat(flows: pl.DataFrame) -> bool:
    """A cheap look at whether rows repeat: exact copies share start, bytes and source."""
    keys = flows.select(pl.struct("start_ns", "end_ns", "bytes").hash().alias("h"))["h"]
    return keys.n_unique() < flows.height


def _number_endpoints(addresses: pl.Series, topology: pl.DataFrame | None, notes: list[str]) -> pl.DataFrame:
    endpoints = addresses.to_frame("address").with_row_index("endpoint")
    if topology is None:
        endpoints = endpoints.with_columns(
            host=pl.col("address"), rail=pl.lit(None, pl.Int32), switch=pl.lit(None, pl.String), known=pl.lit(False)
        )
    else:
        unique = topology.unique("address", keep="first")
        if unique.height < topology.height:
            notes.append(f"topology: {topology.height - unique.height:,} addresses appear twice; the first row counts")
        endpoints = endpoints.join(unique.with_columns(known=pl.lit(True)), on="address", how="left")
        unknown = endpoints["known"].null_count()
        if unknown:
            notes.append(f"topology: {unknown:,} of {endpoints.height:,} endpoints are missing; each counts as a host")
        endpoints = endpoints.with_columns(
            pl.coalesce("host", "address").alias("host"), pl.col("known").fill_null(False)
        )
    hosts = endpoints.select(pl.col("host").unique(maintain_order=True)).with_row_index("host_id")
    return endpoints.join(hosts, on="host", how="left", maintain_order="left")
