"""Connections: channels of one collective end together, ranks that are bound to each other begin together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.observe.jobs.step_counts import StreamStarts, choose_period, find_rest_ends, time_rests
from prism.observe.parallelism.connections import (
    Connection,
    _measure_connection,
    begin_as_one,
    ends_as_one,
    measure_bond,
)
from prism.observe.traffic.period import pack_starts

STEPS = 40
STEP_NS = 500_000_000
LENGTH_NS = 10_000_000


def make_connection(start: np.ndarray, end: np.ndarray, noise_ns: float = 0.0) -> Connection:
    """A connection of one message per step."""
    silence = np.concatenate([[0.0], (start[1:] - end[:-1]).astype(np.float64)])
    return Connection(
        src=0,
        start=start.astype(np.int64),
        end=end.astype(np.int64),
        silence=silence,
        shortest=float(np.quantile(end - start, 0.1)),
        moved=np.full(len(start), noise_ns),
    )


def draw(seed: int, scatter_ns: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scatter_ns, STEPS)


def test_connections_of_one_collective_end_together_however_late_each_begins() -> None:
    end = np.arange(STEPS) * STEP_NS + LENGTH_NS + draw(1, 3e6)
    a = make_connection(end - LENGTH_NS + draw(2, 1e6), end)
    b = make_connection(end - LENGTH_NS + draw(3, 1e6), end + 1_200_000)  # stamped by a clock that is 1.2 ms ahead
    assert ends_as_one(a, b)


def test_connections_of_two_collectives_that_begin_together_do_not_end_together() -> None:
    start = np.arange(STEPS) * STEP_NS
    a, b = (make_connection(start, start + LENGTH_NS * (1 + draw(seed, 0.03))) for seed in (4, 5))
    assert not ends_as_one(a, b)
    assert begin_as_one(a, b)


def test_channels_that_one_host_launches_a_little_apart_are_of_one_collective_however_sharp_each_ring_is() -> None:
    start = np.arange(STEPS) * STEP_NS
    a, b = (make_connection(start + move, start + LENGTH_NS + move) for move in (draw(6, 1e4), draw(7, 1e4)))
    assert ends_as_one(a, b, sharp_ns=700.0)
    late = make_connection(start, start + LENGTH_NS + draw(8, 1e5))  # as far apart as groups of tensor-parallel ranks
    assert not ends_as_one(a, late, sharp_ns=700.0)


@pytest.mark.parametrize("seen", [100, 400])
def test_sampling_moves_ends_by_chance_and_that_is_allowed_for(seen: int) -> None:
    rng = np.random.default_rng(seen)
    move = LENGTH_NS / seen
    end = np.arange(STEPS) * STEP_NS + LENGTH_NS
    connections = [make_connection(end - LENGTH_NS, end - rng.exponential(move, STEPS), move) for _ in range(2)]
    assert ends_as_one(*connections)


def test_ranks_that_run_free_begin_apart() -> None:
    start = np.arange(STEPS) * STEP_NS
    a, b = (make_connection(start + draw(seed, 2e6), start + LENGTH_NS) for seed in (6, 7))
    assert not begin_as_one(a, b)
    bond = measure_bond(a, b)
    assert bond is not None
    assert bond.scatter_ns / bond.silence_ns > 1e-3


@given(st.integers(2, 12), st.integers(6, 30))
def test_a_step_is_no_shorter_than_the_rests_between_bursts(buckets: int, steps: int) -> None:
    burst = np.arange(buckets) * 10_000_000
    times = (np.arange(steps)[:, None] * STEP_NS + burst[None, :]).ravel()
    assert len(find_rest_ends(times)) == steps - 1
    assert time_rests([StreamStarts(times=times, klass=0)]) == STEP_NS


def test_few_slow_steps_that_take_most_of_the_time_are_not_all_there_is() -> None:
    lengths = [1] * 30 + [20] * 4
    times = np.cumsum(np.array(lengths) * 50_000_000)
    assert not len(find_rest_ends(times))


def test_steps_between_checkpoints_are_not_taken_for_one_step() -> None:
    micro = np.array([0, 20, 40, 60]) * 1_000_000
    first = np.cumsum([0] + ([200] * 4 + [500]) * 12) * 1_000_000
    parts = [(first[:, None] + micro[None, :]).ravel() + shift for shift in (0, 1000)]
    streams = pack_starts(parts, [0, 0], 1000)
    single = [StreamStarts(times=times, klass=0) for times in parts]
    pauses = first[5::5] - 300_000_000
    period = choose_period(streams, single, single, pauses, 1000)
    assert period == pytest.approx(200_000_000, rel=0.05)


def test_a_message_of_one_sampled_packet_is_moved_as_far_as_others_usually_are() -> None:
    length = np.array([0, 4_000, 8_000, 6_000, 0])
    packets = np.array([1, 4, 2, 3, 2])
    rows, start = np.arange(5), np.arange(5) * 1_000_000
    shortest, moved = _measure_connection(rows, start, start + length, packets * 100, 100.0)
    assert shortest == 0.0
    assert moved.tolist() == [6_000.0, 1_000.0, 4_000.0, 2_000.0, 3_000.0]
