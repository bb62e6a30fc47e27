"""Tables of flows at the borders of what is taken: numbers as addresses, nested JSON, compressed files, empty columns."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from test_flow_files import GOOD, START

from prism.collect.tables import FlowOptions, load_flows, read_flows, scan_flows, write_flows
from prism.collect.tables.aliases import Alias, find_aliases
from prism.collect.tables.files import make_flows
from prism.collect.tables.plan import typed_csv_columns
from prism.errors import BadFileError, BadRowError, InputError
from prism.records import compression as compressed
from prism.records import files
from prism.records.delimited import is_flow_message
from prism.records.json_tables import _DEEPEST, _to_text, read_json_lines
from prism.records.settings import parse_mapping
from prism.records.text_tables import find_text_table
from prism.records.times import infer_unit
from prism.records.tracks import check_times

FIRST_IPV4 = 1 << 24  # 1.0.0.0


def numbered(*addresses: int) -> pl.DataFrame:
    """Flows between addresses that are whole numbers."""
    count = len(addresses)
    return pl.DataFrame(
        {"start_ns": [START] * count, "src": list(addresses), "dst": list(addresses), "bytes": [1] * count}
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(FIRST_IPV4, "1.0.0.0"), (2**32 - 1, "255.255.255.255"), (FIRST_IPV4 - 1, str(FIRST_IPV4 - 1)), (7, "7")],
)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_numbers_are_addresses_from_the_first_that_can_be_none_else(
    tmp_path: Path, number: int, text: str, ending: str
) -> None:
    path = tmp_path / f"flows.{ending}"
    files.write(numbered(number, number), path)
    assert read_flows(path)["src"].to_list() == [text, text]


@pytest.mark.parametrize("numbers", [(7, FIRST_IPV4), (FIRST_IPV4, 2**32)], ids=["small and large", "too large"])
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_numbers_that_are_partly_addresses_are_refused(tmp_path: Path, numbers: tuple[int, int], ending: str) -> None:
    path = tmp_path / f"flows.{ending}"
    files.write(numbered(*numbers), path)
    with pytest.raises(BadRowError, match=f"numbers from {numbers[0]} to {numbers[1]}"):
        read_flows(path)


def test_one_name_far_down_shows_that_numbers_are_names(tmp_path: Path) -> None:
    rows = [f"{START},{FIRST_IPV4 + i},{FIRST_IPV4},1" for i in range(1000)] + [f"{START},node-7,{FIRST_IPV4},1"]
    (tmp_path / "flows.csv").write_text("start_ns,src,dst,bytes\n" + "\n".join(rows))
    read = read_flows(tmp_path / "flows.csv")
    assert read["src"][0] == str(FIRST_IPV4) and read["src"][-1] == "node-7"


def test_several_files_are_scanned_as_one(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_flows(GOOD, tmp_path / name)
    assert scan_flows([tmp_path / "a.parquet", tmp_path / "b.parquet"]).collect().height == 2 * GOOD.height


def test_a_flow_without_packets_is_one_and_with_fewer_is_none(tmp_path: Path) -> None:
    made = make_flows(GOOD.with_columns(packets=pl.Series([0, -1])), "a query")
    assert made.flows["packets"].to_list() == [0]
    assert made.report.skipped_rows == {"rows that are not flows": 1}
    with pytest.raises(BadRowError, match="a query: 1 of 2 rows are not flows"):
        make_flows(GOOD.with_columns(packets=pl.Series([0, -1])), "a query", FlowOptions())


def test_samples_are_put_together_unless_a_stream_does_so_later(tmp_path: Path) -> None:
    times = [START + i * 10**6 for i in (*range(15), *range(100, 115))]
    columns = {"start_ns": times, "end_ns": times, "src": "10.0.0.1", "dst": "10.0.0.2", "bytes": 100, "packets": 10}
    write_flows(pl.DataFrame(columns).with_columns(sampling_rate=pl.lit(10)), tmp_path / "flows.parquet")
    assert read_flows(tmp_path / "flows.parquet").height == 2
    assert read_flows(tmp_path / "flows.parquet", FlowOptions(samples=True)).height == 30


def test_times_that_nfdump_cut_to_seconds_are_refused_unless_they_are_wanted(tmp_path: Path) -> None:
    row = "2023-11-14 22:13:20,2023-11-14 22:13:21,1.000,10.0.0.1,10.0.0.2,3,100\n"
    (tmp_path / "flows.csv").write_text("ts,te,td,sa,da,ipkt,ibyt\n" + 20 * row)
    with pytest.raises(BadRowError):
        read_flows(tmp_path / "flows.csv")
    read = load_flows(tmp_path / "flows.csv", FlowOptions(keep_cut_times=True))
    assert read.flows.height == 20 and any("whole seconds" in note for note in read.report.notes)


def test_a_name_of_no_format_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.parquet.*\.csv"):
        write_flows(GOOD, tmp_path / "flows.doc")
    assert files._explain(ValueError("one\ntwo"), tmp_path) == f"{tmp_path}: one; export it again"
    assert files._explain(ValueError(), tmp_path) == f"{tmp_path}: ValueError; export it again"


# -- compressed files


def test_a_compressed_file_is_read_up_to_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "_PIECE", 4)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(range(20))))
    assert compressed.unpack(path, 10) == bytes(range(10)) and compressed.unpack(path) == bytes(range(20))
    monkeypatch.setattr(compressed, "_MOST_BYTES", 20)
    assert compressed.unpack(path) == bytes(range(20))
    monkeypatch.setattr(compressed, "_MOST_BYTES", 19)
    with pytest.raises(BadFileError, match="unpacks to over"):
        compressed.unpack(path)


def test_the_first_bytes_of_a_broken_file_are_read_and_the_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 1000)[:-9])
    assert compressed.unpack(path, 100) == bytes(range(100))
    with pytest.raises(BadFileError, match="broken gzip file"):
        compressed.unpack(path)


# -- text


def test_the_line_of_broken_json_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "flows.json"
    path.write_text('[\n{"src": "a"},\n{"src": oops}\n]')
    with pytest.raises(BadFileError, match="flows.json line 3: not valid JSON"):
        read_flows(path)


def test_objects_in_objects_become_columns_down_to_a_depth() -> None:
    nested: dict[str, object] = {"x": 1}
    for _ in range(_DEEPEST + 1):
        nested = {"a": nested}
    ((name, value),) = _to_text(nested).items()
    assert name == ".".join(["a"] * (_DEEPEST + 1)) and value == '{"x": 1}'
    assert _to_text({"a": {"b": {"c": 1, "d": None}}, "e": "text"}) == {"a.b.c": "1", "a.b.d": None, "e": "text"}


def test_a_header_of_two_addresses_is_one_of_a_cloud() -> None:
    assert find_text_table("srcaddr dstaddr\n", "x").separator == " "


def test_a_message_with_a_group_in_it_is_no_flow() -> None:
    addresses = b"\x12\x04\x0a\x00\x00\x01\x1a\x04\x0a\x00\x00\x02"
    assert is_flow_message(addresses) and is_flow_message(b"\x08\x01" + addresses)  # the first field may be a number
    for kind in (3, 4, 6, 7):  # each would be passed over as four bytes
        assert not is_flow_message(bytes([0x08 | kind]) + bytes(4) + addresses)


def test_a_date_that_is_none_is_reported_in_the_words_of_the_reader() -> None:
    with pytest.raises(BadFileError, match=r"x: not YAML \(month must be in 1\.\.12"):
        parse_mapping("a: 2023-99-99", "x", "a")


def test_a_column_of_times_without_a_value_is_named() -> None:
    empty = pl.LazyFrame({"start": pl.Series([None, None], dtype=pl.Int64)})
    with pytest.raises(BadRowError, match="x: 'start' has no value in any row"):
        infer_unit(empty, "start", pl.Int64(), "x", "start")


def test_the_row_that_ends_before_it_starts_is_counted_from_one() -> None:
    with pytest.raises(BadRowError, match="spans row 2: 'end_ns' is 3, before its start_ns 7"):
        check_times(pl.DataFrame({"start_ns": [0, 7], "end_ns": [1, 3]}), "spans")


def test_a_line_that_is_no_object_is_named_and_the_others_are_read() -> None:
    read = read_json_lines('{"src": "a"}\n7\n\n{"src": "b"\n{"src": "c"}')
    assert read.frame["src"].to_list() == ["a", "c"] and read.lines == [1, 5]
    assert [number for number, _ in read.bad_lines] == [2, 4] and read.bad_lines[0][1] == "not a JSON object"


def test_whole_numbers_of_any_table_are_typed_when_it_is_read_and_times_of_known_unit() -> None:
    names = ["start_ns", "time_flow_end_ns", "src", "dst", "bytes", "packets", "src_port", "ts"]
    typed = typed_csv_columns(names)
    assert set(typed) == {"start_ns", "time_flow_end_ns", "bytes", "packets", "src_port"}
    assert set(typed.values()) == {pl.Int64()}


def test_a_duration_that_was_chosen_stands_for_the_end_unless_that_was_chosen_too() -> None:
    took = Alias("took", "duration", "ms")
    columns = ["start_ns", "end_ns", "took", "stop"]
    assert set(find_aliases(columns, (took,))) == {"start_ns", "duration"}
    both = find_aliases(columns, (took, Alias("stop", "end_ns", "ms")))
    assert both["end_ns"][0] == "stop" and both["duration"][0] == "took"
    assert set(find_aliases(columns)) == {"start_ns", "end_ns"}
