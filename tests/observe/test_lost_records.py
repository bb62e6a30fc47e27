"""Records that an exporter lost change neither which messages are one call nor how long a step is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from prism.observe.findings.collectives import place_calls
from prism.observe.jobs.small_messages import time_small_messages
from prism.observe.jobs.step_counts import StreamStarts
from prism.observe.parallelism.message_streams import estimate_loss

HOPS, CALLS, STEPS = 4, 12, 5
STREAMS = pl.DataFrame(
    {
        "pair": range(HOPS),
        "src": range(HOPS),
        "dst": [(h + 1) % HOPS for h in range(HOPS)],
        "kind": ["dp"] * HOPS,
        "role": ["oneway"] * HOPS,
        "bytes": [1e6] * HOPS,
    }
)


def make_ring(lost: float, seed: int = 3) -> pl.DataFrame:
    """Calls of a ring one after the other; hops begin as their senders come and end together."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(STEPS):
        for call in range(CALLS):
            begin = (step * CALLS + call) * 1000
            starts = begin + rng.integers(0, 400, HOPS)
            rows += [(h, step, call, int(starts[h]), begin + 900 + int(rng.integers(0, 20))) for h in range(HOPS)]
    names = ["stream", "step", "call", "start_ns", "end_ns"]
    made = pl.DataFrame(rows, schema=names, orient="row").filter(pl.Series(rng.random(len(rows)) >= lost))
    made = made.sort("stream", "start_ns")
    return made.with_columns(
        place=pl.int_range(pl.len()).over("stream", "step").cast(pl.Int32),
        num=pl.len().over("stream", "step").cast(pl.Int32),
    )


@pytest.mark.parametrize("lost", [0.0, 0.05, 0.15])
def test_hops_that_are_under_way_together_are_one_call(lost: float) -> None:
    made = make_ring(lost)
    placed = place_calls(made, STREAMS, made["stream"].to_numpy(), STEPS)
    assert placed["place"].to_list() == made["call"].to_list()
    assert set(placed["num"]) == {CALLS}


def test_messages_between_two_stages_keep_their_own_count() -> None:
    made = make_ring(0.15)
    piped = STREAMS.with_columns(kind=pl.lit("pp"))
    assert place_calls(made, piped, made["stream"].to_numpy(), STEPS).equals(made)


def list_starts(lost: float, layers: int = 40, steps: int = 30) -> tuple[list[StreamStarts], list[StreamStarts]]:
    """A norm at the end of each step of three ranks, and the layers of eight, in nanoseconds; a step takes 10 ms."""
    rng = np.random.default_rng(1)
    step = np.arange(steps) * 10_000_000
    layer = (step[:, None] + np.arange(layers) * 200_000).ravel()
    small, heavy = (
        [
            StreamStarts(times=(t := times + i * 1000)[rng.random(len(t)) >= lost], klass=0)
            for i, times in enumerate([values] * count)
        ]
        for values, count in ((step + 9_000_000, 3), (layer, 8))
    )
    return small, heavy


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_a_norm_of_every_step_tells_how_long_it_is(lost: float) -> None:
    found = time_small_messages(*list_starts(lost))
    assert found is not None and abs(found / 10_000_000 - 1) < 0.001


def test_small_messages_that_cut_layers_unevenly_mark_no_step() -> None:
    small, heavy = list_starts(0.1)
    rng = np.random.default_rng(2)
    odd = [StreamStarts(times=np.sort(rng.integers(0, 300_000_000, 30)), klass=0) for _ in small]
    assert time_small_messages(odd, heavy) is None


def test_a_message_apart_from_all_others_joins_no_call() -> None:
    made = make_ring(0.1)
    at = {"start_ns": 950, "end_ns": 990, "call": 0, "step": 0}
    stray = made.head(1).with_columns(pl.lit(v, dtype=made.schema[c]).alias(c) for c, v in at.items())
    mixed = pl.concat([made, stray])
    placed = place_calls(mixed, STREAMS, mixed["stream"].to_numpy(), STEPS)
    first = placed.filter(pl.col("step") == 0)
    assert first.row(-1, named=True)["place"] == 1
    assert (first["place"][:-1] == first["call"][:-1] + (first["call"][:-1] > 0)).all()


def count_streams(num: Sequence[int]) -> pl.DataFrame:
    """Streams of one family, eight of a host, by how many messages each has."""
    return pl.DataFrame({"num": num}).with_columns(family=0, src_host=pl.int_range(pl.len()) // 8)


@pytest.mark.parametrize("lost", [0.0, 0.05, 0.1, 0.2])
def test_counts_of_like_streams_tell_how_many_records_are_lost(lost: float) -> None:
    left = np.random.default_rng(4).binomial(2000, 1 - lost, 800)
    assert abs(estimate_loss(count_streams(left)) - lost) < 0.03
    other_stage = np.random.default_rng(5).binomial(2400, 1 - lost, 800)
    assert abs(estimate_loss(count_streams([*left, *other_stage])) - lost) < 0.03


def test_streams_that_differ_by_design_or_at_the_edges_have_lost_nothing() -> None:
    by_design, at_the_edges = np.tile([1000, 1500, 2000], 10), np.tile([499, 500, 501], 10)
    two_stages = [680] * 64 + [672] * 64
    assert [estimate_loss(count_streams(num)) for num in (by_design, at_the_edges, two_stages)] == [0.0] * 3
