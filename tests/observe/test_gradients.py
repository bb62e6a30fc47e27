"""How gradients leave."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.steps.gradient_overlap import count_before, size_up, study_gradients

MS = 1_000_000
STEP = 100 * MS
STEPS = 10
STREAMS = pl.DataFrame({"src": [0, 0, 2, 2], "dst": [1, 1, 3, 3], "kind": "dp", "bytes": [4e8, 2e8, 2e8, 4e8]})
Sent = tuple[np.ndarray, np.ndarray, np.ndarray]


def send(*bursts: tuple[int, float, float]) -> Sent:
    """Start, end and stream of messages that every step sends: (stream, start, end) in milliseconds."""
    begin = STEP * np.arange(STEPS)[:, None]
    start = (begin + np.array([b[1] * MS for b in bursts])).astype(np.int64).ravel()
    end = (begin + np.array([b[2] * MS for b in bursts])).astype(np.int64).ravel()
    row = np.tile(np.array([b[0] for b in bursts]), STEPS)
    order = np.argsort(start, kind="stable")
    return start[order], end[order], row[order]


def test_buckets_with_compute_between_them_leave_early() -> None:
    found = study_gradients(
        *send((0, 40, 45), (0, 55, 60), (0, 70, 75), (1, 90, 92), (1, 92, 94), (1, 94, 96)), STREAMS, STEPS, STEP
    )
    assert found is not None
    assert (found.early, found.gathered) == (True, True)


def test_buckets_that_follow_each_other_at_once_do_not() -> None:
    found = study_gradients(
        *send((0, 60, 65), (0, 65, 70), (0, 70, 75), (1, 76, 78), (1, 78, 80), (1, 80, 82)), STREAMS, STEPS, STEP
    )
    assert found is not None
    assert (found.early, found.gathered) == (False, True)


def test_a_last_bucket_that_is_smaller_holds_gradients_and_no_parameters() -> None:
    found = study_gradients(*send((0, 40, 45), (0, 55, 60), (0, 70, 75), (1, 85, 90)), STREAMS, STEPS, STEP)
    assert found is not None
    assert (found.early, found.gathered) == (True, False)


def test_gradients_alone_are_not_gathered() -> None:
    found = study_gradients(*send((0, 60, 65), (0, 65, 70)), STREAMS, STEPS, STEP)
    assert found is not None
    assert not found.gathered


def test_parameters_that_come_before_gradients_are_counted() -> None:
    start, _, row = send((1, 2, 6), (1, 6, 10), (0, 60, 65), (0, 65, 70))
    marks = STEP * np.arange(STEPS) - 30 * MS
    assert count_before(marks, start, row, STREAMS, int(size_up(np.array([4e8]))[0])) == 2
