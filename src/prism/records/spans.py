"""SPANS: the timeline, one row for each thing a rank does."""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns

PAIR_KINDS = ("dp", "pp", "tp", "cp", "ep", "embedding", "storage", "unknown")
"""What the traffic between two endpoints can be."""

SPAN_KINDS = ("compute", *PAIR_KINDS, "wait", "host", "microbatch", "step")

SPANS = Shape(
    name="spans",
    required=columns(
        {
            "job": pl.String,
            "rank": pl.Int32,
            "lane": pl.String,  # a stream, or "steps"
            "kind": pl.Enum(SPAN_KINDS),
            "name": pl.String,
            "step": pl.Int32,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "bytes": pl.Int64,
            "group": pl.String,
        }
    ),
    nullable=frozenset({"step", "bytes", "group"}),
)
