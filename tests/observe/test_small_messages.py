"""Norms mark the steps of jobs whose layers are all alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from prism.observe.jobs.grouping import measure_period
from prism.observe.jobs.small_messages import time_small_messages
from prism.observe.jobs.step_counts import StreamStarts
from prism.observe.traffic.preparation import prepare_traffic

MS = 10**6
LAYERS, STEPS = 24, 20
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


def test_messages_of_one_sampled_packet_mark_no_steps() -> None:
    # One packet in 32 is seen: of a sum of a few numbers a record is left now and then, of gradients one in every step.
    hosts = [f"10.0.{i}.1" for i in range(4)]
    moments = [(step * 10**9, host, 300 << 20, 600) for step in range(60) for host in range(4)]
    moments += [(step * 10**9 + 7 * 10**8, 0, 34_688, 0) for step in (3, 20, 41, 57)]
    flows = pl.DataFrame(
        [
            {
                "start_ns": at + host * 10**4, "end_ns": at + host * 10**4 + took * 10**6, "src": hosts[host],
                "dst": hosts[(host + 1) % 4], "bytes": size, "src_port": 1000 + (size < 10**6), "dst_port": 4791,
            }
            for at, host, size, took in moments
        ]
    )  # fmt: skip
    traffic = replace(prepare_traffic(flows), sample_bytes=132_480.0)
    period = measure_period(traffic, np.arange(traffic.pairs.height), np.zeros(0, np.int64))
    assert period == pytest.approx(10**9, rel=0.01)
