"""Records of rings over TCP that several jobs run on the same hosts."""

from __future__ import annotations

import numpy as np
import polars as pl

MS = 1_000_000
HOSTS = 4


def ring(clock: np.ndarray, port: int, size: int, seed: int, way: int = 1) -> pl.DataFrame:
    """A ring over all hosts that sends `size` bytes after each moment of a clock, in records cut at any place."""
    rng, rows = np.random.default_rng(seed), []
    for host in range(HOSTS):
        ends = (f"10.0.0.{host}", port), (f"10.0.0.{(host + way) % HOSTS}", port + 10_000 + host)
        for moment in clock.tolist():
            cuts = np.sort(rng.integers(1, size, rng.integers(2, 6)))
            begin = moment + rng.integers(0, MS, len(cuts) + 1).cumsum() + np.arange(len(cuts) + 1) * 8 * MS
            for start, sent in zip(begin.tolist(), np.diff(cuts, prepend=0, append=size).tolist(), strict=True):
                rows += [
                    (start, start + 2 * MS, *ends[0], *ends[1], sent),
                    (start, start + 2 * MS, *ends[1], *ends[0], 64),
                ]
    columns = ("start_ns", "end_ns", "src", "src_port", "dst", "dst_port", "bytes")
    return pl.DataFrame(rows, schema=columns, orient="row").select(
        "start_ns", "end_ns", "src", "dst", "bytes", "src_port", "dst_port"
    )


def clock(step_ms: int, steps: int, seed: int) -> np.ndarray:
    """When the steps of a job end: they differ a little in length."""
    return 10**15 + (step_ms * MS * np.random.default_rng(seed).normal(1, 0.03, steps)).cumsum().astype(np.int64)
