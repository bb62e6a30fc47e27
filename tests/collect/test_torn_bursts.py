"""Bursts that are pieces of one transfer are joined; all else is left as it is."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.collect.assembler import PACKET_FLOWS
from prism.collect.torn_bursts import join_torn

_MS = 1_000_000


def make_bursts(sizes: list[int], *, every_ms: int = 50, port: int = 1000, qp: int | None = None) -> pl.DataFrame:
    """Bursts of one connection, one after the other."""
    rows = [
        {
            "start_ns": i * every_ms * _MS,
            "end_ns": i * every_ms * _MS + _MS,
            "src": "10.0.0.1",
            "dst": "10.0.0.2",
            "bytes": size,
            "src_port": port,
            "dst_port": 2000,
            "qp": qp,
            "packets": 1 + size // 9000,
        }
        for i, size in enumerate(sizes)
    ]
    return pl.DataFrame(rows, schema=PACKET_FLOWS)


def test_pieces_that_add_up_to_a_usual_size_are_one_transfer() -> None:
    whole = join_torn(make_bursts([400_000] * 8 + [130_000, 270_000] + [400_000] * 3), 100 * _MS)
    assert whole["bytes"].to_list() == [400_000] * 12
    torn = whole.row(8, named=True)
    assert (torn["start_ns"], torn["end_ns"]) == (8 * 50 * _MS, 9 * 50 * _MS + _MS)


def test_more_than_two_pieces_are_joined_too() -> None:
    whole = join_torn(make_bursts([400_000] * 8 + [100_000, 140_000, 160_000, 400_000]), 100 * _MS)
    assert whole["bytes"].to_list() == [400_000] * 10


def test_pieces_that_do_not_add_up_stay_apart() -> None:
    bursts = make_bursts([400_000] * 8 + [130_000, 200_000] + [400_000] * 3)
    assert join_torn(bursts, 100 * _MS)["bytes"].to_list() == bursts["bytes"].to_list()


def test_pieces_far_apart_stay_apart() -> None:
    bursts = make_bursts([400_000] * 8 + [130_000, 270_000])
    assert join_torn(bursts, 10 * _MS).height == bursts.height


def test_sizes_that_are_usual_themselves_are_no_pieces() -> None:
    bursts = make_bursts([130_000, 270_000, 400_000] * 5)
    assert join_torn(bursts, 100 * _MS).height == bursts.height


def test_messages_of_queue_pairs_are_never_joined() -> None:
    bursts = make_bursts([400_000] * 8 + [130_000, 270_000], qp=7)
    assert join_torn(bursts, 100 * _MS).height == bursts.height


def test_connections_are_judged_one_by_one() -> None:
    both = pl.concat([make_bursts([400_000] * 8 + [130_000]), make_bursts([400_000] * 8 + [270_000], port=1001)])
    assert join_torn(both, 10_000 * _MS).height == both.height


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 10**9), max_size=40))
def test_no_byte_or_packet_is_lost(sizes: list[int]) -> None:
    bursts = make_bursts(sizes)
    whole = join_torn(bursts, 100 * _MS)
    assert whole.columns == bursts.columns
    assert whole.select(pl.col("bytes", "packets").sum()).row(0) == bursts.select(pl.col("bytes", "packets").sum()).row(
        0
    )
