"""Bursts: what a connection sends between two long silences, however its records are cut."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.traffic.bursts import Bursts, join_bursts

MS = 1_000_000
BURST = 3_500_000


def join(silence_ms: list[int], burst: list[int], seed: int = 0) -> Bursts | None:
    """Bursts of two connections: each is cut into up to four parts 10 ms apart, and followed by a silence."""
    rng = np.random.default_rng(seed)
    rows = []
    for stream in (0, 1):
        now = 0
        for silence, size in zip(silence_ms, burst, strict=True):
            edges = np.sort(rng.integers(10_000, size - 10_000, rng.integers(0, 4)))
            for part in np.diff(edges, prepend=0, append=size).tolist():
                rows.append({"stream": stream, "pair": stream, "start_ns": now, "end_ns": now + MS, "bytes": part})
                now += 11 * MS
            now += silence * MS
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
