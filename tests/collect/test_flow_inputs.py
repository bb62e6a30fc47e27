"""Files of the tools that operators run: each is told by its content, whatever its name and compression."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import socket
import subprocess
from pathlib import Path

import polars as pl
import pytest
import zstandard
from packet_bytes import ethernet, ip4, ip6, pcap, roce, tcp
from pmacct import WAITS_S, comes_true, replaying
from typer.testing import CliRunner
from udp_ports import wait_until_open, wait_until_read

from prism.cli.main import app
from prism.collect import load_inputs
from prism.collect.tables import FlowOptions
from prism.collect.tables.aliases import parse_columns
from prism.errors import InputError

T = 1_700_000_000 * 10**9
MS = 10**6


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def first(path: Path, **options: object) -> dict[str, object]:
    return load_inputs(path, FlowOptions(**options)).flows.row(0, named=True)  # type: ignore[arg-type]


ZEEK = (
    "#separator \\x09\n#set_separator\t,\n#empty_field\t(empty)\n#unset_field\t-\n#path\tconn\n"
    "#fields\tts\tuid\tid.orig_h\tid.orig_p\tid.resp_h\tid.resp_p\tproto\tduration\torig_bytes\tresp_bytes\torig_pkts\torig_ip_bytes\tresp_pkts\tresp_ip_bytes\n"
    "#types\ttime\tstring\taddr\tport\taddr\tport\tenum\tinterval\tcount\tcount\tcount\tcount\tcount\tcount\n"
    "1700000000.123456\tC1\t10.0.0.1\t1000\t10.0.0.2\t4791\tudp\t0.25\t900\t90\t3\t1000\t2\t100\n"
    "1700000000.200000\tC2\t10.0.0.3\t1000\t10.0.0.2\t4791\tudp\t-\t-\t-\t1\t60\t0\t0\n"
    "#close\t2023-11-14-22-13-30\n"
)
VPC = (
    "2 123456789012 eni-0a1b 10.0.0.1 10.0.0.2 1000 4791 17 3 1000 1700000000 1700000060 ACCEPT OK\n"
    "2 123456789012 eni-0a1b - - - - - - - 1700000000 1700000060 - NODATA\n"
)
GCP = [
    {
        "insertId": "x",
        "jsonPayload": {
            "connection": {"src_ip": "10.0.0.1", "dest_ip": "10.0.0.2", "src_port": 1000, "dest_port": 4791, "protocol": 17},
            "bytes_sent": "1000", "packets_sent": "3", "reporter": "SRC",
            "start_time": "2023-11-14T22:13:20.123456789Z", "end_time": "2023-11-14T22:13:20.373456789Z",
        },
        "timestamp": "2023-11-14T22:13:25Z",
    }
]  # fmt: skip
RWCUT = (
    "            sIP|            dIP|sPort|dPort|pro|packets|  bytes|                  sTime| duration|                  eTime|sen|\n"
    "       10.0.0.1|       10.0.0.2| 1000| 4791| 17|      3|   1000|2023/11/14T22:13:20.123|    0.250|2023/11/14T22:13:20.373| S0|\n"
)
GOFLOW1 = {
    "Type": "NETFLOW_V9", "TimeReceived": 1700000009, "SamplingRate": 0, "SamplerAddress": "10.9.9.9",
    "TimeFlowStart": 1700000000, "TimeFlowEnd": 1700000000, "TimeFlowStartMs": 1700000000123, "TimeFlowEndMs": 1700000000373,
    "Bytes": 1000, "Packets": 3, "SrcAddr": "10.0.0.1", "DstAddr": "10.0.0.2", "SrcPort": 1000, "DstPort": 4791,
}  # fmt: skip
FLOW = {"src": "10.0.0.1", "dst": "10.0.0.2", "bytes": 1000, "packets": 3, "dst_port": 4791}
TEXTS: dict[str, tuple[str, dict[str, object]]] = {
    "Zeek conn.log": (ZEEK, {**FLOW, "start_ns": T + 123_456_000, "end_ns": T + 373_456_000}),
    "Zeek JSON": (
        json.dumps({"ts": 1700000000.5, "id.orig_h": "10.0.0.1", "id.resp_h": "10.0.0.2", "id.resp_p": 4791, "duration": 0.25,
                    "orig_ip_bytes": 1000, "orig_pkts": 3, "resp_ip_bytes": 0, "resp_pkts": 0}) + "\n",
        {**FLOW, "start_ns": T + 500 * MS, "end_ns": T + 750 * MS},
    ),
    "Amazon VPC": (VPC, {**FLOW, "start_ns": T, "end_ns": T + 60 * 10**9, "exporter": "eni-0a1b"}),
    "Amazon VPC with a header": (
        "version srcaddr dstaddr dstport packets bytes start end log-status\n2 10.0.0.1 10.0.0.2 4791 3 1000 1700000000 1700000060 OK\n",
        {**FLOW, "start_ns": T},
    ),
    "Google VPC": (json.dumps(GCP, indent=1), {**FLOW, "start_ns": T + 123_456_789, "end_ns": T + 373_456_789}),
    "Google VPC lines": (json.dumps(GCP[0]) + "\n", {**FLOW, "start_ns": T + 123_456_789}),
    "SiLK rwcut": (RWCUT, {**FLOW, "start_ns": T + 123 * MS, "end_ns": T + 373 * MS}),
    "goflow version 1": (json.dumps(GOFLOW1) + "\n", {**FLOW, "start_ns": T + 123 * MS, "end_ns": T + 373 * MS}),
    "pmacct": (
        "SRC_IP,DST_IP,SRC_PORT,DST_PORT,PROTOCOL,TIMESTAMP_START,TIMESTAMP_END,PACKETS,BYTES\n"
        "10.0.0.1,10.0.0.2,1000,4791,udp,2023-11-14 22:13:20.123000,0000-00-00 00:00:00.000000,3,1000\n",
        {**FLOW, "start_ns": T + 123 * MS, "end_ns": None},
    ),
    "semicolons": ("start_ns;src;dst;bytes;packets;dst_port\n5;10.0.0.1;10.0.0.2;1000;3;4791\n", {**FLOW, "start_ns": 5}),
}  # fmt: skip


@pytest.mark.parametrize("tool", TEXTS)
def test_text_of_every_tool_is_recognised_by_its_content(tmp_path: Path, tool: str) -> None:
    text, expected = TEXTS[tool]
    row = first(write(tmp_path / "export", text))
    assert {k: row[k] for k in expected} == expected


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("tool", ["Zeek conn.log", "goflow version 1", "Google VPC"])
def test_any_compression_is_unpacked(tmp_path: Path, ending: str, tool: str) -> None:
    text, expected = TEXTS[tool]
    path = write(tmp_path / f"export.{ending}", PACKED[ending](text.encode()))
    assert first(path)["start_ns"] == expected["start_ns"]
    cut = write(tmp_path / f"cut.{ending}", path.read_bytes()[:-9])
    with pytest.raises(InputError, match=f"cut.{ending}"):
        load_inputs(cut)


def test_a_parquet_file_may_be_compressed_and_arrow_may_stream(tmp_path: Path) -> None:
    table = pl.DataFrame({"start_ns": [5], "src": ["a"], "dst": ["b"], "bytes": [1]})
    table.write_parquet(tmp_path / "f.parquet")
    write(tmp_path / "f.parquet.zst", zstandard.compress((tmp_path / "f.parquet").read_bytes()))
    table.write_ipc_stream(tmp_path / "f.arrows")
    assert first(tmp_path / "f.parquet.zst") == first(tmp_path / "f.arrows") == first(tmp_path / "f.parquet")


def test_two_way_records_become_a_flow_in_either_direction(tmp_path: Path) -> None:
    flows = load_inputs(write(tmp_path / "conn.log", ZEEK)).flows
    assert flows.select("src", "dst", "bytes", "src_port").rows() == [
        ("10.0.0.1", "10.0.0.2", 1000, 1000),
        ("10.0.0.3", "10.0.0.2", 60, 1000),
        ("10.0.0.2", "10.0.0.1", 100, 4791),
    ]


def test_a_path_may_be_a_list(tmp_path: Path) -> None:
    table = pl.DataFrame({"start_ns": [5], "src": ["a"], "dst": ["b"], "bytes": [1], "path": [["leaf-1", "spine-2"]]})
    table.write_parquet(tmp_path / "f.parquet")
    assert first(tmp_path / "f.parquet")["path"] == "leaf-1>spine-2"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_ipv4_addresses_as_numbers_are_written_out_or_refused(tmp_path: Path, ending: str) -> None:
    def save(numbers: list[int]) -> Path:
        table = pl.DataFrame({"start_ns": [5, 6], "src": numbers, "dst": [169083906, 169083906], "bytes": [1, 1]})
        path = tmp_path / f"f.{ending}"
        getattr(table, f"write_{ending}")(path)
        return path

    assert load_inputs(save([169083905, 169083907])).flows["src"].to_list() == ["10.20.4.1", "10.20.4.3"]
    with pytest.raises(InputError, match="neither all IPv4 addresses nor all"):
        load_inputs(save([17, 169083905]))


def test_small_numbers_stay_what_they_are(tmp_path: Path) -> None:
    pl.DataFrame({"start_ns": [5], "src": [17], "dst": [65535], "bytes": [1]}).write_parquet(tmp_path / "lids.parquet")
    assert first(tmp_path / "lids.parquet")["src"] == "17"


def test_nfdump_csv_cut_to_whole_seconds_is_refused_with_the_remedy(tmp_path: Path) -> None:
    row = "2023-11-14 22:13:20,2023-11-14 22:13:21,0.250,10.0.0.1,10.0.0.2,1,4791,UDP,3,100\n"
    path = write(tmp_path / "nfdump.csv", "ts,te,td,sa,da,sp,dp,pr,ipkt,ibyt\n" + row * 30)
    with pytest.raises(InputError, match="nfdump cut the times .* nfdump -o json"):
        load_inputs(path)
    assert load_inputs(path, FlowOptions(keep_cut_times=True)).flows.height == 30


@pytest.mark.parametrize(
    "row",
    [
        "2023-11-14 22:13:20,2023-11-14 22:13:21,0.250,10.0.0.1,10.0.0.2,1,4791,UDP,........,0,0,3,100,0,0\n",
        "1700000000,1700000001,fe80::1,fe80::2,3,3\n",
    ],
)
def test_a_table_without_a_line_of_names_is_refused_with_the_remedy(tmp_path: Path, row: str) -> None:
    path = write(tmp_path / "nfdump.csv", row * 30)
    with pytest.raises(InputError, match=r"nfdump\.csv: the first line is not a header of names .* nfdump -o json"):
        load_inputs(path)


def test_a_column_may_be_called_by_an_address(tmp_path: Path) -> None:
    path = write(tmp_path / "flows.csv", "start_ns,src,dst,bytes,10.9.9.9\n5,a,b,1,x\n")
    assert load_inputs(path).flows.height == 1


def test_whole_seconds_of_any_tool_are_reported(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-14 22:13:{20 + i % 9},::ffff:10.0.0.1,::ffff:10.0.0.2,100,7,1\n" for i in range(30))
    path = write(tmp_path / "akvorado.csv", "TimeReceived,SrcAddr,DstAddr,Bytes,Packets,SamplingRate\n" + rows)
    assert any("whole seconds" in line for line in load_inputs(path).report.notes)


def test_sflow_samples_in_a_table_are_put_together(tmp_path: Path) -> None:
    rows = []
    for burst in range(5):
        for k in range(20):
            moment = T + burst * 10**9 + k * 2 * MS
            rows.append({"type": "SFLOW_5", "time_received_ns": moment, "time_flow_start_ns": moment, "time_flow_end_ns": moment,
                         "src_addr": "10.0.0.1", "dst_addr": "10.0.0.2", "bytes": 4096, "packets": 1, "sampling_rate": 1000})  # fmt: skip
    path = write(tmp_path / "goflow2.json", "".join(json.dumps(r) + "\n" for r in rows))
    read = load_inputs(path)
    assert read.flows.height == 5, "five transfers, not a hundred flows"
    assert read.flows["bytes"].to_list() == [20 * 4096 * 1000] * 5
    assert any("packet samples" in line for line in read.report.notes)


def test_columns_can_be_named_and_the_naming_saved(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.csv", "A,Z,N,WHEN,LASTED\n10.0.0.1,10.0.0.2,1000,1700000000123,250\n")
    words = "src=A,dst=Z,bytes=N,start=WHEN:ms,duration=LASTED:ms"
    run = CliRunner().invoke(app, ["flows", "check", str(path), "--map", words, "--save-map", str(tmp_path / "m.yaml")])
    assert run.exit_code == 0, run.output
    out = tmp_path / "f.parquet"
    run = CliRunner().invoke(app, ["flows", "convert", str(path), str(out), "--map", str(tmp_path / "m.yaml")])
    assert run.exit_code == 0, run.output
    assert pl.read_parquet(out).row(0)[:5] == (T + 123 * MS, T + 373 * MS, "10.0.0.1", "10.0.0.2", 1000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("src", "expected NAME=COLUMN"),
        ("size=N", "expected NAME=COLUMN"),
        ("duration=N", "say the unit"),
        ("src=NOPE", "no column 'NOPE'"),
    ],
)
def test_a_map_that_does_not_fit_is_one_clear_line(tmp_path: Path, words: str, said: str) -> None:
    path = write(tmp_path / "odd.csv", "start_ns,src,dst,bytes\n1,a,b,2\n")
    with pytest.raises(InputError, match=said):
        load_inputs(path, FlowOptions(columns=parse_columns(words)))


def test_nothing_in_a_folder_is_passed_over_without_a_word(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"start_ns":1,"src":"a","dst":"b","bytes":1}\n'))
    write(tmp_path / "conn.2023", ZEEK)
    write(tmp_path / "notes.md", "not a table")
    write(tmp_path / "capture", pcap([(T, ethernet(ip4("10.0.0.1", "10.0.0.2", 6, tcp(1, 2, bytes(99)))))]))
    read = load_inputs(tmp_path)
    assert read.report.files == 3 and read.flows.height == 1 + 3 + 1
    assert len(read.report.skipped_files) == 1 and "notes.md" in read.report.skipped_files[0]


def test_screens_that_cannot_be_read_say_what_to_write_instead(tmp_path: Path) -> None:
    screen = "Date first seen          Duration Proto      Src IP Addr:Port\n2023-11-14 22:13:20.1  0.2 UDP 10.0.0.1:1 -> 10.0.0.2:2\n"
    with pytest.raises(InputError, match="nfdump -o json"):
        load_inputs(write(tmp_path / "screen.txt", screen))
    with pytest.raises(InputError, match="sflowtool -J"):
        load_inputs(
            write(
                tmp_path / "lines.txt",
                "FLOW,10.0.0.1,1,2,aa,bb,0x0800,0,0,10.0.0.1,10.0.0.2,17,0,64,1,2,0,100,82,1000\n",
            )
        )


HEADER_BYTES = ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(7, 77, 1, 4096)))[:128]
SFLOWTOOL = {
    "datagramSourceIP": "10.9.9.9", "unixSecondsUTC": "1700000000", "agent": "10.9.9.9", "sysUpTime": "5250",
    "samples": [{"sampleType": "FLOWSAMPLE", "meanSkipCount": "1000", "elements": [
        {"headerProtocol": "1", "sampledPacketSize": "4174", "strippedBytes": "4", "headerBytes": HEADER_BYTES.hex("-").upper()}]}],
}  # fmt: skip


@pytest.mark.parametrize("form", ["lines", "pretty", "text"])
def test_what_sflowtool_prints_is_read_from_its_headers(tmp_path: Path, form: str) -> None:
    if form == "text":
        sample = "\n".join(
            [
                "startSample ---",
                "sampleType FLOWSAMPLE",
                "meanSkipCount 1000",
                "headerProtocol 1",
                "sampledPacketSize 4174",
                "strippedBytes 4",
                f"headerBytes {HEADER_BYTES.hex('-').upper()}",
                "endSample   ---",
            ]
        )
        text = f"startDatagram ====\ndatagramSourceIP 10.9.9.9\nunixSecondsUTC 1700000000\nagent 10.9.9.9\nsysUpTime 5250\n{sample}\nendDatagram ===\n"
    else:
        text = json.dumps(SFLOWTOOL, indent=1 if form == "pretty" else None) + "\n"
    row = first(write(tmp_path / "sflow.txt", text))
    expected = {
        "src": "10.0.0.1",
        "dst": "10.0.0.2",
        "qp": 77,
        "bytes": 4096 * 1000,
        "exporter": "10.9.9.9",
        "start_ns": T,
    }
    assert {k: row[k] for k in expected} == expected


def capture_of_flows(path: Path) -> Path:
    """Two one-way flows of TCP over 390 and 90 ms and a RoCEv2 message over IPv6."""
    packets = []
    for i, num in enumerate([40, 10]):
        for k in range(num):
            body = tcp(1000 + i, 6000, bytes(500), 500 * k)
            packets.append((T + i * MS + k * 10 * MS, ethernet(ip4(f"10.0.0.{i + 1}", "10.0.0.9", 6, body))))
    for k in range(5):
        body = roce(6 if k == 0 else 7, 77, k, 1024, 5120 if k == 0 else None)
        packets.append((T + k * MS, ethernet(ip6("2001:db8::1", "2001:db8::2", 17, body), kind=0x86DD)))
    return write(path, pcap(sorted(packets), nano=False))


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def nfcapd_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nfcapd writes of what softflowd exports."""
    if not all(map(shutil.which, ("nfcapd", "nfdump", "softflowd"))):
        pytest.skip("needs nfdump and softflowd")
    folder = tmp_path_factory.mktemp("nfcapd")
    capture, port = capture_of_flows(folder / "t.pcap"), free_port()
    (folder / "out").mkdir()
    taker = subprocess.Popen(
        ["nfcapd", "-w", str(folder / "out"), "-p", str(port), "-b", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_open(port)
        command = [
            "softflowd",
            "-D",
            "-r",
            str(capture),
            "-n",
            f"127.0.0.1:{port}",
            "-v",
            "9",
            "-p",
            str(folder / "pid"),
            "-c",
            "none",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        wait_until_read(port)
    finally:
        taker.terminate()
        taker.wait(600)
    return next((folder / "out").glob("nfcapd.2*"))


def check_nfdump(flows: pl.DataFrame) -> None:
    flows = flows.sort("src")
    assert flows["src"].to_list() == ["10.0.0.1", "10.0.0.2", "2001:db8::1"]
    assert flows["bytes"].to_list() == [40 * 540, 10 * 540, 5456]
    assert ((flows["end_ns"] - flows["start_ns"]) // MS).to_list() == [390, 90, 4]


def test_a_binary_file_of_nfcapd_is_read_through_nfdump(nfcapd_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_nfdump(load_inputs(nfcapd_file).flows)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="install nfdump"):
        load_inputs(nfcapd_file)


@pytest.fixture(scope="module")
def empty_nfcapd_file(nfcapd_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nfcapd writes when nothing is exported to it, beside a file with flows."""
    folder, port = tmp_path_factory.mktemp("empty"), free_port()
    taker = subprocess.Popen(
        ["nfcapd", "-w", str(folder), "-p", str(port), "-b", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_open(port)
    finally:
        taker.terminate()
        taker.wait(600)
    return next(folder.glob("nfcapd.2*"))


def test_minutes_without_flows_do_not_cost_a_folder_of_nfcapd(
    nfcapd_file: Path, empty_nfcapd_file: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_nfcapd_file, tmp_path / "nfcapd.202311142210")
    shutil.copy(nfcapd_file, tmp_path / "nfcapd.202311142211")
    shutil.copy(empty_nfcapd_file, tmp_path / "nfcapd.202311142212")
    read = load_inputs(tmp_path)
    check_nfdump(read.flows)
    assert read.report.files == 3 and [line for line in read.report.notes if "hold no flows" in line]
    assert load_inputs(empty_nfcapd_file).flows.is_empty()


def test_a_damaged_file_of_nfcapd_is_not_taken_for_an_empty_one(nfcapd_file: Path, tmp_path: Path) -> None:
    cut = write(tmp_path / "nfcapd.202311142210", nfcapd_file.read_bytes()[:200])
    with pytest.raises(InputError, match="nfcapd.202311142210: nfdump did not read it .* copy it again"):
        load_inputs(cut)


def test_json_of_nfdump_is_read(nfcapd_file: Path, tmp_path: Path) -> None:
    text = subprocess.run(
        ["nfdump", "-r", str(nfcapd_file), "-o", "json"],
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        check=True,
    ).stdout
    check_nfdump(load_inputs(write(tmp_path / "nfdump.json", text)).flows)


@pytest.mark.skipif(shutil.which("pmacctd") is None, reason="needs pmacct")
def test_what_pmacct_prints_is_read(tmp_path: Path) -> None:
    capture = capture_of_flows(tmp_path / "t.pcap")
    config = [
        "plugins: print[c], print[j]", "print_output[c]: csv", "print_output[j]: json", "print_refresh_time: 1", "timestamps_secs: false",
        "aggregate: src_host, dst_host, src_port, dst_port, proto, timestamp_start, timestamp_end",
        f"print_output_file[c]: {tmp_path / 'out.csv'}", f"print_output_file[j]: {tmp_path / 'out.json'}",
    ]  # fmt: skip
    names = ("out.csv", "out.json")
    for wait_s in WAITS_S:
        with replaying(tmp_path, capture, wait_s, *config) as daemon:
            if comes_true(lambda: min(count_lines(tmp_path / name) for name in names) > 4, daemon, wait_s):
                break
    table, lines = (load_inputs(tmp_path / name).flows.sort("start_ns", "src") for name in names)
    assert table.height == lines.height > 3
    assert table.select("start_ns", "src", "dst", "bytes").equals(lines.select("start_ns", "src", "dst", "bytes"))
    assert {"10.0.0.1", "2001:db8::1"} <= set(table["src"]) and table["start_ns"].min() == T


def test_an_absent_end_of_pmacct_is_none_in_every_notation(tmp_path: Path) -> None:
    """pmacctd 1.7.7 with timestamps_since_epoch: true."""
    text = "SRC_IP,DST_IP,TIMESTAMP_START,TIMESTAMP_END,BYTES\n10.0.0.1,10.0.0.2,1795033526.098917,0.000000,72\n"
    row = load_inputs(write(tmp_path / "pmacct.csv", text)).flows.row(0, named=True)
    assert (row["start_ns"], row["end_ns"]) == (1_795_033_526_098_917_000, None)


def test_the_check_says_what_records_can_show_and_what_to_change(tmp_path: Path) -> None:
    def check(table: pl.DataFrame, *more: str) -> dict[str, object]:
        table.write_parquet(tmp_path / "f.parquet")
        run = CliRunner().invoke(app, ["flows", "check", str(tmp_path / "f.parquet"), "--json", *more])
        assert run.exit_code == 0, run.output
        document: dict[str, object] = json.loads(run.stdout)
        return document

    starts = [T + i * 500 * MS for i in range(200)]
    table = pl.DataFrame({"start_ns": starts, "src": "10.0.0.1", "dst": "10.0.0.2", "bytes": 1000, "exporter": "a"})
    cut = check(table.with_columns(end_ns=pl.col("start_ns") + 60 * 10**9), "--exporter", "softflowd")
    assert cut["active_timeout_ms"] == 60_000 and cut["resolution"] == "100 ms" and "shorter_records" in cut["change"]
    assert "maxlife=1" in str(cut["settings"])
    both = pl.concat([table, table.with_columns(exporter=pl.lit("b"))]).with_columns(end_ns=pl.col("start_ns") + 1)
    assert check(both)["double_export_pct"] == 100.0
    fine = check(table.with_columns(start_ns=pl.col("start_ns") + 7, end_ns=pl.col("start_ns") + 30 * MS))
    assert fine["problems"] == [] and fine["settings"] == {} and fine["active_timeout_ms"] is None


def test_a_capture_can_be_diagnosed(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["diagnose", str(capture_of_flows(tmp_path / "t.pcap")), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["schema"] == "prism.diagnosis/1"


@pytest.mark.parametrize(
    "damaged",
    [
        ZEEK.replace("\\x09", "\\x0t"),
        "src,dst,bytes,start\n10.0.0.1,10.0.0.2,1000,17\xff\n",
    ],
)
def test_damaged_text_is_refused_in_one_line(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "flows.txt"
    path.write_bytes(damaged.encode("latin-1"))
    with pytest.raises(InputError, match=r"flows\.txt"):
        load_inputs(path)
