"""Beginnings: which hosts began a step that others did not, after the last whole one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.observe.steps.beginnings import Beginning, find_beginning

MS = 1_000_000
HOSTS = 4
STEPS = 12
PAIRS = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]


def find(announced: list[tuple[int, int]], after_ms: int = 500, unseen: tuple[int, ...] = ()) -> Beginning | None:
    """Ranks in a ring send to the one before them; after the last step some announce what they wait for."""
    rows = [
        {"pair": PAIRS.index((rank, (rank - 1) % HOSTS)), "start_ns": step * 600 * MS, "bytes": 1_000_000}
        for step in range(STEPS) for rank in range(HOSTS) if step < STEPS // 2 or rank not in unseen
    ]  # fmt: skip
    last = (STEPS - 1) * 600 * MS
    rows += [{"pair": PAIRS.index(pair), "start_ns": last + after_ms * MS, "bytes": 48} for pair in announced]
    messages = pl.DataFrame(rows).with_columns(end_ns=pl.col("start_ns") + 50 * MS)
    begin = np.arange(STEPS) * 600 * MS
    steps = pl.DataFrame({"index": np.arange(STEPS), "start_ns": begin, "end_ns": begin + 600 * MS})
    return find_beginning(messages, pl.DataFrame(PAIRS, schema=["src", "dst"], orient="row"), np.arange(HOSTS), steps)


@pytest.mark.parametrize(
    ("announced", "suspects"),
    [([(3, 0), (0, 1)], (2, 3)), ([(2, 3), (3, 0), (0, 1)], (1, 2)), ([(1, 2), (3, 0), (0, 1)], (2, 3))],
)
def test_the_host_that_others_wait_for_is_one_of_two_neighbours(
    announced: list[tuple[int, int]], suspects: tuple[int, int]
) -> None:
    begun = find(announced)
    assert begun is not None and begun.suspects == suspects


def test_a_barrier_at_the_end_is_sent_by_all() -> None:
    assert find([(rank, (rank + 1) % HOSTS) for rank in range(HOSTS)]) is None


def test_a_job_that_just_ends_began_nothing() -> None:
    assert find([]) is None


def test_what_follows_the_last_transfer_at_once_belongs_to_its_step() -> None:
    assert find([(3, 0)], after_ms=60) is None


def test_a_connection_that_carries_no_data_begins_no_step() -> None:
    assert find([(3, 1)]) is None


def test_nobody_is_named_where_an_exporter_fell_silent_before() -> None:
    begun = find([(0, 1)], unseen=(3,))
    assert begun is None or begun.suspects == ()
