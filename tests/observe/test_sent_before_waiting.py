"""What a collective sent before it waited tells whom all others wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from prism.observe.findings.standstill import Standstill
from prism.observe.findings.stopped import _name_absorber
from prism.observe.findings.waits import _adds_up, _sum_kept
from prism.records.findings import Culprit

MS = 1_000_000


def sum_up(begun: list[int], starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Costs by host and step of two hosts that exchange two collectives, one hop each way."""
    source, target = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
    calls: Any = SimpleNamespace(
        step=np.zeros(4, np.int64), start=np.array(starts) * MS, end=np.array([90, 90, 100, 100]) * MS
    )
    return _sum_kept(np.arange(4), np.array([0, 2, 4]), (source, target), calls, np.array(begun), (2, 1))


def test_the_host_that_keeps_what_reaches_it_is_waited_for() -> None:
    cost, seen = sum_up([900, 100, 0, 0], [10, 12, 95, 95])
    assert cost[:, 0].tolist() == [0.0, 78.0 * MS] and seen.all()


def test_a_collective_that_was_waiting_already_costs_nothing_more() -> None:
    cost, _ = sum_up([900, 100, 800, 200], [10, 12, 90, 90])
    assert cost[:, 0].tolist() == [0.0, 78.0 * MS]


def test_where_buffers_are_full_the_host_that_sends_nothing_is_waited_for() -> None:
    # A ring of six: more is passed on with every hop after host 0, until the buffers before it are full.
    hops, begun = np.arange(6), np.array([0, 4, 8, 12, 12, 8])
    calls: Any = SimpleNamespace(
        step=np.zeros(6, np.int64), start=np.array([50, 11, 12, 13, 14, 15]) * MS, end=np.full(6, 60 * MS)
    )
    cost, _ = _sum_kept(hops, np.array([0, 6]), (hops, (hops + 1) % 6), calls, begun, (6, 1))
    assert cost[:, 0].tolist() == [45.0 * MS, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("begun", "told"), [([900, 100, 0, 0], True), ([500, 500, 500, 500], False), ([0] * 4, False)])
def test_equal_amounts_are_full_buffers_and_tell_nobody(begun: list[int], told: bool) -> None:
    assert _adds_up(np.arange(4), np.array([0, 2, 4]), np.array(begun)) is told


def stand(sizes: list[int]) -> Any:
    """A ring of hosts that stands still, with what each hop sent before."""
    hosts = [f"h{i}" for i in range(len(sizes))]
    case: Any = SimpleNamespace(
        hosts=hosts, address=lambda e: hosts[e], name_worker=lambda members: Culprit(type="host", id=hosts[members[0]])
    )
    ends = list(range(len(sizes)))
    stuck = pl.DataFrame({"src": ends, "dst": [*ends[1:], 0], "start_ns": 0, "bytes": sizes})
    none = pl.DataFrame()
    return _name_absorber(case, Standstill(none, stuck, frozenset(), {}, {}, 0, {}))


def test_the_host_at_which_a_ring_breaks_off_took_in_more_than_it_sent() -> None:
    found = stand([30, 50, 70, 10])  # More with every hop after host 3, which sends least and is sent most.
    assert found.culprit == Culprit(type="host", id="h3")


def test_where_two_hosts_keep_something_neither_is_named() -> None:
    assert stand([30, 10, 30, 10]) is None
