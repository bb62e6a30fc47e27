"""How long records last and where a timer of the exporter cuts them: what happens inside a record cannot be seen."""

from __future__ import annotations

import numpy as np
import polars as pl

_AT_THE_LIMIT = 0.05  # share of records that end within 5 % of the longest: then a timeout cut them
_LEAST_ROWS = 20
_LEAST_LIMIT_NS = 5 * 10**9  # transfers of one size last equally long too, if not as long as this
_LEAST_SPLIT_NS = 5 * 10**8  # exporters count active timeouts in seconds
_TOUCH_NS = (-(10**6), 5 * 10**6)  # pauses inside a transfer; bursts of a capture lie further apart
_SPLIT_SHARE = 0.2  # of the long records: a timer cuts the others in a pause of their connection


def find_timeout(flows: pl.DataFrame) -> int | None:
    """The length at which an active timeout cuts records, in nanoseconds; null where none is seen."""
    lengths = (flows["end_ns"] - flows["start_ns"]).drop_nulls().to_numpy()
    if len(lengths) < _LEAST_ROWS:
        return None
    return _find_common_limit(lengths) or _find_split_length(flows)


def find_usual_length(flows: pl.DataFrame) -> int | None:
    """The record length in nanoseconds that half of all bytes reach."""
    ended = flows.select("bytes", length=pl.col("end_ns") - pl.col("start_ns")).drop_nulls().sort("length")
    reached = ended.filter(2 * pl.col("bytes").cum_sum() >= pl.col("bytes").sum())
    return int(reached["length"][0]) if reached.height else None


def _find_common_limit(lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int | None:
    """The length of the longest records, where many end just there."""
    longest = int(lengths.max())
    if longest < _LEAST_LIMIT_NS:
        return None
    at_limit = float((lengths > 0.95 * longest).mean())
    below = float(((lengths > 0.7 * longest) & (lengths <= 0.95 * longest)).mean())
    return longest if at_limit > _AT_THE_LIMIT and at_limit > 2 * below else None


def _find_split_length(flows: pl.DataFrame) -> int | None:
    """The usual length of records that the next record of their connection continues without a pause.

    softflowd looks for records that are too old at times of its own, so that their lengths differ.
    """
    connection = [c for c in ("exporter", "src", "dst", "src_port", "dst_port", "qp") if c in flows.columns]
    pause = pl.col("start_ns").shift(-1).over(connection, order_by="start_ns") - pl.col("end_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    long = flows.with_columns(pause=pause, length=length).filter(pl.col("length") >= _LEAST_SPLIT_NS)
    split = long.filter(pl.col("pause").is_between(*_TOUCH_NS))
    if (
        split.height < max(_LEAST_ROWS / 2, _SPLIT_SHARE * long.height)
        or 2 * long["bytes"].sum() < flows["bytes"].sum()
    ):
        return None
    usual = split["length"].median()
    return int(usual) if isinstance(usual, (int, float)) else None
