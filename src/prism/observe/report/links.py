"""LINKS: how much traffic passes over every NIC's link, over time, and for which job."""

from __future__ import annotations

import polars as pl

from prism.observe.diagnosis import Diagnosis
from prism.records.shape import Shape, columns

LINKS = Shape(
    name="links",
    required=columns(
        {
            "address": pl.String,
            "host": pl.String,
            "switch": pl.String,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "bytes_out": pl.Int64,
            "bytes_in": pl.Int64,
            "jobs": pl.List(pl.String),  # those whose bytes passed in this time
        }
    ),
    nullable=frozenset({"host", "switch"}),
)


def measure_links(diagnosis: Diagnosis, *, bins: int = 60) -> pl.DataFrame:
    """LINKS of every address, in `bins` equal stretches of the observation; a message counts where its middle lies."""
    traffic = diagnosis.traffic
    if traffic.messages.is_empty():
        return LINKS.empty()
    begin, until = (int(v) for v in traffic.messages.select(a=pl.min("start_ns"), b=pl.max("end_ns")).row(0))
    width = max(1, -(-(until - begin) // bins))
    middle = (pl.col("start_ns") + pl.col("end_ns")) // 2
    loads = traffic.messages.group_by("pair", ((middle - begin) // width).alias("bin")).agg(pl.col("bytes").sum())
    loads = loads.join(traffic.pairs.select("pair", "src", "dst"), on="pair").join(
        _owners(diagnosis), on="pair", how="left"
    )
    sides = [
        loads.select("bin", "owners", endpoint=side, bytes_out=out, bytes_in=into)
        for side, out, into in (
            ("src", pl.col("bytes"), pl.lit(0, pl.Int64)),
            ("dst", pl.lit(0, pl.Int64), pl.col("bytes")),
        )
    ]
    named = traffic.endpoints.select("endpoint", "address", "host", "switch")
    return LINKS.conform(
        pl.concat(sides)
        .group_by("endpoint", "bin")
        .agg(
            pl.col("bytes_out", "bytes_in").sum(), pl.col("owners").explode().drop_nulls().unique().sort().alias("jobs")
        )
        .join(named, on="endpoint")
        .with_columns(start_ns=begin + pl.col("bin") * width, end_ns=begin + (pl.col("bin") + 1) * width)
        .sort("endpoint", "bin")
    )


def _owners(diagnosis: Diagnosis) -> pl.DataFrame:
    """The jobs that use each pair; two may, as where both write to one store from one host."""
    parts = [job.pairs.select("pair", pl.lit(job.id).alias("job")) for job in diagnosis.jobs]
    empty = pl.DataFrame(schema={"pair": pl.UInt32, "job": pl.String})
    return pl.concat([empty, *parts], how="vertical_relaxed").group_by("pair").agg(pl.col("job").alias("owners"))
