"""FLOWS: who sent how many bytes to whom, and when."""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns

FLOWS = Shape(
    name="flows",
    required=columns(
        {
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,  # null: the exporter gave no end time
            "src": pl.String,
            "dst": pl.String,
            "bytes": pl.Int64,  # in memory: scaled by the sampling rate; on disk: as exported
        }
    ),
    optional=columns(
        {
            "src_port": pl.Int32,
            "dst_port": pl.Int32,
            "qp": pl.Int64,  # destination queue pair
            "packets": pl.Int64,
            "path": pl.String,  # switches passed, joined with ">"
            "sampling_rate": pl.Int64,  # 1 packet in this many was seen
            "exporter": pl.String,
        }
    ),
    nullable=frozenset({"end_ns"}),
)
