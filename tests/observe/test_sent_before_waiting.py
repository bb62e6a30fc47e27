"""What a collective sent before it waited tells whom all others wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl

from prism.observe.findings.standstill import Standstill
from prism.observe.findings.stopped import _name_absorber
from prism.records.findings import Culprit

MS = 1_000_000


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
