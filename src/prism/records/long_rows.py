"""Rows of a text table that have more values than columns; the CSV reader drops such values silently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from prism.records import compression

_MOST_EXTRA = 16  # values behind the last column that are looked at

MORE_VALUES = "more values than columns"
"""What is wrong with such a row."""


def describe_extra(value: str) -> str:
    """What is wrong with a row that has this value behind its last column."""
    return f'{MORE_VALUES}: "{value[:60]}" has no column (a value that contains a separator needs quotes)'


def find_extra_values(
    path: Path,
    separator: str,
    num_columns: int,
    *,
    named: bool = True,
    quote: str | None = '"',
    comment: str | None = None,
) -> pl.Series | None:
    """By row, the first value that has no column; None where no row has one.

    `named`: the first line holds the names. A separator at the end of a line (`sacct --parsable`) adds no value.
    """
    if _count_most_separators(path, separator, comment) < num_columns:
        return None
    content = b"".join(compression.read_pieces(path)).removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    names = [f"column_{k}" for k in range(num_columns + _MOST_EXTRA)]
    try:
        table = pl.read_csv(
            separator.join(names).encode() + b"\n" + content,
            columns=names[num_columns:],
            separator=separator,
            comment_prefix=comment,
            quote_char=quote,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
        )
    except pl.exceptions.PolarsError:
        return None  # A quote that is never closed: the reader of the table itself reports it.
    values = [pl.col(name).str.strip_chars() for name in table.columns]
    extra = table.slice(int(named)).select(pl.coalesce(pl.when(value != "").then(value) for value in values))
    return None if extra.to_series().null_count() == extra.height else extra.to_series()


def _count_most_separators(path: Path, separator: str, comment: str | None) -> int:
    """The number of separators in the line that has most; those in quoted values count, too."""
    most, rest = 0, b""
    for piece in compression.read_pieces(path):
        lines, _, rest = (rest + piece).rpartition(b"\n")
        most = max(most, _count_in_lines(lines, separator, comment))
    return max(most, _count_in_lines(rest, separator, comment))


def _count_in_lines(lines: bytes, separator: str, comment: str | None) -> int:
    text = np.frombuffer(lines + b"\n", np.uint8)
    places = np.flatnonzero((text == ord(separator)) | (text == ord("\n")))
    ends = np.flatnonzero(text[places] == ord("\n"))
    counts = np.diff(ends, prepend=-1) - 1
    if comment:
        begins = np.concatenate([[0], places[ends[:-1]] + 1])
        counts[text[begins] == ord(comment)] = 0
    return int(counts.max())
