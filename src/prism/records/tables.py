"""Any declared table read from and written to a file."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from prism.errors import BadRowError
from prism.records import files
from prism.records.addresses import unify_addresses
from prism.records.shape import Shape


def read_table(path: str | Path, shape: Shape) -> pl.DataFrame:
    """Read a table of the given shape; a bad value is named by file, row and column."""
    path = Path(path)
    fmt = files.recognise(path)
    columns = files.read_columns(path, fmt)
    missing = [c for c in shape.required if c not in columns and c not in shape.nullable]
    if missing:
        raise BadRowError(f"{path}: no column '{missing[0]}'; {shape.name.upper()} needs {', '.join(shape.required)}")
    raw = files.read_whole(path)
    word, first = files.first_row(path, fmt)
    table = shape.conform(raw, str(path), row_word=word, first_row=first)
    # In the notation that flows have.
    return unify_addresses(table, [c for c in ("address",) if c in table.columns])


def write_table(frame: pl.DataFrame, path: str | Path, shape: Shape) -> None:
    """Write a table in the format its name asks for, checked against its shape first."""
    files.write(shape.conform(frame, shape.name), Path(path))
