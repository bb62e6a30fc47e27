"""What a table of flows and the counters of a port say at a glance."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from prism.collect.tables.summary import endpoints_of, summarize_flows
from prism.errors import BadRowError
from prism.records.ports import PortLoad

FLOWS = pl.DataFrame(
    {
        "start_ns": [0, 10, 90, 50],
        "end_ns": [40, 30, None, 60],
        "src": ["a", "b", "a", "c"],
        "dst": ["b", "a", "b", "c"],
        "bytes": [100, 40, 20, 0],
    }
)


def test_every_figure_of_a_small_table() -> None:
    found = summarize_flows(FLOWS)
    assert (found.rows, found.start_ns, found.end_ns, found.endpoints, found.pairs) == (4, 0, 90, 3, 3)
    assert (found.bytes, found.gbit_per_s) == (160, pytest.approx(160 * 8 / 90))
    assert (found.without_end, found.same_endpoint, found.zero_bytes, found.max_sampling_rate) == (1, 1, 1, None)
    assert found.busiest == (("a", 120), ("b", 40), ("c", 0))
    assert "sampling_rate" in found.missing_columns and found.columns == tuple(FLOWS.columns)


def test_the_largest_sampling_rate_counts() -> None:
    rates = FLOWS.with_columns(sampling_rate=pl.Series([1, 1000, 10, 1]))
    assert summarize_flows(rates).max_sampling_rate == 1000


def test_an_empty_table_has_no_rate() -> None:
    found = summarize_flows(FLOWS.clear())
    assert (found.rows, found.gbit_per_s, found.busiest) == (0, None, ())


def test_only_the_five_busiest_are_named_and_ties_go_by_name() -> None:
    many = pl.DataFrame(
        {"start_ns": [0] * 7, "end_ns": [1] * 7, "src": list("gfedcba"), "dst": ["x"] * 7, "bytes": [5] * 7}
    )
    assert [name for name, _ in summarize_flows(many).busiest] == list("abcde")


def test_a_text_that_is_no_address_is_named() -> None:
    with pytest.raises(BadRowError, match='"10.0.0.300" is not an address'):
        endpoints_of(FLOWS.with_columns(dst=pl.lit("10.0.0.300")))


QUIET = PortLoad(exporter="s1", port=3, load=0.1, peak=0.5, errors=0, discards=0, start_ns=0, end_ns=1)


@pytest.mark.parametrize(
    ("change", "troubled"),
    [
        ({}, False),
        ({"errors": 1}, True),
        ({"discards": 1}, True),
        ({"pauses": 1}, True),
        ({"peak": 0.9}, True),
        ({"peak": 0.89}, False),
        ({"peak": None}, False),
    ],
)
def test_a_port_is_in_trouble_when_it_lost_packets_was_full_or_paused(
    change: dict[str, float | None], troubled: bool
) -> None:
    assert replace(QUIET, **change).is_troubled is troubled  # type: ignore[arg-type]


def test_counters_in_words() -> None:
    assert QUIET.describe() == "switch s1 port 3: up to 50 % of its speed in use (its own counters)"
    loud = replace(QUIET, peak=None, errors=1_200, pauses=3)
    assert loud.describe() == "switch s1 port 3: 1,200 errors, 3 pause frames (its own counters)"
    assert replace(QUIET, peak=None).describe() == "switch s1 port 3: no errors (its own counters)"
    assert QUIET.to_json()["port"] == 3
