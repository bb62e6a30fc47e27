"""Which stage an endpoint holds, where steps and hosts tell little."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.observe.jobs.same_job import are_same_job
from prism.observe.parallelism.message_streams import _share_together
from prism.observe.parallelism.stages import (
    StageMap,
    find_exchanging_ways,
    find_stages,
    list_onward_streams,
    spread_over_nics,
)
from prism.observe.traffic.preparation import prepare_traffic

_MS = 1_000_000
_TOPOLOGY = pl.DataFrame(
    {"address": [f"10.0.{h}.{n}" for h in (0, 1) for n in (1, 2)], "host": ["a", "a", "b", "b"],
     "rail": [0, 1, 0, 1], "switch": ["s", "t", "s", "t"]},
    schema_overrides={"rail": pl.Int32},
)  # fmt: skip


def _make_flows(rows: list[tuple[str, str, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["src", "dst", "start_ns"], orient="row").with_columns(
        end_ns=pl.col("start_ns") + _MS, bytes=pl.lit(8_000_000)
    )


def _exchanged(num_steps: int, microbatches: int, lost: int | None = None) -> pl.DataFrame:
    """Two stages that exchange in one call: the first sends an activation alone, the second ends with a gradient."""
    rows = []
    for step in range(num_steps):
        begin = step * (microbatches + 1) * 300
        rows += [(0, 0, 1, begin + 300 * m) for m in range(microbatches)]
        rows += [(1, 1, 0, begin + 300 * (m + 1)) for m in range(microbatches)]
    if lost is not None:
        del rows[lost]
    frame = pl.DataFrame(rows, schema=["stream", "src", "dst", "end_ns"], orient="row")
    return frame.with_columns(pl.col("end_ns") * _MS, (pl.col("end_ns") * _MS - _MS).alias("start_ns"))


def test_a_lone_gradient_comes_before_a_lone_activation() -> None:
    host = np.array([7, 9])
    assert find_exchanging_ways(_exchanged(8, 4), host) == {(7, 9)}
    assert find_exchanging_ways(_exchanged(8, 4, lost=13), host) == {(7, 9)}


def test_an_exchange_that_some_steps_drag_out_still_tells_the_way() -> None:
    parts = [_exchanged(1, 1 if step % 6 == 0 else 4) for step in range(40)]
    sent = pl.concat(part.with_columns(pl.col("start_ns", "end_ns") + 10**10 * i) for i, part in enumerate(parts))
    assert find_exchanging_ways(sent, np.array([7, 9])) == {(7, 9)}


def test_messages_that_go_there_and_back_by_turns_tell_no_way() -> None:
    assert find_exchanging_ways(_exchanged(8, 1), np.array([7, 9])) == set()


def _nics(hosts: int, per_host: int, seen: tuple[int, ...]) -> pl.DataFrame:
    rows = [(h * per_host + n, h, n, per_host) for h in range(hosts) for n in seen]
    return pl.DataFrame(rows, schema=["endpoint", "host_id", "place", "places"], orient="row")


def test_stages_that_share_a_host_follow_the_order_of_its_nics() -> None:
    nics = _nics(2, 4, (0, 1, 2, 3))
    stages = StageMap(stage={0: 0, 3: 0, 4: 1, 7: 1}, chains=((0, 4), (3, 7)), confidence=1.0)
    # Activations enter by the first NIC of a host, gradients by the last.
    pipe = pl.DataFrame({"src": [0, 7], "dst": [4, 3]})
    assert spread_over_nics(stages, pipe, 4, nics) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3}


def test_stages_run_from_the_last_nic_to_the_first_where_activations_enter_by_the_last() -> None:
    nics = _nics(2, 4, (0, 3))
    stages = StageMap(stage={0: 0, 3: 0, 4: 1, 7: 1}, chains=((0, 4), (3, 7)), confidence=1.0)
    pipe = pl.DataFrame({"src": [3, 4], "dst": [7, 0]})
    assert spread_over_nics(stages, pipe, 4, nics) == {3: 0, 0: 1, 7: 2, 4: 3}


def test_messages_that_wait_long_are_not_together_with_all_that_ends_meanwhile() -> None:
    end = np.arange(1, 21) * 100 * _MS
    waiting = end - np.where(np.arange(20) % 4 == 0, 1, 80) * _MS
    twins = end + np.where(np.arange(20) % 5 == 0, 20, 0) * _MS
    assert _share_together(waiting, end, twins, 0.0) == (0.8, 1)


def test_replicas_that_run_free_within_steps_are_of_one_job() -> None:
    rng = np.random.default_rng(3)
    rows = []
    begin = 0.0
    for _ in range(20):
        for nic in (1, 2):
            at = begin + np.cumsum(rng.normal(100, 1.5, 8))
            rows += [(f"10.0.0.{nic}", f"10.0.1.{nic}", int(t * _MS)) for t in at]
        begin += rng.normal(830, 6)
    traffic = prepare_traffic(_make_flows(rows), _TOPOLOGY)
    assert are_same_job(traffic, np.array([0]), np.array([1]))


@pytest.mark.parametrize(("drift_ms", "same"), [(0.0, True), (4.0, False)], ids=["pipeline", "two jobs"])
def test_what_comes_back_by_other_nics_at_a_fixed_distance_is_of_one_pipeline(drift_ms: float, same: bool) -> None:
    rng = np.random.default_rng(7)
    rows, stray = [], 0.0
    for step in range(16):
        stray += rng.normal(0.2, 0.1) + drift_ms  # The distance strays by more than steps differ.
        there, back = step * 1744 + 90.0 * np.arange(4), step * 1744 + 600 + stray + 90.0 * np.arange(4)
        rows += [("10.0.0.1", "10.0.1.1", int(t * _MS)) for t in there]
        rows += [("10.0.1.2", "10.0.0.2", int(t * _MS)) for t in back]
    traffic = prepare_traffic(_make_flows(rows), _TOPOLOGY)
    assert are_same_job(traffic, np.array([0]), np.array([1])) == same


def test_what_interleaved_stages_hand_back_the_same_way_is_of_no_other_ranks() -> None:
    sent = pl.DataFrame(
        {"stream": range(6), "unit": range(6), "src": [0, 0, 0, 0, 1, 1], "dst": [1, 1, 1, 1, 0, 0]}
    ).with_columns(src_host="src", dst_host="dst", kind=pl.lit("pp"), num=pl.Series([368, 752, 376, 752, 737, 740]))
    stages = StageMap(stage={0: 0, 1: 1}, chains=((0, 1),), confidence=1.0)
    onward = list_onward_streams(sent, stages, "unit")
    assert sorted(onward["unit"]) == [1, 3]
    assert onward["from"].to_list() == [0, 0]


@pytest.mark.parametrize("turned", [False, True])
def test_a_path_does_not_turn_round_where_times_are_coarse(turned: bool) -> None:
    # Stage 0 sends at once; activations of stage 1 and gradients of stage 2 leave in seconds that rounding swaps.
    first = {(0, 1): 0, (1, 0): 3, (1, 2): 3, (2, 1): 2}
    rows = [
        (number, *((2 - e for e in way) if turned else way), (10 * step + at) * 1000 * _MS)
        for step in range(8)
        for number, (way, at) in enumerate(first.items())
    ]
    sent = pl.DataFrame(rows, schema=["stream", "src", "dst", "start_ns"], orient="row").sort("start_ns")
    found = find_stages(sent.with_columns(end_ns="start_ns"), np.arange(9) * 10_000 * _MS, np.array([5, 6, 7]))
    assert found.chains == (((2, 1, 0) if turned else (0, 1, 2)),)
