"""Connections that more than one exporter reports: switches at both ends, or both network interfaces in a cloud."""

from __future__ import annotations

import polars as pl

_LEAST_SHARE = 0.5  # of what a second exporter reports is also reported by the sender's, and at the same time

_NAMES = ("src", "dst", "qp", "src_port")


def connection_names(flows: pl.DataFrame) -> list[str]:
    """The columns that tell connections apart here."""
    return [c for c in _NAMES if c in flows.columns]


def find_second_exporters(flows: pl.DataFrame) -> pl.DataFrame:
    """Connections, their second exporters and the `bytes` these report; none where there are no exporters to compare.

    The exporter that reports most of a sender is its own and has all it sends. Another one reports the same bytes of a
    connection again if it does so at the same time; traffic that moved to another switch was reported only once. Each
    may sample or cut records on its own, so only totals are compared.
    """
    named = connection_names(flows)
    if "exporter" not in flows.columns or flows["exporter"].n_unique() < 2:
        return flows.select(*named, pl.lit(None, pl.String).alias("exporter"), "bytes").clear()
    last = pl.max_horizontal("start_ns", "end_ns").max()
    sent = flows.group_by(*named, "exporter").agg(pl.col("bytes").sum(), first=pl.col("start_ns").min(), last=last)
    whose = pl.col("bytes").sum().over("src", "exporter")
    home = pl.col("exporter").sort_by(whose, "exporter", descending=[True, False]).first().over("src")
    sent = sent.with_columns(home=home)  # A nested window would look for it among the exporters of one connection.
    own, own_first, own_last = (
        pl.col(c).filter(pl.col("exporter") == pl.col("home")).first().over(named) for c in ("bytes", "first", "last")
    )
    together = pl.min_horizontal("last", own_last) - pl.max_horizontal("first", own_first)
    again = (
        (pl.col("exporter") != pl.col("home"))
        & (own >= _LEAST_SHARE * pl.col("bytes"))
        & (together >= _LEAST_SHARE * (pl.col("last") - pl.col("first")))
    )
    return sent.filter(again).select(*named, "exporter", "bytes")
