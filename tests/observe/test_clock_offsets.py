"""How far two clocks are apart, read from messages that both stamp."""

from __future__ import annotations

import numpy as np

from prism.observe.traffic.clock_offsets import find_shift

MS = 1_000_000
UNEVEN = np.cumsum(np.random.default_rng(1).integers(5, 60, 80)) * MS


def test_clocks_are_apart_by_what_all_messages_have_in_common() -> None:
    later = np.delete(UNEVEN, [3, 40]) + 7 * MS
    assert abs(find_shift(UNEVEN, later, 20 * MS) - 7 * MS) < 0.01 * MS


def test_messages_at_even_distances_do_not_tell_how_far_clocks_are_apart() -> None:
    even = np.arange(100) * 5 * MS
    assert np.isnan(find_shift(even, even + 2 * MS, 20 * MS))


def test_bursts_of_even_messages_tell_it_by_where_they_begin() -> None:
    bursts = (np.arange(8)[None, :] * 3 * MS + np.arange(20)[:, None] * 97 * MS).ravel()
    assert find_shift(bursts, bursts + 2 * MS, 20 * MS) == 2 * MS


def test_messages_that_have_nothing_in_common_tell_nothing() -> None:
    others = np.cumsum(np.random.default_rng(2).integers(5, 60, 80)) * MS
    assert np.isnan(find_shift(UNEVEN, others, 20 * MS))
