"""Records that are parts of bursts: cut at random places, or as messages are."""

from __future__ import annotations

import numpy as np
import pytest

from prism.observe.traffic.bursts import find_bursts
from prism.observe.traffic.numbering import mark_overlapping

MS = 1_000_000
BURST = 3_549_312


def make(
    parts: list[list[int]], *, apart_ms: int = 800, pause_ms: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, end and size of records: each list is a burst, whose parts are a pause apart."""
    start, end, size, now = [], [], [], 0
    for burst in parts:
        for part in burst:
            start.append(now)
            end.append(now + MS)
            size.append(part)
            now += MS + pause_ms * MS
        now += apart_ms * MS
    return np.array(start), np.array(end), np.array(size)


def cut(num: int, seed: int) -> list[list[int]]:
    """Bursts of equal size in one to four parts of any size."""
    rng = np.random.default_rng(seed)
    edges = [np.sort(rng.integers(1, BURST, rng.integers(0, 4))) for _ in range(num)]
    return [np.diff(e, prepend=0, append=BURST).tolist() for e in edges]


def heads(parts: list[list[int]], **options: int) -> list[int]:
    start, end, size = make(parts, **options)
    return np.unique(find_bursts(np.zeros(len(start), np.int64), start, end, size)).tolist()


def test_parts_of_any_size_are_joined_where_their_sums_are_equal() -> None:
    parts = cut(20, seed=1)
    assert heads(parts) == np.cumsum([0, *(len(p) for p in parts[:-1])]).tolist()


@pytest.mark.parametrize(
    "parts",
    [
        [[BURST // 2, BURST // 2]] * 20,  # always two messages
        [[BURST // 3] * (1 + i % 3) for i in range(21)],  # sums differ, as those of routed tokens do
        cut(5, seed=2),  # too few to tell
    ],
)
def test_records_that_are_messages_stay_as_they_are(parts: list[list[int]]) -> None:
    assert len(heads(parts)) == sum(len(p) for p in parts)


def test_a_pause_inside_nearly_as_long_as_the_one_between_is_known_from_other_connections() -> None:
    ours, others = cut(20, seed=3), cut(20, seed=4)
    one = make(ours, pause_ms=600)  # no clear difference to 800 ms by itself
    other = make(others)
    start, end, size = (np.concatenate(both) for both in zip(one, other, strict=True))
    connection = np.repeat([0, 1], [len(one[0]), len(other[0])])
    assert len(np.unique(find_bursts(connection, start, end, size))) == 40


def test_a_connection_that_happens_to_be_cut_alike_is_joined_as_the_others_of_its_size_are() -> None:
    made = [make([[BURST]] * 20), *(make(cut(20, seed)) for seed in (5, 6))]
    start, end, size = (np.concatenate(columns) for columns in zip(*made, strict=True))
    connection = np.repeat([0, 1, 2], [len(one[0]) for one in made])
    assert len(np.unique(find_bursts(connection, start, end, size))) == 60


def test_of_two_exporters_that_cut_at_different_places_one_is_kept() -> None:
    start, end = np.array([0, 1, 10, 14, 30]), np.array([8, 20, 20, 20, 40])
    twice = mark_overlapping(np.zeros(5, np.int64), 1, start, end, np.zeros(5, np.bool_))
    assert twice.tolist() == [False, True, False, True, False]
