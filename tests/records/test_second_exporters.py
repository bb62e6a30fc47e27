"""Which exporters report again what the sender's own exporter reports, connection by connection."""

from __future__ import annotations

import polars as pl
import pytest

from prism.collect.tables.second_exporters import find_second_exporters

SCHEMA = {"src": pl.String, "dst": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "bytes": pl.Int64}
Row = tuple[str, str, int, int | None, int, str]  # and who reports it
HOME: list[Row] = [("a", "b", 0, 100, 1000, "leaf1"), ("a", "c", 0, 100, 5000, "leaf1")]


def find(*rows: Row) -> list[tuple[object, ...]]:
    flows = pl.DataFrame([*HOME, *rows], schema={**SCHEMA, "exporter": pl.String}, orient="row")
    return find_second_exporters(flows).select("src", "dst", "exporter", "bytes").rows()


def test_what_another_exporter_reports_of_the_same_time_is_reported_again() -> None:
    assert find(("a", "b", 0, 100, 900, "spine")) == [("a", "b", "spine", 900)]
    assert find() == []


@pytest.mark.parametrize(("size", "again"), [(2000, True), (2001, False)])
def test_an_exporter_that_reports_over_twice_as_much_of_a_connection_sees_other_traffic(size: int, again: bool) -> None:
    assert bool(find(("a", "b", 0, 100, size, "spine"))) is again


@pytest.mark.parametrize(("start", "end", "again"), [(50, 150, True), (51, 151, False), (100, None, True)])
def test_traffic_that_moved_to_another_switch_was_reported_once(start: int, end: int | None, again: bool) -> None:
    assert bool(find(("a", "b", start, end, 900, "spine"))) is again


def test_a_connection_that_the_senders_own_exporter_does_not_report_was_reported_once() -> None:
    assert find(("a", "d", 0, 100, 900, "spine"), ("a", "c", 0, 100, 900, "spine")) == [("a", "c", "spine", 900)]


def test_of_two_exporters_that_report_equally_much_the_first_by_name_is_the_senders_own() -> None:
    both: list[Row] = [("a", "b", 0, 100, 1000, "leaf0"), ("a", "c", 0, 100, 5000, "leaf0")]
    assert {row[2] for row in find(*both)} == {"leaf1"}


def test_records_that_name_no_exporter_are_reported_once() -> None:
    flows = pl.DataFrame([row[:5] for row in HOME], schema=SCHEMA, orient="row")
    assert find_second_exporters(flows).is_empty()
    assert find_second_exporters(flows).columns == ["src", "dst", "exporter", "bytes"]
