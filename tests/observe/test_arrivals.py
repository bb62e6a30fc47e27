"""Which collective a message belongs to, where records were lost."""

from __future__ import annotations

import polars as pl

from prism.observe.findings.arrivals import _place_by_ends

MS = 1_000_000


def send(lost: tuple[int, int] | None) -> pl.DataFrame:
    """Three ranks in five collectives, 20 ms apart, that all end together; of one rank one record may be lost."""
    rows = []
    for src in range(3):
        kept = [k for k in range(5) if (src, k) != lost]
        rows += [(src, place, len(kept), (20 * k + 10) * MS, k) for place, k in enumerate(kept)]
    frame = pl.DataFrame(rows, schema=["src", "place", "num", "end_ns", "truly"], orient="row")
    return frame.with_columns(kind=pl.lit("dp"), stage=pl.lit(0), like=pl.lit(0), step=pl.lit(0))


def test_a_lost_record_does_not_shift_those_after_it() -> None:
    for lost in (None, (1, 0), (2, 3)):
        placed = _place_by_ends(send(lost))
        assert placed.height == (15 if lost is None else 14)
        assert placed["place"].to_list() == placed["truly"].to_list(), lost


def test_a_message_that_ends_with_no_collective_is_of_none() -> None:
    stray = pl.when((pl.col("src") == 1) & (pl.col("truly") == 2)).then(pl.col("end_ns") + 9 * MS).otherwise("end_ns")
    placed = _place_by_ends(send((1, 0)).with_columns(end_ns=stray))
    assert placed.filter(pl.col("src") == 1)["truly"].to_list() == [1, 3, 4]
