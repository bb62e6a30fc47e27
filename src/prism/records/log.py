"""LOG: lines with the rank, host and time they came from, where these are known."""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns

LOG = Shape(
    name="log",
    required=columns(
        {
            "file": pl.String,
            "line": pl.Int64,  # counts from 1
            "time_ns": pl.Int64,
            "rank": pl.Int32,
            "host": pl.String,
            "text": pl.String,
        }
    ),
    nullable=frozenset({"time_ns", "rank", "host"}),
)
