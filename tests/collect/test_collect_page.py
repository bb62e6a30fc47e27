"""Every command of docs/collect.md and docs/collect/, run with files of the tools it names."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from goflow_messages import delimited
from packet_bytes import ethernet, ip4, pcap, udp
from sflow_bytes import flow_sample, raw_header, sflow
from test_counter_tables import SNMP, answer
from test_flow_inputs import GCP, GOFLOW1, RWCUT, SFLOWTOOL, VPC, ZEEK, capture_of_flows, nfcapd_file
from test_sflow import FRAMES
from test_streams import AKVORADO_TABLE, GOFLOW2_TABLE, T, brokers, clickhouse, fill, flow_message, json_message
from test_topology import addresses
from typer.testing import CliRunner

from prism.cli.main import app
from prism.collect.tables import write_flows
from prism.observe.watch.stream import Watch

__all__ = ["brokers", "clickhouse", "nfcapd_file"]  # fixtures
DOCS = Path(__file__).parents[2] / "docs"
PAGE = "".join(page.read_text() for page in [DOCS / "collect.md", *sorted((DOCS / "collect").glob("*.md"))])
COMMANDS = re.findall(r"^\$ (prism .*)$", PAGE, flags=re.MULTILINE)
NFDUMP = {"first": "2023-11-14T22:13:20.123", "last": "2023-11-14T22:13:20.373", "in_packets": 3, "in_bytes": 1000,
          "src4_addr": "10.0.0.1", "dst4_addr": "10.0.0.2", "src_port": 7, "dst_port": 4791}  # fmt: skip


def make_files(folder: Path) -> None:
    made = pl.DataFrame({"start_ns": [T + i * 10**6 for i in range(100)]}).with_columns(
        end_ns=pl.col("start_ns") + 500_000,
        src=pl.lit("10.0.0.1"),
        dst=pl.lit("10.0.1.1"),
        bytes=pl.lit(10**6, pl.Int64),
    )
    write_flows(made, folder / "export.parquet")
    write_flows(made, folder / "exports" / "a.parquet")
    (folder / "topology.csv").write_text(
        "address,host,rail,switch\n10.0.0.1,node-1,0,leaf-1\n10.0.1.1,node-2,0,leaf-1\n"
    )
    datagrams = [sflow(flow_sample(raw_header(FRAMES["RoCEv2"][0]), sequence=k + 1)) for k in range(40)]
    packets = [
        (T + k * 10**6, ethernet(ip4("10.9.9.9", "192.0.2.1", 17, udp(50000, 6343, d))))
        for k, d in enumerate(datagrams)
    ]
    (folder / "sflow.pcap").write_bytes(pcap(packets))
    texts = {
        "sflowtool.json": json.dumps(SFLOWTOOL), "nfdump.json": json.dumps([NFDUMP]), "goflow2.json": json.dumps(GOFLOW1) + "\n",
        "conn.log": ZEEK, "gcp.json": json.dumps(GCP), "rwcut.txt": RWCUT,
        "pmacct.csv": "SRC_IP,DST_IP,TIMESTAMP_START,TIMESTAMP_END,PACKETS,BYTES\n10.0.0.1,10.0.0.2,2023-11-14 22:13:20.123000,0000-00-00 00:00:00.000000,3,1000\n",
        "counters.csv": SNMP,
        "query_range.json": json.dumps(answer(("ifInErrors", {"instance": "leaf-1", "ifName": "Ethernet8"}, [(1_700_000_000, "0"), (1_700_000_010, "7")]))),
        "odd.csv": "ip_a,ip_b,octets,seen,lasted\n10.0.0.1,10.0.0.2,1000,1700000000123,250\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "vpc.log.gz").write_bytes(gzip.compress(VPC.encode()))
    (folder / "goflow2.bin").write_bytes(b"".join(delimited(flow_message(n)) for n in range(5)))
    capture_of_flows(folder / "capture.pcap")
    for name in ("leaves", "hosts", "nfcapd"):
        (folder / name).mkdir()
    leaf = {
        "DEVICE_METADATA": {"localhost": {"hostname": "leaf-1"}},
        "DEVICE_NEIGHBOR": {"Ethernet0": {"name": "node-1"}},
        "INTERFACE": {"Ethernet0|10.0.0.0/31": {}},
    }
    (folder / "leaves" / "leaf-1.json").write_text(json.dumps(leaf))
    (folder / "hosts" / "node-1.addr.json").write_text(json.dumps(addresses(("eth0", "10.0.0.1"))))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every file the page names; a watch that is started stops after its first poll."""
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run_shortly(self: Watch, should_stop: Any) -> None:
        polls = iter([False, False])
        whole(self, lambda: next(polls, True))

    whole = Watch.run
    monkeypatch.setattr(Watch, "run", run_shortly)
    yield tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_runs(command: str, place: Path, request: pytest.FixtureRequest) -> None:
    words = shlex.split(command)[1:]
    if "nfcapd.202311142210" in words:
        shutil.copy(request.getfixturevalue("nfcapd_file"), place / "nfcapd.202311142210")
    if "kafka://" in command:
        producer, servers = request.getfixturevalue("brokers")
        for topic in ("flows", "raw-flows"):
            fill(producer, topic, [json_message(n) for n in range(4)])
        words = [w.replace("kafka.example.com:9092", servers) for w in words]
    if "clickhouse://" in command:
        base, session, _ = request.getfixturevalue("clickhouse")
        session.query("SET allow_suspicious_low_cardinality_types = 1")
        for name, table in (("flows_raw", GOFLOW2_TABLE), ("flows", AKVORADO_TABLE)):
            session.query(table.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS").format(name=f"default.{name}"))
        words = [w.replace("clickhouse.example.com:8123", base.removeprefix("clickhouse://")) for w in words]
    if "--map mine.yaml" in command:
        (place / "mine.yaml").write_text(
            "columns: {src: ip_a, dst: ip_b, bytes: octets, start: 'seen:ms', duration: 'lasted:ms'}\n"
        )
    words = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", w).replace("/var/lib/prism", str(place / "state")) for w in words]
    words = ["0" if w == "9108" else w for w in words]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0, (run.output, run.exception)


def test_the_page_has_a_section_for_every_format_that_is_read() -> None:
    from prism.collect.exporter_settings import SETTINGS

    sections = {s.lower() for s in re.findall(r"^##? (.*)$", PAGE, flags=re.MULTILINE)}
    assert {
        "sflow",
        "netflow and ipfix",
        "nfdump",
        "pmacct",
        "goflow2",
        "akvorado",
        "zeek",
        "cloud flow logs",
        "silk",
        "port counters from monitoring",
        "captures",
    } <= sections
    assert len(COMMANDS) >= 30 and len(SETTINGS) >= 10
