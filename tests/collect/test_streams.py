"""Kafka topics and ClickHouse tables: librdkafka's own mock brokers, ClickHouse's own engine."""

from __future__ import annotations

import http.server
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from export_bytes import BASIC, a_set, basic_record, ipfix, template_set
from goflow_messages import FlowMessage, RawFlow, delimited
from hypothesis import given
from hypothesis import strategies as st

from prism.collect import SourceConfig, SourceCounts, load_inputs, open_source
from prism.collect.goflow import cut_delimited, decode_messages
from prism.collect.messages import MessageDecoder
from prism.collect.tables.aliases import parse_columns
from prism.errors import BadConfigError

confluent_kafka = pytest.importorskip("confluent_kafka")
T = 1_700_000_000 * 10**9
MS = 10**6


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def flow_message(number: int = 0, **changes: Any) -> Any:
    fields = {
        "type": 4, "sampling_rate": 1, "src_addr": packed("10.0.0.1"), "dst_addr": packed("2001:db8::2"), "bytes": 1000 + number, "packets": 3,
        "sampler_address": packed("10.9.9.9"), "src_port": 7, "dst_port": 4791, "time_received_ns": T + 9 * MS,
        "time_flow_start_ns": T + number * MS, "time_flow_end_ns": T + (number + 2) * MS,
    }  # fmt: skip
    return FlowMessage(**{**fields, **changes})


def json_message(number: int = 0) -> bytes:
    return json.dumps(
        {"type": "IPFIX", "time_received_ns": T, "sampling_rate": 1, "sampler_address": "10.9.9.9", "time_flow_start_ns": T + number * MS,
         "time_flow_end_ns": T + (number + 2) * MS, "bytes": 1000 + number, "packets": 3, "src_addr": "10.0.0.1", "dst_addr": "2001:db8::2",
         "src_port": 7, "dst_port": 4791, "etype": "IPv4", "proto": "UDP"}
    ).encode()  # fmt: skip


EXPECTED = {
    "start_ns": T,
    "end_ns": T + 2 * MS,
    "src": "10.0.0.1",
    "dst": "2001:db8::2",
    "bytes": 1000,
    "packets": 3,
    "dst_port": 4791,
    "exporter": "10.9.9.9",
}
RAW = RawFlow(
    time_received=1_700_000_000,
    source_address=ipaddress.ip_address("::ffff:10.9.9.9").packed,
    payload=ipfix(
        template_set({256: BASIC}), a_set(256, basic_record("10.0.0.1", "10.0.0.2", 1000, T // MS, T // MS + 2))
    ),
)
MESSAGES = {
    "goflow2 JSON": json_message(),
    "goflow2 protobuf": flow_message().SerializeToString(),
    "goflow2 protobuf behind its length": delimited(flow_message()),
    "goflow2 version 1": flow_message(
        time_received_ns=0, time_flow_start_ns=0, time_flow_end_ns=0, time_received=5, time_flow_start_ms=T // MS, time_flow_end_ms=T // MS + 2
    ).SerializeToString(),
}  # fmt: skip


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages_of_every_kind_are_told_by_their_content(kind: str) -> None:
    decoder = MessageDecoder()
    row = decoder.decode([MESSAGES[kind]] * 3).row(2, named=True)
    assert {k: row[k] for k in EXPECTED} == EXPECTED and decoder.counts.num_malformed == 0


def test_raw_datagrams_of_akvorado_are_decoded_as_if_they_had_arrived() -> None:
    decoder = MessageDecoder()
    row = decoder.decode([RAW.SerializeToString()]).row(0, named=True)
    assert (row["src"], row["bytes"], row["exporter"], row["start_ns"]) == ("10.0.0.1", 1000, "10.9.9.9", T)
    assert decoder.counts.received == 1


def test_mixed_and_broken_messages_are_all_accounted_for() -> None:
    decoder = MessageDecoder()
    good = [json_message(1), flow_message(2).SerializeToString(), RAW.SerializeToString()]
    flows = decoder.decode([*good, b"{broken", b"\xff\xff", b"", b'{"other": 1}'])
    assert flows.height == 3
    lost = decoder.counts.num_malformed + decoder.counts.num_dropped
    assert lost == 4 and decoder.counts.received == 7


def test_a_file_of_delimited_messages_is_recognised_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "flows.bin").write_bytes(b"".join(delimited(flow_message(n)) for n in range(50)) + b"\x55cut")
    read = load_inputs(tmp_path / "flows.bin")
    assert read.flows["bytes"].to_list() == [1000 + n for n in range(50)]
    assert any("no whole message" in line for line in read.report.notes)


@given(
    st.lists(
        st.one_of(st.sampled_from([*MESSAGES.values(), RAW.SerializeToString()]), st.binary(max_size=80)), max_size=6
    ),
    st.integers(0, 2**32),
)
def test_no_message_crashes_the_decoder(values: list[bytes], seed: int) -> None:
    damaged = [bytes(b ^ (seed >> (i % 24) & 1) for i, b in enumerate(v)) for v in values]
    MessageDecoder().decode([*values, *damaged])
    data = b"".join(values)
    places, rest = cut_delimited(data)
    assert decode_messages(data, places, SourceCounts()).height <= len(places) and 0 <= rest <= len(data)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Any, str]]:
    """librdkafka's mock cluster, held by a producer."""
    producer = confluent_kafka.Producer({"bootstrap.servers": "ignored", "test.mock.num.brokers": 2, "log_level": 0})
    found = producer.list_topics(timeout=600).brokers.values()
    yield producer, ",".join(f"{b.host}:{b.port}" for b in found)
    producer.flush(5)


