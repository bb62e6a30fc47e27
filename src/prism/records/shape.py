"""The shape of a table: its columns, which of them may be missing, and which may hold nulls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from prism.errors import BadRowError


def columns(types: Mapping[str, Any]) -> pl.Schema:
    """A schema from names and Polars types."""
    return pl.Schema(types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table that crosses packages: its name, required and optional columns, and columns that may be null."""

    name: str
    required: pl.Schema
    optional: pl.Schema = field(default_factory=pl.Schema)
    nullable: frozenset[str] = frozenset()

    @property
    def columns(self) -> pl.Schema:
        """Required then optional columns."""
        return pl.Schema({**self.required, **self.optional})

    def empty(self) -> pl.DataFrame:
        """A frame of the required columns without rows."""
        return pl.DataFrame(schema=self.required)

    def conform(
        self, frame: pl.DataFrame, where: str = "frame", *, row_word: str = "row", first_row: int = 1
    ) -> pl.DataFrame:
        """Return `frame` with this shape's columns and types, in its order, or raise naming the first bad value."""
        missing = [c for c in self.required if c not in frame.columns and c not in self.nullable]
        if missing:
            needed = ", ".join(self.required)
            raise BadRowError(f"{where}: no column '{missing[0]}'; {self.name.upper()} needs {needed}")
        absent = [pl.lit(None, self.required[c]).alias(c) for c in self.required if c not in frame.columns]
        frame = frame.with_columns(absent)
        kept = [c for c in self.columns if c in frame.columns]
        out = frame.select(pl.col(c).cast(self.columns[c], strict=False) for c in kept)
        for column in kept:
            may_be_null = column in self.nullable or column in self.optional
            lost = out[column].is_null()
            if may_be_null:
                lost &= frame[column].is_not_null()
            if lost.any():
                row = int(lost.arg_true()[0])
                value = frame[column][row]
                shown = "empty" if value is None else f'"{value}"' if isinstance(value, str) else str(value)
                raise BadRowError(
                    f"{where} {row_word} {row + first_row}: '{column}' is {shown}, "
                    f"expected {describe(self.columns[column])}"
                )
        return out


def describe(dtype: pl.DataType | type[pl.DataType]) -> str:
    """A data type in a user's words."""
    if isinstance(dtype, pl.Enum):
        return "one of " + ", ".join(dtype.categories.to_list())
    if dtype.is_integer():
        return "a whole number"
    if dtype.is_float():
        return "a number"
    if dtype == pl.String:
        return "text"
    if dtype == pl.Boolean:
        return "true or false"
    return str(dtype).lower()
