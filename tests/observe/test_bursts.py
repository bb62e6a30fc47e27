"""Bursts: what a connection sends between two long silences, however its records are cut."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.traffic.bursts import Bursts, join_bursts

MS = 1_000_000
BURST = 3_500_000


def join(silence_ms: list[int], burst: list[int], seed: int = 0) -> Bursts | None:
    """Bursts of two connections at once: each is cut into up to four parts 10 ms apart, and followed by a silence."""
    rng = np.random.default_rng(seed)
    rows = []
    for stream in (0, 1):
        for begin, size in zip(np.cumsum(silence_ms) * MS, burst, strict=True):
            now = int(begin)
            edges = np.sort(rng.integers(10_000, size - 10_000, rng.integers(0, 4)))
            for part in np.diff(edges, prepend=0, append=size).tolist():
                rows.append({"stream": stream, "pair": stream, "start_ns": now, "end_ns": now + MS, "bytes": part})
                now += 11 * MS
    return join_rows(rows)


def join_rows(rows: list[dict[str, int]]) -> Bursts | None:
    """Bursts of messages; every stream has its own connection."""
    messages = pl.DataFrame(rows)
    told = {"per_step": 0.0, "presence": 0.0, "duration_ns": 0.0, "kind": "dp", "role": "routed"}
    streams = messages.group_by("stream", maintain_order=True).agg(pl.col("bytes").mean(), num=pl.len().cast(pl.Int64))
    return join_bursts(messages, streams.with_columns(connection="stream", **{k: pl.lit(v) for k, v in told.items()}))


def test_parts_of_any_size_are_one_burst() -> None:
    bursts = join([300] * 20, [BURST] * 20)
    assert bursts is not None and not bursts.regular
    assert bursts.messages["bytes"].to_list() == [BURST] * 40


def test_sums_that_differ_are_no_bursts() -> None:
    assert join([300] * 20, [BURST + 90_000 * i for i in range(20)]) is None


def test_a_silence_between_slow_steps_that_merges_the_quick_ones_is_not_taken() -> None:
    bursts = join([300] * 25 + [3000] * 25, [BURST] * 50)
    assert bursts is not None and bursts.messages.height == 100


def test_steps_are_found_though_a_rank_waits_longer_inside_some_than_between_them() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for stream, share in ((0, 0.7), (1, 0.4)):
        for begin in (np.arange(30) * 1000 * MS).tolist():
            waits, size = begin + rng.integers(1, 200) * MS, round(share * BURST)
            goes_on = waits + rng.integers(50, 500) * MS
            for at, end, part in ((begin, waits, size), (goes_on, begin + 700 * MS, BURST - size)):
                rows.append({"stream": stream, "pair": stream, "start_ns": at, "end_ns": end, "bytes": part})
    bursts = join_rows(rows)
    assert bursts is not None and bursts.messages["bytes"].to_list() == [BURST] * 60
    assert bursts.steps.height == 30 and set(np.diff(bursts.steps["start_ns"])[1:].round(-9)) == {1000 * MS}


def test_connections_of_a_job_that_is_started_again_continue_those_before() -> None:
    rows = [
        {"stream": run * 2 + pair, "pair": pair, "start_ns": at, "end_ns": at + MS, "bytes": BURST}
        for run in (0, 1) for pair in (0, 1) for at in ((run * 60 + np.arange(12)) * 300 * MS).tolist()
    ]  # fmt: skip
    bursts = join_rows(rows)
    assert bursts is not None and bursts.steps.height == 24
    assert bursts.messages.group_by("pair").agg(pl.col("stream").n_unique())["stream"].to_list() == [1, 1]


def test_connections_that_only_show_two_steps_together_do_not_join_the_steps_of_the_others() -> None:
    rows = [
        {"stream": pair, "pair": pair, "start_ns": at, "end_ns": at + MS, "bytes": BURST + (pair == 0) * (step % 2) * MS}
        for pair in range(6) for step, at in enumerate((np.arange(24) * 300 * MS).tolist())
    ]  # fmt: skip
    bursts = join_rows(rows)
    assert bursts is not None and bursts.steps.height == 24