def fill(producer: Any, topic: str, values: list[bytes]) -> None:
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(600) == 0


def drain(source: Any, wanted: int, seconds: float = 600.0) -> pl.DataFrame:
    frames: list[pl.DataFrame] = []
    end = time.monotonic() + seconds
    while sum(f.height for f in frames) < wanted and time.monotonic() < end:
        frames.append(source.poll(0.2))
    return pl.concat([f for f in frames if f.height], how="diagonal")


def test_a_topic_is_read_once_over_restarts_whatever_the_group_remembers(brokers: tuple[Any, str]) -> None:
    producer, servers = brokers
    fill(producer, "flows", [json_message(n) for n in range(100)])
    words = f"kafka://{servers}/flows?group=a&from=earliest"
    source = open_source(words)
    first = drain(source, 100)
    position = json.loads(json.dumps(source.save_position()))
    fill(producer, "flows", [flow_message(100 + n).SerializeToString() for n in range(60)])
    drain(source, 60)
    source.close()  # The group's own offsets are now ahead of what was saved, as after a kill.
    again = open_source(words, SourceConfig(position=position))
    second = drain(again, 60)
    again.close()
    assert sorted(first["bytes"]) == list(range(1000, 1100)) and sorted(second["bytes"]) == list(range(1100, 1160))
    assert again.counts.lost == 0 and again.counts.num_malformed == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("kafka://nowhere", "expected kafka://HOST:PORT/TOPIC"),
        ("kafka://h:1/t?from=noon", "from=noon"),
        ("kafka://h:1/t?no.such=1", "cannot be read"),
    ],
)
def test_a_topic_that_cannot_be_opened_is_one_clear_line(words: str, said: str) -> None:
    with pytest.raises(BadConfigError, match=said):
        open_source(words)


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, list[str]]]:
    """ClickHouse's engine behind the part of its HTTP interface that takes a query."""
    session_module = pytest.importorskip("chdb.session")
    session = session_module.Session(str(tmp_path_factory.mktemp("chdb")))
    queries: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = self.rfile.read(int(self.headers["Content-Length"])).decode()
            queries.append(query)
            try:
                head, _, form = query.rpartition(" FORMAT ")
                body, status = session.query(head, form).bytes(), 200
            except Exception as error:
                body, status = str(error).encode(), 500
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"clickhouse://127.0.0.1:{server.server_port}", session, queries
    server.shutdown()
    server.server_close()
    session.close()


GOFLOW2_TABLE = (
    "CREATE TABLE {name} (type Int32, time_received_ns UInt64, sampling_rate UInt64, sampler_address FixedString(16), time_flow_start_ns UInt64, "
    "time_flow_end_ns UInt64, bytes UInt64, packets UInt64, src_addr FixedString(16), dst_addr FixedString(16), src_port UInt32, dst_port UInt32, "
    "etype UInt32, proto UInt32) ENGINE = MergeTree ORDER BY time_received_ns"
)
AKVORADO_TABLE = (
    "CREATE TABLE {name} (TimeReceived DateTime, SamplingRate UInt64, ExporterAddress LowCardinality(IPv6), SrcAddr IPv6, DstAddr IPv6, "
    "SrcPort UInt16, DstPort UInt16, Bytes UInt64, Packets UInt64, InIfDescription LowCardinality(String)) ENGINE = MergeTree ORDER BY TimeReceived"
)


def test_the_table_of_goflow2_is_read_by_windows_over_restarts(clickhouse: tuple[str, Any, list[str]]) -> None:
    base, session, queries = clickhouse
    session.query(GOFLOW2_TABLE.format(name="default.goflow"))
    session.query(
        f"INSERT INTO default.goflow SELECT 4, {T} + number * 100000000, 1, 'x', {T} + number * 100000000, {T} + number * 100000000 + 5000000, "
        "1000 + number, 3, toFixedString(unhex('0a000001'), 16), toFixedString(unhex('0a000002'), 16), 7, 4791, 2048, 17 FROM numbers(3000)"
    )
    words = f"{base}/default/goflow?from=1700000000&to=2023-11-14T22:18:20Z&window=60"
    queries.clear()
    source = open_source(words)
    first = [source.poll(0.01) for _ in range(2)]
    again = open_source(words, SourceConfig(position=json.loads(json.dumps(source.save_position()))))
    rest = []
    while not again.is_finished:
        rest.append(again.poll(0.01))
    flows = pl.concat([*first, *rest])
    assert [f.height for f in (*first, *rest)] == [600] * 5
    assert flows["bytes"].to_list() == list(range(1000, 4000)) and set(flows["src"]) == {"10.0.0.1"}
    windows = [q for q in queries if q.startswith("SELECT")]
    assert all("WHERE `time_received_ns` >=" in q and "etype" not in q for q in windows), (
        "only the columns that are needed"
    )


