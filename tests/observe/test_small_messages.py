"""Norms mark the steps of jobs whose layers are all alike."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.observe.jobs.grouping import leave_seen_by_chance
from prism.observe.jobs.small_messages import time_small_messages
from prism.observe.jobs.step_counts import StreamStarts
from prism.observe.traffic.records import keep_messages

MS = 10**6
LAYERS, STEPS = 24, 40
FORWARD, BACKWARD = 15 * MS, 30 * MS


def write_layers(every: int = 1, jitter: float = 0.01) -> tuple[StreamStarts, StreamStarts, float]:
    """What a job with like layers sends, its norms (of `every` so many steps), and how long a step is."""
    rng = np.random.default_rng(1)
    gaps = np.tile([FORWARD] * LAYERS + [BACKWARD] * LAYERS, STEPS) * rng.normal(1, jitter, 2 * LAYERS * STEPS)
    times = np.cumsum(gaps).astype(np.int64)
    ends = times[2 * LAYERS - 1 :: 2 * LAYERS * every] + MS
    step = LAYERS * (FORWARD + BACKWARD)
    return StreamStarts(times=times, klass=7), StreamStarts(times=ends, klass=0), step


def test_a_norm_in_every_step_tells_how_long_steps_are_though_every_layer_sends_alike() -> None:
    layers, norms, step = write_layers()
    assert time_small_messages([norms], [layers]) == pytest.approx(step, rel=0.01)


def test_a_loss_that_is_summed_every_other_step_does_not_make_steps_twice_as_long() -> None:
    layers, norms, step = write_layers(every=2)
    assert time_small_messages([norms], [layers]) == pytest.approx(step, rel=0.01)


def test_small_messages_at_any_time_mark_nothing() -> None:
    layers, _, step = write_layers()
    rng = np.random.default_rng(2)
    heartbeats = StreamStarts(times=np.sort(rng.integers(0, int(STEPS * step), 30)), klass=0)
    assert time_small_messages([heartbeats], [layers]) is None


def test_heartbeats_by_a_timer_mark_nothing_though_about_as_much_is_sent_between_them() -> None:
    """Six steps of uniform layers and a tenth of a step pass between two heartbeats of a rendezvous."""
    rng = np.random.default_rng(3)
    step = LAYERS * (FORWARD + BACKWARD)
    gaps = np.tile([FORWARD] * LAYERS + [BACKWARD] * LAYERS, 60) * rng.normal(1, 0.01, 2 * LAYERS * 60)
    layers = StreamStarts(times=np.cumsum(gaps).astype(np.int64), klass=7)
    heartbeats = StreamStarts(times=np.arange(9) * int(6.1 * step) + 7 * MS, klass=0)
    norms = StreamStarts(times=layers.times[2 * LAYERS - 1 :: 2 * LAYERS] + MS, klass=0)
    assert time_small_messages([heartbeats], [layers]) is None
    assert time_small_messages([heartbeats, norms], [layers]) == pytest.approx(step, rel=0.01)


def test_norms_mark_steps_between_evaluations_that_pause_for_many_of_them() -> None:
    layers, norms, step = write_layers()
    at = norms.times[[6, 12]]
    pause = 20 * step

    def hold(times: np.ndarray) -> np.ndarray:
        return times + np.searchsorted(at, times, side="left") * pause

    paused = [StreamStarts(times=hold(s.times), klass=s.klass) for s in (norms, layers)]
    assert time_small_messages([paused[0]], [paused[1]]) == pytest.approx(step, rel=0.01)


def test_norms_mark_steps_though_a_fault_moves_them_within_their_step_from_then_on() -> None:
    layers, norms, step = write_layers()
    late = np.where(norms.times > 12 * step, norms.times + 10 * MS, norms.times)
    moved = StreamStarts(times=late, klass=0)
    assert time_small_messages([moved], [layers]) == pytest.approx(step, rel=0.01)


def test_small_flows_beside_rdma_are_left_out() -> None:
    columns = {
        "src": ["a", "b", "a", "c", "b"], "dst": ["b", "a", "b", "a", "c"], "bytes": [10**8, 10**8, 180, 180, 10**6],
        "dst_port": [4791, 4791, 29500, 29500, 2049], "start_ns": [0, 0, 5, 6, 7], "end_ns": [4, 4, 6, 7, 9],
    }  # fmt: skip
    notes: list[str] = []
    kept, _, _ = keep_messages(pl.DataFrame(columns), notes)
    assert kept["start_ns"].to_list() == [0, 0, 6, 7]  # What comes from elsewhere is not between two that send RDMA.
    assert notes == ["1 small flows that are not RDMA, such as heartbeats, were left out"]
    sockets = pl.DataFrame(columns | {"dst_port": [40001, 40002, 40001, 40003, 2049]})
    assert keep_messages(sockets, notes)[0].height == 5


@pytest.mark.parametrize(
    ("sizes", "sample_bytes", "kept"),
    [
        ([3e8, 34_688], 132_480.0, [3e8]),
        ([34_688, 1_084], 132_480.0, [34_688, 1_084]),
        ([3e8, 1_084], 0.0, [3e8, 1_084]),
    ],
    ids=["one packet beside gradients", "nothing else", "not sampled"],
)
def test_messages_of_one_sampled_packet_mark_no_steps(
    sizes: list[float], sample_bytes: float, kept: list[float]
) -> None:
    candidates = pl.DataFrame({"bytes": sizes}, schema={"bytes": pl.Float64})
    assert leave_seen_by_chance(candidates, sample_bytes)["bytes"].to_list() == kept
