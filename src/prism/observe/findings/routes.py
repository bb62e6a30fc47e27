"""Routes: which links and switches the messages of each pair pass, as far as flows and topology show."""

from __future__ import annotations

from itertools import pairwise

import polars as pl

from prism.observe.traffic.table import Traffic

ROUTES = pl.Schema({"pair": pl.UInt32, "path": pl.String, "first_ns": pl.Int64, "last_ns": pl.Int64})


def find_routes(flows: pl.DataFrame, traffic: Traffic) -> pl.DataFrame:
    """ROUTES: every path that a pair was seen to take, and from when to when; empty where flows name no path."""
    if "path" not in flows.columns or flows["path"].null_count() == flows.height:
        return pl.DataFrame(schema=ROUTES)
    seen = flows.lazy().filter(pl.col("path").is_not_null()).group_by("src", "dst", "path").agg(
        pl.col("start_ns").min().alias("first_ns"), pl.col("start_ns").max().alias("last_ns")
    ).collect()  # fmt: skip
    number = traffic.endpoints.select("address", "endpoint")
    return (
        seen.join(number.rename({"address": "src", "endpoint": "s"}), on="src")
        .join(number.rename({"address": "dst", "endpoint": "d"}), on="dst")
        .join(traffic.pairs.select("pair", pl.col("src").alias("s"), pl.col("dst").alias("d")), on=["s", "d"])
        .select(pl.col(c).cast(t) for c, t in ROUTES.items())
        .sort("pair", "first_ns")
    )


def links_of(path: str) -> list[str]:
    """The links between the switches of a path."""
    stops = path.split(">")
    return [f"{a}>{b}" for a, b in pairwise(stops)]
