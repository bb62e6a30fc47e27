"""Which pairs of endpoints tie a job together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from prism.observe.jobs.grouping import _is_handed_back, _starts_of, recognise_jobs
from prism.observe.traffic.preparation import prepare_traffic

MB = 1e6


def ties(*pairs: tuple[int, int, int, float]) -> list[bool]:
    """For pairs given as source, destination, number of messages and bytes."""
    src, dst, num, load = (np.array(column) for column in zip(*pairs, strict=True))
    found = _is_handed_back(src, dst, num.astype(np.float64), load.astype(np.float64))
    return [bool(tie) for tie in found]


def test_what_stages_of_a_pipeline_hand_on_comes_back() -> None:
    """The capture ends between the last micro-batch and its gradient."""
    assert ties((0, 4, 24, 200 * MB), (4, 0, 23, 192 * MB), (0, 1, 1_394, 3e11)) == [True, True, False]


@pytest.mark.parametrize(
    "back",
    [(5, 0, 24, 200 * MB), (4, 0, 24, 24e3), (4, 0, 2, 200 * MB)],
    ids=["to another", "acknowledged", "copied"],
)
def test_what_does_not_come_back_alike_ties_nothing(back: tuple[int, int, int, float]) -> None:
    assert ties((0, 4, 24, 200 * MB), back) == [False, False]


def test_pings_tie_nothing_though_they_come_back() -> None:
    assert ties((0, 4, 24, 24 * 64.0), (4, 0, 24, 24 * 64.0)) == [False, False]


def test_no_pairs_are_no_ties() -> None:
    nothing = np.zeros(0, np.int64)
    assert _is_handed_back(nothing, nothing, np.zeros(0), np.zeros(0)).tolist() == []


def test_gradients_tie_hosts_together_however_many_tokens_are_sent_between_two_sums() -> None:
    """Two groups of experts exchange 400 messages in each of 20 steps, and sum gradients with each other once."""
    begin = np.arange(20) * 1_000_000_000
    tokens = (begin[:, None] + np.arange(400) * 2_000_000).ravel()
    sent = [("a", "b", tokens, 6e6), ("b", "a", tokens, 6e6), ("c", "d", tokens, 6e6), ("d", "c", tokens, 6e6)]
    sums = begin + 900_000_000
    sent += [(src, dst, sums, 140e6) for src, dst in (("a", "c"), ("c", "a"), ("b", "d"), ("d", "b"))]
    flows = pl.concat(
        pl.DataFrame({"start_ns": times, "end_ns": times + 1_000_000}).with_columns(
            src=pl.lit(src), dst=pl.lit(dst), bytes=pl.lit(int(size))
        )
        for src, dst, times, size in sent
    )
    (job,) = recognise_jobs(prepare_traffic(flows.sort("start_ns"), None), lambda *_: None)
    assert len(job.endpoints) == 4


def test_steps_of_many_micro_batches_are_as_long_as_it_takes_until_the_next_gradients() -> None:
    """Six micro-batches, each forward and backward through 32 layers; gradients are a hundredth of a pair's bytes."""
    begin = np.arange(20) * 630_000_000
    batches = (begin[:, None] + np.arange(6) * 100_000_000).ravel()
    layers = np.concatenate([np.arange(32) * 1_400_000, 50_000_000 + np.arange(32) * 1_500_000])
    sums = (begin[:, None] + 600_000_000 + np.arange(2) * 10_000_000).ravel()
    flows = pl.concat(
        pl.DataFrame({"start_ns": times, "end_ns": times + 1_000_000}).with_columns(
            src=pl.lit(src), dst=pl.lit(dst), bytes=pl.lit(size)
        )
        for src, dst in (("a", "b"), ("b", "a"))
        for times, size in (((batches[:, None] + layers).ravel(), 6_000_000), (sums, 15_000_000))
    )
    (job,) = recognise_jobs(prepare_traffic(flows.sort("start_ns"), None))
    assert job.period_ns == pytest.approx(6.3e8, rel=0.02)


@pytest.mark.parametrize("always", [False, True])
def test_messages_that_began_to_wait_begin_when_they_would_have_if_they_did_not(always: bool) -> None:
    """Bursts of three messages of 4 ms every 200 ms; the first of each waits for 80 ms, always or since the sixth."""
    step = np.arange(12)
    waits = 80 * (always | (step > 5))
    start = (200 * step[:, None] + np.stack([0 * step, 4 + waits, 8 + waits], axis=1)).ravel()
    end = (200 * step[:, None] + np.stack([4 + waits, 8 + waits, 12 + waits], axis=1)).ravel()
    traffic: Any = SimpleNamespace(
        columns={"start_ns": start, "end_ns": end}, rows_of_stream=lambda stream: np.arange(len(start))
    )
    inside = _starts_of(traffic, 0).reshape(12, 3) - 200 * step[:, None]
    assert (inside[:, 0] == (0 if always else waits)).all() and (
        inside[:, 1:] == start.reshape(12, 3)[:, 1:] - 200 * step[:, None]
    ).all()


def test_messages_of_a_link_that_gets_slow_do_not_wait() -> None:
    """All messages take 4 ms, and 40 ms since the sixth burst."""
    start = (200 * np.arange(12)[:, None] + np.array([0, 50, 100])).ravel()
    end = start + np.repeat([4, 40], 18)
    traffic: Any = SimpleNamespace(
        columns={"start_ns": start, "end_ns": end}, rows_of_stream=lambda stream: np.arange(len(start))
    )
    assert _starts_of(traffic, 0).tolist() == start.tolist()
