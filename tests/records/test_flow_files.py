"""Flow files of every format, tool and unit come out as the same FLOWS; bad ones are named in one line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from prism.collect.tables import FlowOptions, load_flows, read_flows, scan_flows, write_flows
from prism.errors import InputError
from prism.records import FLOWS, TOPOLOGY, read_table

START = 1_700_000_000_123_456_789
GOOD = pl.DataFrame(
    {
        "start_ns": [START, START + 5],
        "end_ns": [START + 1000, START + 2005],
        "src": ["10.0.0.1", "10.0.0.2"],
        "dst": ["10.0.0.2", "10.0.0.1"],
        "bytes": [100, 200],
    }
)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "jsonl", "arrow"])
def test_every_format_gives_the_same_flows(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"flows.{ending}"
    write_flows(GOOD, path)
    assert_frame_equal(read_flows(path), GOOD)
    assert_frame_equal(scan_flows(path).collect(), GOOD)


@st.composite
def flow_tables(draw: st.DrawFn) -> pl.DataFrame:
    n = draw(st.integers(1, 20))
    ints = st.integers(0, 2**40)
    start = draw(st.lists(st.integers(0, 9 * 10**16), min_size=n, max_size=n))
    ends = draw(st.lists(st.one_of(st.none(), ints), min_size=n, max_size=n))
    address = st.sampled_from(["10.1.2.3", "fe80::1", "node-7", "node-7:mlx5_0", "02:00:00:00:00:01", "17"])
    rates = draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n))
    counts = draw(st.lists(ints, min_size=n, max_size=n))
    frame = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": pl.Series(
                [None if e is None else s + e for s, e in zip(start, ends, strict=True)], dtype=pl.Int64
            ),
            "src": draw(st.lists(address, min_size=n, max_size=n)),
            "dst": draw(st.lists(address, min_size=n, max_size=n)),
            "bytes": [c * r for c, r in zip(counts, rates, strict=True)],
        }
    )
    if draw(st.booleans()):
        frame = frame.with_columns(sampling_rate=pl.Series(rates, dtype=pl.Int64), exporter=pl.lit("leaf-1"))
    if draw(st.booleans()):
        frame = frame.with_columns(src_port=pl.lit(4791, pl.Int32), qp=pl.lit(2**24 - 1, pl.Int64))
    return FLOWS.conform(frame)


@given(flow_tables(), st.sampled_from(["parquet", "csv", "jsonl", "arrow"]))
def test_what_is_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, flows: pl.DataFrame, ending: str
) -> None:
    path = tmp_path_factory.mktemp("flows") / f"flows.{ending}"
    write_flows(flows, path)
    back = read_flows(path)
    present = [c for c in back.columns if c in flows.columns]
    assert_frame_equal(back.select(present), flows.select(present))


FOREIGN = {
    "goflow2": (
        "time_flow_start_ns,time_flow_end_ns,src_addr,dst_addr,bytes,packets,sampling_rate,sampler_address,src_port\n"
        f"{START},{START + 1000},10.0.0.1,10.0.0.2,100,1,10,10.9.9.9,4791\n",
        {"start_ns": START, "end_ns": START + 1000, "bytes": 1000, "packets": 10, "exporter": "10.9.9.9"},
    ),
    "akvorado": (
        "TimeReceived,SrcAddr,DstAddr,Bytes,Packets,SamplingRate\n"
        "2023-11-14 22:13:20,::ffff:10.0.0.1,::ffff:10.0.0.2,100,1,1\n",
        {"start_ns": 1_700_000_000 * 10**9, "end_ns": None, "src": "10.0.0.1", "bytes": 100},
    ),
    "nfdump 1.6": (
        "ts,te,td,sa,da,sp,dp,pr,ipkt,ibyt\n"
        "2023-11-14 22:13:20.100,2023-11-14 22:13:21.100,1.000,10.0.0.1,10.0.0.2,1,4791,UDP,3,100\n"
        "Summary\nflows,bytes,packets\n1,100,3\n",
        {"start_ns": 1_700_000_000_100_000_000, "end_ns": 1_700_000_001_100_000_000, "packets": 3, "dst_port": 4791},
    ),
    "nfdump 1.7": (
        "firstSeen,duration,proto,srcAddr,srcPort,dstAddr,dstPort,packets,bytes,flows\n"
        "2023-11-14 22:13:20.100,0.250,17,10.0.0.1,1,10.0.0.2,2,3,100,1\n",
        {"start_ns": 1_700_000_000_100_000_000, "end_ns": 1_700_000_000_350_000_000},
    ),
    "IPFIX names": (
        "flowStartMilliseconds,flowEndMilliseconds,sourceIPv4Address,destinationIPv4Address,octetDeltaCount\n"
        "1700000000123,1700000000124,10.0.0.1,10.0.0.2,100\n",
        {"start_ns": 1_700_000_000_123_000_000, "end_ns": 1_700_000_000_124_000_000, "bytes": 100},
    ),
    "H3C": (
        "Time,SourceIp,DestIp,SourceQp,DestQp,Rtt(ns),ReadPkts,WritePkts,SendPkts,NakPkts\n"
        "2023-11-14T22:13:20Z,10.0.0.1,10.0.0.2,11,12,5000,1,2,3,0\n",
        {"start_ns": 1_700_000_000 * 10**9, "end_ns": None, "packets": 6, "bytes": 6 * 4096, "qp": 12},
    ),
    "seconds with decimals": (
        "start_s,end_s,src,dst,bytes\n1700000000.123456789,1700000000.123457,a,b,1\n",
        {"start_ns": START, "end_ns": 1_700_000_000_123_457_000},
    ),
    "unit by magnitude": (
        "start,end,src,dst,bytes\n1700000000123456,1700000000123457,a,b,1\n",
        {"start_ns": 1_700_000_000_123_456_000, "end_ns": 1_700_000_000_123_457_000},
    ),
    "another time zone": (
        "ts,src,dst,bytes\n2023-11-15T00:13:20+02:00,a,b,1\n",
        {"start_ns": 1_700_000_000 * 10**9},
    ),
    "nfcapd, whose exporter sends the end first": (
        "first,last,src4_addr,dst4_addr,in_bytes\n"
        "2023-11-14 22:13:21.100,2023-11-14 22:13:20.100,10.0.0.1,10.0.0.2,9\n",
        {"start_ns": 1_700_000_000_100_000_000, "end_ns": 1_700_000_001_100_000_000, "bytes": 9},
    ),
    "duration in microseconds": ("start_ns,duration_us,src,dst,bytes\n5,2,a,b,1\n", {"start_ns": 5, "end_ns": 2005}),
}


@pytest.mark.parametrize("tool", FOREIGN)
def test_columns_of_other_tools_are_understood(tmp_path: Path, tool: str) -> None:
    text, expected = FOREIGN[tool]
    row = read_flows(write(tmp_path / "export.csv", text)).row(0, named=True)
    assert {k: row[k] for k in expected} == expected


def test_binary_addresses_of_a_clickhouse_table_become_text(tmp_path: Path) -> None:
    v4 = bytes([10, 0, 0, 1]) + bytes(12)
    mapped = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 2])
    pl.DataFrame({"time_flow_start_ns": [1], "src_addr": [v4], "dst_addr": [mapped], "bytes": [9]}).write_parquet(
        tmp_path / "f.parquet"
    )
    assert read_flows(tmp_path / "f.parquet").select("src", "dst").row(0) == ("10.0.0.1", "10.0.0.2")


def test_a_sampled_file_keeps_its_counts_on_disk_and_scales_them_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "start_ns,end_ns,src,dst,bytes,sampling_rate\n1,2,a,b,7,100\n1,2,a,b,7,0\n")
    flows = read_flows(tmp_path / "a.csv")
    assert flows["bytes"].to_list() == [700, 7]
    write_flows(flows, tmp_path / "b.csv")
    assert pl.read_csv(tmp_path / "b.csv")["bytes"].to_list() == [7, 7]


def test_a_folder_of_files_is_one_table(tmp_path: Path) -> None:
    write_flows(GOOD, tmp_path / "day1" / "a.parquet")
    write_flows(GOOD.with_columns(packets=pl.lit(1, pl.Int64)), tmp_path / "b.csv")
    (tmp_path / "notes.md").write_text("not a table")
    read = load_flows(tmp_path)
    assert (read.report.files, read.flows.height) == (2, 4)
    assert read.flows["packets"].null_count() == 2


HEADER = "start_ns,end_ns,src,dst,bytes\n"
BAD = {
    "an empty file": ("f.csv", b"", "f.csv: the file is empty"),
    "nothing but blank lines": ("f.csv", b" \n\n", "f.csv: the file is empty"),
    "Latin letters in one byte": (
        "f.csv", (HEADER + "1,2,a,\xe9,3\n").encode("latin-1"), "f.csv line 2: not UTF-8 text; convert it"),
    "only a header": ("f.csv", b"x,y\n", "no column for 'start_ns'"),
    "a missing column": ("f.csv", b"start_ns,src,bytes\n1,a,2\n", "no column for 'dst'"),
    "no size at all": ("f.csv", b"start_ns,src,dst\n1,a,b\n", "no column for 'bytes'"),
    "a doubled column": ("f.csv", b"start_ns,src,dst,bytes,bytes\n1,a,b,2,3\n", "column 'bytes' appears twice"),
    "a wrong type": ("f.csv", HEADER + "1,2,a,b,3\n1,2,a,b,12k\n", "line 3: 'bytes' is \"12k\", expected a whole number"),
    "a fraction of a byte": ("f.csv", HEADER + "1,2,a,b,1.5\n", "line 2: 'bytes' is \"1.5\", expected a whole number"),
    "a negative size": ("f.csv", HEADER + "1,2,a,b,-3\n", "line 2: 'bytes' is -3, expected zero or more"),
    "a negative duration": (
        "f.csv", "start_ns,duration_ns,src,dst,bytes\n100,-50,a,b,1\n", "line 2: 'duration_ns' is \"-50\", which ends"),
    "an end before its start": ("f.csv", HEADER + "5,4,a,b,3\n", "line 2: 'end_ns' is \"4\", which ends the flow before"),
    "a missing value": ("f.csv", HEADER + "1,2,,b,3\n", "line 2: 'src' is empty, expected an address"),
    "an unknown address": ("f.csv", HEADER + "1,2,999.1.1.1,b,3\n", "line 2: 'src' is \"999.1.1.1\", expected an address"),
    "an address with spaces": ("f.csv", HEADER + "1,2,a b,b,3\n", "line 2: 'src' is \"a b\", expected an address"),
    "milliseconds among nanoseconds": (
        "f.csv", HEADER + f"{START},{START},a,b,3\n1700000000123,1700000000124,a,b,3\n",
        "line 3: 'start_ns' is 1700000000123, which looks like ms among ns: mixed time units"),
    "an end in another unit": (
        "f.csv", HEADER + f"{START},1700000000123,a,b,3\n", "it looks like ms: mixed time units"),
    "a column that mixes units": (
        "f.csv", "start,src,dst,bytes\n1700000000,a,b,1\n1700000000123,a,b,1\n", "'start' mixes time units"),
    "a time without a unit": ("f.csv", "start,src,dst,bytes\n5,a,b,1\n", "cannot tell the unit of 'start'"),
    "a Parquet table without a time": (
        "f.parquet", None, "row 2: 'start_ns' is empty, expected a time (a date, or a number with a decimal point)"),
    "a date that is none": ("f.csv", "ts,src,dst,bytes\n2023-13-99 99:00,a,b,1\n", "line 2: 'ts' is \"2023-13-99 99:00\""),
    "JSON lines without a field": ("f.jsonl", b"{}\n{}\n", "no column for 'start_ns' (it has none)"),
    "a broken JSON line": ("f.jsonl", b'{"start_ns":1,"src":"a","dst":"b","bytes":1}\n{oops\n', "line 2: not valid JSON"),
    "a JSON value of another type": (
        "f.jsonl", b'{"start_ns":1,"src":"a","dst":"b","bytes":1}\n{"start_ns":1,"src":"a","dst":"b","bytes":"x"}\n',
        "line 2: 'bytes' is \"x\", expected a whole number"),
    "garbage named Parquet": ("f.parquet", b"hello world, not parquet", "not a Parquet file"),
    "a truncated Parquet file": ("f.parquet", b"PAR1" + bytes(100), "truncated Parquet file"),
    "zero bytes named CSV": ("f.csv", bytes(5000), "a zero byte where text was expected"),
    "a list inside one object": ("f.json", b'{"flows": [{"a": 1}, {"a": 2}]}', "list 'flows'; write its entries one per line"),
    "a last line cut off": (
        "f.csv", HEADER[:-1] + ",packets\n1,2,a,b,3,9\n1,2,a,b,3", "line 3: the file is cut off inside this line"),
    "UTF-16": ("f.csv", (HEADER + "1,2,a,b,3\n").encode("utf-16"), "iconv -f utf-16 -t utf-8 f.csv"),
    "carriage returns alone": ("f.csv", (HEADER + "1,2,a,b,3\n").replace("\n", "\r"), "tr '\\r' '\\n' < f.csv"),
    "numbers for names": ("f.csv", "2|17950|0|17950|0\n2|17950|0|17950|0\n", "not a header of names (it holds 2)"),
    "a page of prose": ("f.txt", "Dear " + "all " * 500 + "\n1\n", "(it has Dear " + "all " * 13 + "all)"),
    "one endless line": ("f.csv", b"a" * 200_000, "no line break in the first"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_in_one_line(tmp_path: Path, case: str) -> None:
    name, content, expected = BAD[case]
    path = tmp_path / name
    if content is None:
        pl.DataFrame({"start_ns": [1, None], "src": ["a"] * 2, "dst": ["b"] * 2, "bytes": [3, 4]}).write_parquet(path)
    else:
        write(path, content)
    with pytest.raises(InputError) as caught:
        read_flows(path)
    message = str(caught.value)
    assert expected in message
    assert str(path) in message
    assert "\n" not in message


def test_a_parquet_file_cut_in_its_middle_is_refused(tmp_path: Path) -> None:
    write_flows(GOOD, tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    cut = write(tmp_path / "cut.parquet", whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated Parquet"):
        read_flows(cut)
    broken = write(tmp_path / "broken.parquet", b"PAR1" + bytes(60) + whole[-20:])
    with pytest.raises(InputError, match="broken.parquet"):
        read_flows(broken)


def test_a_binary_address_of_unknown_family_is_named(tmp_path: Path) -> None:
    pl.DataFrame({"start_ns": [1], "src": [b"\1\2\3\4\5"], "dst": [b"\1\2\3\4"], "bytes": [9]}).write_parquet(
        tmp_path / "f.parquet"
    )
    with pytest.raises(InputError, match="row 1: 'src' is .* expected an address"):
        read_flows(tmp_path / "f.parquet")


def test_a_ten_gigabyte_sparse_file_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("huge.csv", "huge.parquet"):
        path = tmp_path / name
        with path.open("wb") as handle:
            handle.truncate(10 * 2**30)
        with pytest.raises(InputError, match=name):
            read_flows(path)


def test_byte_order_mark_and_carriage_returns_are_harmless(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + (HEADER + "1,2,a,b,3\n").replace("\n", "\r\n").encode()
    assert read_flows(write(tmp_path / "f.csv", text)).row(0) == (1, 2, "a", "b", 3)


ODD_BUT_READABLE = {
    "blank lines": HEADER + "1,2,a,b,3\n\n\n",
    "spaces after commas": "start_ns, end_ns, src, dst, bytes\n1, 2, a, b, 3\n",
    "whole numbers with a fraction of zero": HEADER + "1,2,a,b,3.0\n",
}


@pytest.mark.parametrize("case", ODD_BUT_READABLE)
def test_texts_as_people_write_them_are_read(tmp_path: Path, case: str) -> None:
    assert read_flows(write(tmp_path / "f.csv", ODD_BUT_READABLE[case])).row(0) == (1, 2, "a", "b", 3)


def test_a_line_cut_off_is_left_out_and_counted_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", HEADER + "1,2,a,b,3\n1,2,a")
    read = load_flows(path, FlowOptions(skip_bad_rows=True))
    assert read.flows.height == 1
    assert read.report.skipped_rows == {"line cut off at the end of a file": 1}


def test_a_last_line_without_its_line_end_is_whole_if_no_value_is_missing(tmp_path: Path) -> None:
    assert read_flows(write(tmp_path / "f.csv", HEADER + "1,2,a,b,3\n4,5,a,b,6")).height == 2


def test_one_ipv6_address_is_one_endpoint_in_flows_and_topology(tmp_path: Path) -> None:
    spellings = ["FD00::1", "fd00:0:0:0:0:0:0:1", "[fd00::1]", "fd00::1"]
    rows = "".join(f"1,2,{spelling},::ffff:10.0.0.1,3\n" for spelling in spellings)
    flows = read_flows(write(tmp_path / "f.csv", HEADER + rows))
    assert flows["src"].unique().to_list() == ["fd00::1"]
    assert flows["dst"].unique().to_list() == ["10.0.0.1"]
    path = write(tmp_path / "t.csv", "address,host,rail,switch\nFD00:0::1,n1,0,s1\n")
    assert read_table(path, TOPOLOGY)["address"].item() == "fd00::1"


def test_addresses_with_ports_are_read_with_a_note(tmp_path: Path) -> None:
    read = load_flows(write(tmp_path / "f.csv", HEADER + "1,2,10.0.0.1:5001,10.0.0.2:5002,3\n"))
    assert read.flows["src"].item() == "10.0.0.1:5001"
    assert any("addresses with ports" in note for note in read.report.notes)


def test_what_was_estimated_or_scaled_is_noted(tmp_path: Path) -> None:
    sampled = write(tmp_path / "f.csv", "start_ns,src,dst,packets,sampling_rate\n1,a,b,3,100\n")
    notes = load_flows(sampled).report.notes
    assert "bytes and packets multiplied by 'sampling_rate'" in notes
    assert "no bytes: estimated as packets x 4096" in notes and "no end time: end_ns is null" in notes


def test_lines_that_are_no_json_are_counted_only_where_there_are_any(tmp_path: Path) -> None:
    line = '{"start_ns": 1, "end_ns": 2, "src": "a", "dst": "b", "bytes": 3}\n'
    skipping = FlowOptions(skip_bad_rows=True)
    read = load_flows(write(tmp_path / "f.jsonl", line + "no\n" + line + '{"start_ns"\n'), skipping)
    assert (read.report.rows, read.report.skipped_rows) == (2, {"not a JSON object": 2})
    assert load_flows(write(tmp_path / "g.jsonl", line + line), skipping).report.skipped_rows == {}


def test_packets_of_the_way_back_count_only_beside_its_bytes(tmp_path: Path) -> None:
    head = "flowStartMilliseconds,flowEndMilliseconds,sourceIPv4Address,destinationIPv4Address,octetDeltaCount"
    row = "1700000000123,1700000000124,10.0.0.1,10.0.0.2,100"
    alone = write(tmp_path / "f.csv", f"{head},reversePacketDeltaCount\n{row},7\n")
    assert load_flows(alone).flows.height == 1
    both = write(tmp_path / "g.csv", f"{head},reverseOctetDeltaCount,reversePacketDeltaCount\n{row},500,7\n")
    assert sorted(load_flows(both).flows["bytes"]) == [100, 500]


def test_skipping_bad_rows_counts_each_reason_and_keeps_the_rest(tmp_path: Path) -> None:
    text = HEADER + "1,2,a,b,3\n1,2,a,b,12k\n5,4,a,b,3\n1,2,a,b,x\n1,2,!!,b,3\n7,8,a,b,9\n"
    read = load_flows(write(tmp_path / "f.csv", text), FlowOptions(skip_bad_rows=True))
    assert read.flows["bytes"].to_list() == [3, 9]
    assert sum(read.report.skipped_rows.values()) == 4
    assert read.report.skipped_rows["'bytes' not a whole number"] == 2


def test_one_bad_file_in_a_folder_is_named_or_left_out_on_request(tmp_path: Path) -> None:
    write_flows(GOOD, tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", b"PAR1 cut")
    write_flows(GOOD, tmp_path / "c.csv")
    with pytest.raises(InputError, match=r"b\.parquet"):
        read_flows(tmp_path)
    read = load_flows(tmp_path, FlowOptions(skip_bad_rows=True))
    assert read.flows.height == 4
    assert len(read.report.skipped_files) == 1 and "b.parquet" in read.report.skipped_files[0]


def test_a_folder_without_tables_and_a_missing_path_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table files"):
        read_flows(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_flows(tmp_path / "nope.csv")


@given(st.binary(max_size=400), st.sampled_from(["csv", "jsonl", "parquet", "arrow", "tsv"]))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / f"f.{ending}", content)
    with pytest.raises(InputError):
        read_flows(path)


CELL = st.one_of(st.integers(-10, 2**66).map(str), st.text(max_size=8), st.sampled_from(["", "nan", "1e400", "\x00"]))


@given(st.lists(st.lists(CELL, min_size=5, max_size=6), min_size=1, max_size=6), st.booleans())
def test_no_cells_crash_the_reader_and_every_row_is_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], as_json: bool
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    names = HEADER.strip().split(",")
    if as_json:
        lines = [json.dumps(dict(zip(names, row, strict=False))) for row in rows]
        path = write(folder / "f.jsonl", "\n".join(lines) + "\n")
    else:
        path = write(
            folder / "f.csv", HEADER + "".join(json.dumps(row)[1:-1].replace(", ", ",") + "\n" for row in rows)
        )
    try:
        read = load_flows(path, FlowOptions(skip_bad_rows=True))
    except InputError as error:
        assert "\n" not in str(error)
    else:
        if as_json:
            assert read.flows.height + sum(read.report.skipped_rows.values()) == len(rows)
