"""Pipelines that go on inside hosts, by their links alone."""

from __future__ import annotations

import numpy as np

from prism.observe.parallelism.hidden_stages import find_hidden_stages, name_senders, number_through, pair_ends


def _links(*pairs: tuple[int, int]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    return {a: {b} for a, b in pairs}, {b: {a} for a, b in pairs}


def test_stages_are_counted_through_hosts() -> None:
    forward, backward = _links((1, 2), (3, 4))
    hidden_stages = find_hidden_stages(forward, backward, np.array([0, 0, 1, 1, 2]), {0: 2, 1: 2, 2: 2})
    assert number_through(hidden_stages, forward, {}) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert pair_ends(hidden_stages) == {3: 2}


def test_silent_ranks_between_make_more_stages() -> None:
    forward, backward = _links((1, 2), (3, 4))
    hidden_stages = find_hidden_stages(forward, backward, np.array([0, 0, 1, 1, 2]), {0: 4, 1: 4, 2: 4})
    assert number_through(hidden_stages, forward, {}) == {1: 3, 2: 4, 3: 7, 4: 8}


def test_every_ring_of_hosts_is_counted_from_its_own_first_message() -> None:
    """Replicas on hosts of their own, each leading from its last host back to its first."""
    forward, backward = _links((1, 2), (3, 0), (5, 6), (7, 4))
    hidden_stages = find_hidden_stages(
        forward, backward, np.array([0, 0, 1, 1, 2, 2, 3, 3]), dict.fromkeys(range(4), 2)
    )
    stage = number_through(hidden_stages, forward, {1: 10.0, 3: 20.0, 5: 30.0, 7: 25.0})
    assert stage == {0: 0, 1: 1, 2: 2, 3: 3, 6: 0, 7: 1, 4: 2, 5: 3}


def test_a_rank_that_is_entered_and_left_by_ends_the_search() -> None:
    forward, backward = _links((0, 1), (1, 2))
    assert find_hidden_stages(forward, backward, np.array([0, 1, 2]), {}) == []


def test_what_leaves_by_the_rail_of_its_receiver_is_from_the_rank_that_hears_back() -> None:
    host = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    # Ranks 2 and 3 of one host send to 4 and 5 of the other, on the rails of these; answers come on their own rails.
    senders = name_senders({(0, 4): 10, (1, 5): 11, (6, 2): 12, (7, 3): 13}, host)
    assert senders == {10: 2, 11: 3, 12: 4, 13: 5}


def test_a_connection_that_is_used_both_ways_is_from_its_own_endpoint() -> None:
    assert name_senders({(0, 2): 10, (2, 0): 11}, np.array([0, 0, 1, 1])) == {}
    assert name_senders({(0, 2): 10}, np.array([0, 0, 1, 1])) == {}
