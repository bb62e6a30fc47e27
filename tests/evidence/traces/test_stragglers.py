"""A rank is called slow where chance and the scatter of the steps do not explain that others wait for it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.evidence.traces.stragglers import find_straggler


def record(late_ms: float, *, steps: int, ranks: int, seed: int, scatter_ms: float = 5.0) -> pl.DataFrame:
    """Arrivals of ranks at two calls a step; rank 1 comes late by so much, all of them by skewed noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        for number in range(2):
            begin = 100.0 * step + 50.0 * number
            came = begin + scatter_ms * rng.exponential(size=ranks) + late_ms * (np.arange(ranks) == 1)
            rows += [
                (step, "0", "all_reduce", number, r, int(came[r] * 1e6), int((came.max() + 5) * 1e6))
                for r in range(ranks)
            ]
    names = ("step", "group", "collective", "number", "rank", "start_ns", "end_ns")
    return pl.DataFrame(rows, schema=list(names), orient="row")


@pytest.mark.parametrize(("steps", "ranks"), [(5, 3), (5, 2), (8, 4), (20, 8)])
def test_nobody_stands_out_of_equal_ranks(steps: int, ranks: int) -> None:
    found = [find_straggler(record(0.0, steps=steps, ranks=ranks, seed=seed)) for seed in range(60)]
    assert not any(f.stands_out for f in found if f)
    assert all(f is not None and 0.0 < f.most_share <= 1.0 for f in found)


@pytest.mark.parametrize(("steps", "ranks"), [(5, 3), (8, 4), (20, 8)])
def test_a_rank_that_is_late_in_every_step_stands_out(steps: int, ranks: int) -> None:
    for seed in range(20):
        found = find_straggler(record(60.0, steps=steps, ranks=ranks, seed=seed, scatter_ms=1.0))
        assert found is not None and found.stands_out and found.rank == 1
        assert found.wait_ns == pytest.approx(120e6, rel=0.1)  # of two calls in a step


def test_one_long_step_makes_no_slow_rank() -> None:
    calm = record(0.0, steps=8, ranks=3, seed=1, scatter_ms=1.0)
    late = (pl.col("step") == 4) & (pl.col("rank") == 2)
    once = calm.with_columns(start_ns=pl.when(late).then(pl.col("start_ns") + 40_000_000).otherwise("start_ns"))
    found = find_straggler(once)
    assert found is not None and not found.stands_out
