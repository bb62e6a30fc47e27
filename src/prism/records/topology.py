"""TOPOLOGY: which host, rail and switch each NIC address belongs to."""

from __future__ import annotations

import polars as pl

from prism.records.shape import Shape, columns

TOPOLOGY = Shape(
    name="topology",
    required=columns({"address": pl.String, "host": pl.String, "rail": pl.Int32, "switch": pl.String}),
    nullable=frozenset({"rail", "switch"}),
)
