"""How many groups sum gradients on a host, from connections written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prism.observe.parallelism.connections import Connection
from prism.observe.parallelism.gradient_groups import (
    Arrivals,
    _count_groups,
    _group_connections,
    fit_independent_ranks,
)

STEPS, STEP_NS, LENGTH_NS = 40, 500_000_000, 10_000_000


def make_connections(sizes: list[int], noise_ns: float = 0.0) -> list[Connection]:
    """Connections of which so many each end as one, a message a step."""
    made = []
    for seed, num in enumerate(sizes):
        end = (
            np.arange(STEPS) * STEP_NS + LENGTH_NS + np.random.default_rng(seed).normal(0, 2e6, STEPS).astype(np.int64)
        )
        start = end - LENGTH_NS
        silence = np.concatenate([[0.0], (start[1:] - end[:-1]).astype(np.float64)])
        made += [
            Connection(src=0, start=start, end=end, silence=silence, shortest=LENGTH_NS, moved=np.full(STEPS, noise_ns))
            for _ in range(num)
        ]
    return made


@pytest.mark.parametrize(
    ("ending_as_one", "groups"),
    [([8], 1), ([4, 4], 2), ([7, 1], 8), ([5, 1, 2], 8), ([6, 2], 4), ([1, 1, 1, 1, 2], 5)],
    ids=["one", "two", "one apart", "unequal", "pairs of channels", "one with more"],
)
def test_groups_that_end_alike_by_chance_are_as_small_as_the_others(ending_as_one: list[int], groups: int) -> None:
    connections = make_connections(ending_as_one)
    assert len(_group_connections(connections, 1_000.0)) == groups


@pytest.mark.parametrize(("slower", "groups"), [(1.0, 4), (2.5, 1)])
def test_a_connection_at_a_slow_place_ends_apart_and_is_no_group(slower: float, groups: int) -> None:
    *others, slow = make_connections([3, 1])
    connections = [*others, replace(slow, shortest=slower * slow.shortest)]
    assert len(_group_connections(connections, 1_000.0)) == groups


def test_stages_that_send_at_other_times_are_counted_by_these_and_not_by_how_much_they_send() -> None:
    first, *others = make_connections([4])
    late = [replace(c, start=c.start + 50_000_000, end=c.end + 50_000_000) for c in others[1:]]
    loads = (1.2, 1.2, 1.0, 1.0)
    groups = [[replace(c, load=load)] for c, load in zip((first, others[0], *late), loads, strict=True)]
    # Two ranks of the first stage, which holds the embeddings, and two of the second.
    found = _count_groups(groups, STEP_NS)
    assert (found.dense, found.stages) == (2, 2)


@pytest.mark.parametrize(("independent", "expected"), [(1, {1}), (2, {2, 4}), (4, {4})])
def test_the_more_ranks_come_independently_the_longer_the_last_visible_one_waits(
    independent: int, expected: set[int]
) -> None:
    come = np.random.default_rng(1).normal(0, 1, (4, independent, 400))
    waits = come.max(axis=(0, 1)) - come[:, 0]
    assert fit_independent_ranks(waits, num_hosts=4, most=4) == expected


def test_ranks_that_hardly_wait_do_not_tell_how_many_come() -> None:
    waits = np.random.default_rng(1).normal(0.02, 0.01, (4, 400))
    assert fit_independent_ranks(waits, num_hosts=4, most=4) == set()


@pytest.mark.parametrize(
    ("hidden", "slow", "expected"), [(0, 0.0, True), (3, 0.0, False), (0, 0.5, False), (3, 0.5, False)]
)
def test_ranks_behind_a_nic_show_by_how_long_even_the_last_visible_one_waits(
    hidden: int, slow: float, expected: bool
) -> None:
    arrive = np.random.default_rng(3).normal(0.0, 0.01, (6 * (1 + hidden), 200))
    arrive[0] += slow  # A host that is always the last hides the others.
    waits = arrive.max(axis=0) - arrive[:6]
    arrivals = Arrivals(group=[], host=list(range(6)), waits=waits, shortest=1e7)
    assert arrivals.are_of_all_ranks(most=8) is expected
