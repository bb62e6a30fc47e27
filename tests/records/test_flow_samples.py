"""Packet samples become transfers: recognised among other records, split at pauses, never counted twice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
import pytest

from prism.collect.tables.finishing import are_whole_seconds
from prism.collect.tables.samples import (
    are_samples,
    describe_samples,
    find_samples,
    put_together,
    rebuild_transfers,
    samples_per_transfer,
)

MS, S = 10**6, 10**9
RATE, FRAME = 100, 1500


def make_samples(times_ms: Sequence[float], *, rate: int = RATE, **others: str) -> pl.DataFrame:
    """One packet each, counted as many times as the rate says."""
    times = [round(t * MS) for t in times_ms]
    return pl.DataFrame(
        {
            "start_ns": times,
            "end_ns": times,
            "src": "10.0.0.1",
            "dst": "10.0.0.2",
            "bytes": FRAME * rate,
            "packets": rate,
            "sampling_rate": rate,
            **others,
        },
        schema_overrides=dict.fromkeys(("start_ns", "end_ns", "bytes", "packets", "sampling_rate"), pl.Int64),
    )


BURSTS = [*range(10), *range(100, 112)]  # ten samples, a pause, twelve more


@pytest.mark.parametrize(("num", "rate", "found"), [(20, RATE, True), (19, RATE, False), (20, 1, False)])
def test_enough_single_packets_of_a_sampled_stream_are_samples(num: int, rate: int, found: bool) -> None:
    assert find_samples(make_samples(range(num), rate=rate)).to_list() == [found] * num


def test_an_exporter_that_sends_flows_too_sends_no_samples() -> None:
    flow = make_samples([5], exporter="b").with_columns(packets=pl.lit(700, pl.Int64))
    both = pl.concat([make_samples(range(20), exporter="a"), make_samples(range(20), exporter="b"), flow])
    assert find_samples(both).to_list() == [True] * 20 + [False] * 21
    lasting = make_samples(range(20)).with_columns(pl.col("end_ns") + 1)
    assert not find_samples(lasting).any() and not find_samples(both.drop("packets")).any()


def test_a_pause_far_longer_than_the_gaps_ends_a_transfer() -> None:
    found = rebuild_transfers(make_samples(BURSTS))
    assert found.select("start_ns", "end_ns", "bytes", "packets").rows() == [
        (0, 9 * MS, 10 * FRAME * RATE, 10 * RATE),
        (100 * MS, 111 * MS, 12 * FRAME * RATE, 12 * RATE),
    ]
    assert found["sampling_rate"].to_list() == [RATE, RATE] and set(found["src"]) == {"10.0.0.1"}


@pytest.mark.parametrize(
    ("inside", "pause", "cut"),
    [(10, 600, True), (10, 59, False), (4, 600, True), (2, 600, False)],
    ids=["far longer", "less than six times the usual gap", "five gaps before it", "four gaps in all"],
)
def test_a_transfer_ends_between_the_gaps_inside_it_and_a_pause(inside: int, pause: int, cut: bool) -> None:
    gaps_ms = [10] * inside + [20, pause]  # a transfer of a few samples, a pause, and one sample more
    times = [sum(gaps_ms[:k]) for k in range(len(gaps_ms) + 1)]
    made = rebuild_transfers(make_samples(times, rate=RATE))
    assert made["packets"].to_list() == ([RATE * (inside + 2), RATE] if cut else [RATE] * (inside + 3))


def test_samples_without_pauses_stay_single_and_connections_are_cut_apart() -> None:
    other = make_samples(range(30)).with_columns(dst=pl.lit("10.0.0.3"))
    found = rebuild_transfers(pl.concat([make_samples(BURSTS), other]))
    packets = dict(found.group_by("dst").agg("packets").iter_rows())
    assert packets == {"10.0.0.2": [10 * RATE, 12 * RATE], "10.0.0.3": [RATE] * 30}


def test_gaps_that_spread_without_a_jump_are_cut_where_chance_does_not_reach() -> None:
    times = [float(2**i - 1) for i in range(13)]  # each gap is twice the one before: 1, 2, ... 2048 ms
    found = rebuild_transfers(make_samples(times))
    # The usual gap is 48 ms over ln 2; seven times that is 485 ms, so that 512, 1024 and 2048 ms are pauses.
    assert found["packets"].to_list() == [10 * RATE, RATE, RATE, RATE]


def test_what_two_exporters_sample_is_counted_once() -> None:
    both = [make_samples([t + shift for t in BURSTS], exporter=e) for e, shift in (("a", 0.0), ("b", 0.5))]
    found = rebuild_transfers(pl.concat(both))
    assert found["packets"].to_list() == [10 * RATE, 12 * RATE]
    assert found["bytes"].to_list() == [10 * FRAME * RATE, 12 * FRAME * RATE]
    assert set(found["sampling_rate"]) == {RATE // 2}


def test_flows_stay_beside_samples_and_both_are_reported() -> None:
    flow = make_samples([3], rate=1, exporter="b").with_columns(end_ns=pl.lit(7 * MS, pl.Int64))
    made, notes = put_together(pl.concat([make_samples(BURSTS, exporter="a"), flow]))
    assert sorted(made["packets"].to_list()) == [1, 10 * RATE, 12 * RATE]
    assert are_samples(notes) and not are_samples(("two-way records",))
    assert put_together(flow)[1] == () and put_together(flow)[0].equals(flow)


def test_few_samples_in_a_transfer_are_said_to_show_little() -> None:
    many, few = rebuild_transfers(make_samples(BURSTS)), rebuild_transfers(make_samples([*range(9), *range(100, 109)]))
    (line,) = describe_samples(many)
    assert "up to 1 in 100: rebuilt as 2 transfers of usually 11 samples" in line and "known to 30 %" in line
    first, second = describe_samples(few)
    assert "usually 9 samples" in first and second.startswith("with 9 samples in a transfer")
    assert describe_samples(many.clear()) == ()


def test_samples_of_the_usual_transfer() -> None:
    assert samples_per_transfer(rebuild_transfers(make_samples(BURSTS))) == 11.0
    assert samples_per_transfer(make_samples(range(3))) == 1.0
    for nothing in (make_samples([]), make_samples(range(3), rate=1), make_samples(range(3)).drop("packets")):
        assert samples_per_transfer(nothing) == math.inf


def test_times_are_whole_seconds_where_all_of_many_are() -> None:
    whole = pl.DataFrame({"start_ns": [i * S for i in range(20)], "end_ns": [None, *(i * S for i in range(19))]})
    assert are_whole_seconds(whole) and not are_whole_seconds(whole.head(19))
    for column in ("start_ns", "end_ns"):
        odd = pl.when(pl.int_range(pl.len()) == 7).then(pl.col(column) + MS).otherwise(column)
        assert not are_whole_seconds(whole.with_columns(odd.alias(column)))