def test_a_dense_window_is_read_in_parts_that_fit(
    clickhouse: tuple[str, Any, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, session, _ = clickhouse
    monkeypatch.setattr("prism.collect.clickhouse._MOST_ROWS", 500)
    session.query(GOFLOW2_TABLE.format(name="default.dense"))
    session.query(
        f"INSERT INTO default.dense SELECT 4, {T} + number * 50000000, 1, 'x', {T} + number * 50000000, {T} + number * 50000000 + 5000000, "
        "1000 + number, 3, toFixedString(unhex('0a000001'), 16), toFixedString(unhex('0a000002'), 16), 7, 4791, 2048, 17 FROM numbers(2400)"
    )
    source = open_source(f"{base}/default/dense?from=1700000000&to=1700000120&window=120")
    parts = []
    while not source.is_finished:
        parts.append(source.poll(0.01))
    assert max(part.height for part in parts) <= 500
    assert pl.concat(parts)["bytes"].to_list() == list(range(1000, 3400)), "every row once, in order"


def test_the_table_of_akvorado_is_read_with_its_dates_and_addresses(clickhouse: tuple[str, Any, list[str]]) -> None:
    base, session, _ = clickhouse
    session.query("SET allow_suspicious_low_cardinality_types = 1")
    session.query(AKVORADO_TABLE.format(name="default.akvorado"))
    session.query(
        "INSERT INTO default.akvorado SELECT toDateTime(1700000000 + number, 'UTC'), 100, toIPv6('::ffff:10.9.9.9'), toIPv6('::ffff:10.0.0.1'), "
        "toIPv6('2001:db8::2'), 7, 4791, 1500, 2, 'eth0' FROM numbers(90)"
    )
    source = open_source(f"{base}/default/akvorado?from=1700000000&to=1700000090&window=30")
    flows = pl.concat([source.poll(0.01) for _ in range(3)])
    assert source.is_finished and flows.height == 90 and flows["bytes"].sum() == 90 * 1500 * 100
    assert flows.select("src", "dst", "exporter").unique().rows() == [("10.0.0.1", "2001:db8::2", "10.9.9.9")]
    assert flows["start_ns"].min() == T


def test_a_server_that_is_away_for_a_while_costs_nothing(clickhouse: tuple[str, Any, list[str]]) -> None:
    base, session, _ = clickhouse
    session.query(
        "CREATE TABLE default.plain (start_s UInt64, src String, dst String, bytes UInt64) ENGINE = MergeTree ORDER BY start_s"
    )
    session.query("INSERT INTO default.plain SELECT 1700000000 + number, 'a', 'b', 5 FROM numbers(60)")
    source = open_source(f"{base}/default/plain?from=1700000000&to=1700000060")
    there = source._table
    source._table = replace(there, url="http://127.0.0.1:9/")
    assert source.poll(0.01).height == 0 and not source.is_finished and "does not answer" in source.notes[0]
    source._table = there
    assert source.poll(0.01).height == 60 and source.is_finished


def test_columns_of_any_table_can_be_named(clickhouse: tuple[str, Any, list[str]]) -> None:
    base, session, _ = clickhouse
    session.query("CREATE TABLE default.odd (at UInt64, a IPv4, b IPv4, n UInt64) ENGINE = MergeTree ORDER BY at")
    session.query(
        "INSERT INTO default.odd SELECT 1700000000123 + number, toIPv4('10.0.0.1'), toIPv4('10.0.0.2'), 5 FROM numbers(10)"
    )
    words = f"{base}/default/odd?from=1700000000&to=1700000060"
    with pytest.raises(BadConfigError, match="no column for 'start_ns'; pass --map start=COLUMN"):
        open_source(words)
    source = open_source(words, SourceConfig(columns=parse_columns("start=at:ms,src=a,dst=b,bytes=n")))
    flows = source.poll(0.01)
    assert (
        flows.height == 10 and flows.row(0)[2:4] == ("10.0.0.1", "10.0.0.2") and flows["start_ns"].min() == T + 123 * MS
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "expected clickhouse://"),
        ("/default/none", "check database, table"),
        ("/default/goflow?from=noon", "from=noon"),
    ],
)
def test_a_table_that_cannot_be_opened_is_one_clear_line(
    clickhouse: tuple[str, Any, list[str]], path: str, said: str
) -> None:
    with pytest.raises(BadConfigError, match=said):
        open_source(clickhouse[0] + path)
    assert urlsplit(clickhouse[0]).port
