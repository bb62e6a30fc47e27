"""Rows with more values than columns: named by line, or left out and counted; separators at the end are no values."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from prism.collect.tables import FlowOptions, load_flows
from prism.errors import BadRowError
from prism.records import TOPOLOGY, read_table
from prism.records.files import read_whole
from prism.records.long_rows import _count_most_separators

HEADER = "start_ns,end_ns,src,dst,bytes"
T = 1_700_000_000_000_000_000
VPC = "2 123456789012 eni-0a1b 10.0.0.1 10.0.0.2 1000 4791 6 3 1000 1700000000 1700000060 ACCEPT OK"


def row(number: int, size: str = "1000") -> str:
    return f"{T + number * 1000},{T + number * 1000 + 500},10.0.0.1,10.0.0.2,{size}"


def write_table(path: Path, lines: list[str], separator: str = ",") -> Path:
    content = "".join(line.replace(",", separator) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "separator"), [("f.csv", ","), ("f.tsv", "\t"), ("f.txt", "|"), ("f.csv", ";"), ("f.csv.gz", ",")]
)
def test_a_row_with_more_values_than_columns_is_named_or_left_out_and_counted(
    tmp_path: Path, name: str, separator: str
) -> None:
    path = write_table(tmp_path / name, [HEADER, row(0), row(1, "1,234"), row(2)], separator)
    with pytest.raises(
        BadRowError, match=r'line 3: more values than columns: "234" .*; fix the row or pass --skip-bad'
    ):
        load_flows(path)
    read = load_flows(path, FlowOptions(skip_bad_rows=True))
    assert read.flows["bytes"].to_list() == [1000, 1000]
    assert read.report.skipped_rows == {"more values than columns": 1}


def test_an_extra_value_after_an_empty_one_is_found(tmp_path: Path) -> None:
    path = write_table(tmp_path / "f.csv", [HEADER, row(0, "1000,,7")])
    with pytest.raises(BadRowError, match='line 2: more values than columns: "7"'):
        load_flows(path)


@pytest.mark.parametrize("header", [HEADER, HEADER + ","])
def test_separators_at_the_ends_of_rows_are_no_values(tmp_path: Path, header: str) -> None:
    path = write_table(tmp_path / "f.csv", [header, row(0, "1000,"), row(1, "1000"), row(2, "1000, ")])
    assert load_flows(path).report.rows == 3


def test_a_separator_or_line_break_in_quotes_is_part_of_its_value(tmp_path: Path) -> None:
    notes = ('"a,b"', '"a\nb,c,d,e,f,g,h"', "plain")
    path = write_table(
        tmp_path / "f.csv", [HEADER + ",note", *(row(k, f"1000,{note}") for k, note in enumerate(notes))]
    )
    assert load_flows(path).report.rows == 3


def test_further_fields_of_a_custom_vpc_flow_log_without_a_header_are_no_extra_values(tmp_path: Path) -> None:
    path = write_table(tmp_path / "vpc.log", [f"{VPC} vpc-1 subnet-2 ingress"] * 2)
    assert load_flows(path).flows["bytes"].to_list() == [1000, 1000]


def test_a_topology_and_any_other_table_with_such_a_row_are_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", ["address,host,rail,switch", "10.0.0.1,a,0,s", "10.0.0.2,b,0,s,9"])
    for read in (lambda: read_table(path, TOPOLOGY), lambda: read_whole(path)):
        with pytest.raises(BadRowError, match=r't\.csv line 3: more values than columns: "9" has no column'):
            read()


def test_a_column_that_happens_to_have_the_name_of_the_mark_is_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "f.csv", [HEADER + ",_extra", row(0, "1000,x")])
    assert load_flows(path).flows.select(pl.len()).item() == 1


@pytest.mark.parametrize("comment", [None, "#"])
def test_the_line_with_most_separators_counts_and_comments_do_not(tmp_path: Path, comment: str | None) -> None:
    path = write_table(tmp_path / "f.csv", ["#,,,,,", "a,b", ",#,c", "d"])
    assert _count_most_separators(path, ",", comment) == (2 if comment else 5)
    path.write_bytes(b"a,b\nc,d,e")
    assert _count_most_separators(path, ",", comment) == 2  # the last line has no end
    path.write_bytes(b"")
    assert _count_most_separators(path, ",", comment) == 0
