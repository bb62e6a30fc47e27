"""Columns that are named after one unit and hold another are refused or noted; captures that start near zero are not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from prism.collect.tables import FlowOptions, load_flows
from prism.collect.tables.aliases import parse_columns
from prism.errors import InputError

T = 1_795_000_000 * 10**9
MS = 10**6
PER = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def write_steps(path: Path, unit: str, *, named: str = "ns", begin: int = T, size: int = 50_000_000) -> Path:
    """A ring of four that sends for 40 ms in every step of 800 ms: times in `unit`, in columns named after another."""
    rows = [(begin + i * 800 * MS, f"10.0.0.{k}", f"10.0.0.{k % 4 + 1}") for i in range(30) for k in range(1, 5)]
    made = pl.DataFrame(rows, schema=["start", "src", "dst"], orient="row").with_columns(end=pl.col("start") + 40 * MS)
    times = {f"start_{named}": pl.col("start") // PER[unit], f"end_{named}": pl.col("end") // PER[unit]}
    made.select("src", "dst", bytes=pl.lit(size), **times).write_csv(path)
    return path


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_times_that_no_network_can_keep_are_refused_with_their_unit(tmp_path: Path, unit: str) -> None:
    path = write_steps(tmp_path / "f.csv", unit)
    remedy = f"--map start=start_ns:{unit},end=end_ns:{unit}, or rename to start_{unit}, end_{unit}"
    with pytest.raises(InputError, match=rf"f\.csv: 'start_ns' holds no times in ns: .* look like {unit} .*{remedy}"):
        load_flows(path)
    mapped = FlowOptions(columns=parse_columns(f"start=start_ns:{unit},end=end_ns:{unit}"))
    assert load_flows(path, mapped).flows["start_ns"][0] == T


@pytest.mark.parametrize(("unit", "named", "size"), [("us", "ns", 10**6), ("ms", "ns", 1000), ("s", "ms", 10**6)])
def test_times_that_merely_look_like_another_unit_are_noted(tmp_path: Path, unit: str, named: str, size: int) -> None:
    notes = load_flows(write_steps(tmp_path / "f.csv", unit, named=named, size=size)).report.notes
    assert [
        line for line in notes if f"'start_{named}' in {named} lies in 1970" in line and f"look like {unit};" in line
    ]


@pytest.mark.parametrize("begin", [0, 10**9, 10**10, 10**12, T])
def test_captures_may_count_from_any_moment(tmp_path: Path, begin: int) -> None:
    assert load_flows(write_steps(tmp_path / "f.csv", "ns", begin=begin)).report.notes == ()


def test_what_the_user_says_of_a_unit_is_believed(tmp_path: Path) -> None:
    options = FlowOptions(columns=parse_columns("start=start_ns:ns,end=end_ns:ns"))
    assert load_flows(write_steps(tmp_path / "f.csv", "ms"), options).report.notes == ()


def test_a_file_with_a_bad_row_is_judged_by_the_others(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "f.csv", "ms")
    path.write_text(path.read_text() + "10.0.0.1,10.0.0.2,12k,1,2\n")
    with pytest.raises(InputError, match="look like ms since 1970"):
        load_flows(path, FlowOptions(skip_bad_rows=True))


def test_few_rows_are_not_judged(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "f.csv", "ms")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    assert load_flows(path).flows.height == 19
