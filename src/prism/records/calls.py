"""CALLS: one row for each member of a collective call or message, from any source."""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns
from prism.records.spans import PAIR_KINDS

CALLS = Shape(
    name="calls",
    required=columns(
        {
            "job": pl.String,
            "step": pl.Int32,
            "group": pl.String,  # its members, joined with commas, or a name that the source gives
            "kind": pl.Enum(PAIR_KINDS),
            "member": pl.String,  # endpoint address, or rank as text
            "ready_ns": pl.Int64,  # when the member was ready to start
            "start_ns": pl.Int64,  # when its transfer began
            "end_ns": pl.Int64,
            "bytes": pl.Int64,
        }
    ),
    nullable=frozenset({"step", "group", "ready_ns", "bytes"}),
)
"""`ready_ns` is null where the source shows only the transfer, as flows do of ranks that wait for their peers."""
