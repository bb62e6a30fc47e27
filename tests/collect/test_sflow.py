"""sFlow version 5: from our own bytes, from a real agent, and through a real collector that checks our bytes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_bytes import ethernet, ip4, ip6, pcap, roce, tcp, udp
from pmacct import WAITS_S, comes_true, replaying, running
from sflow_bytes import counter_sample, flow_sample, raw_header, sflow

from prism.collect import Collector, load_inputs, open_source
from prism.collect.port_counters import PortCounters, measure_ports
from prism.collect.tables.samples import (
    are_samples,
    find_samples,
    put_together,
    rebuild_transfers,
    samples_per_transfer,
)

T = 1_700_000_000 * 10**9
MS = 10**6
FRAMES = {
    "RoCEv2": (ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(7, 77, 1, 4096))), ("10.0.0.1", 4791, 77, 4096)),
    "RoCEv2 behind two tags": (ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(7, 9, 1, 1024)), vlans=2), ("10.0.0.1", 4791, 9, 1024)),
    "TCP over IPv6": (ethernet(ip6("2001:db8::1", "2001:db8::2", 6, tcp(5, 6, bytes(1400))), kind=0x86DD), ("2001:db8::1", 6, None, 1400)),
    "UDP": (ethernet(ip4("10.0.0.1", "10.0.0.2", 17, udp(5, 6, bytes(999)))), ("10.0.0.1", 6, None, 999)),
}  # fmt: skip


def take(*datagrams: bytes) -> tuple[pl.DataFrame, Collector]:
    collector = Collector()
    for number, one in enumerate(datagrams):
        collector.feed(one, ("192.0.2.1", 6343), T + number * MS)
    return collector.flush(), collector


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("name", FRAMES)
def test_a_sampled_header_says_who_sent_how_much(name: str, expanded: bool) -> None:
    frame, (src, port, qp, payload) = FRAMES[name]
    flows, collector = take(sflow(flow_sample(raw_header(frame), rate=2000, expanded=expanded), agent="2001:db8::99"))
    row = flows.row(0, named=True)
    assert (row["src"], row["dst_port"], row["qp"]) == (src, port, qp)
    assert (row["bytes"], row["packets"], row["sampling_rate"]) == (payload * 2000, 2000, 2000)
    assert row["start_ns"] == row["end_ns"] == T and row["exporter"] == "2001:db8::99"
    assert collector.counts.num_malformed == 0


def test_counters_become_the_load_and_the_faults_of_ports() -> None:
    ports = PortCounters()
    for second, octets, errors, wide in ((0, 0, 5, False), (1, 25_000_000_000, 12, True)):
        _, collector = take(sflow(counter_sample(7, out_octets=octets, errors=errors, expanded=wide)))
        ports.take(collector.take_counters().with_columns(pl.col("time_ns") + second * 10**9))
    (port,) = ports.status()
    assert (port.exporter, port.port, port.errors) == ("10.9.9.9", 7, 7) and port.load == pytest.approx(0.5)


def test_what_agents_drop_and_what_is_lost_on_the_way_is_counted() -> None:
    frame = FRAMES["UDP"][0]
    samples = [flow_sample(raw_header(frame), sequence=n, drops=d) for n, d in ((1, 0), (2, 0), (6, 4))]
    flows, collector = take(*(sflow(s) for s in samples))
    assert flows.height == 3 and collector.counts.lost == 3
    collector.feed(sflow(flow_sample(raw_header(frame), sequence=7, drops=9)), ("192.0.2.1", 6343), T)
    collector.flush()
    assert collector.counts.dropped["samples that agents could not send"] == 5


def test_transfers_are_rebuilt_with_their_size_within_the_error_of_sampling() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for burst in range(200):
        seen = rng.poisson(50)
        rows += [(T + burst * 10**9 + int(m), 4096 * 1000) for m in np.sort(rng.uniform(0, 100 * MS, seen))]
    samples = pl.DataFrame(rows, schema=["start_ns", "bytes"], orient="row").with_columns(
        end_ns=pl.col("start_ns"), src=pl.lit("a"), dst=pl.lit("b"), packets=pl.lit(1000), sampling_rate=pl.lit(1000)
    )
    assert find_samples(samples).all()
    transfers, notes = put_together(samples)
    assert transfers.height == 200 and any("1 in 1,000" in line for line in notes)
    error = (transfers["bytes"] / (50 * 4096 * 1000) - 1).to_numpy()
    assert np.abs(error).mean() < 1.5 / 50**0.5 and abs(error.mean()) < 0.05


def test_a_transfer_sampled_at_three_switches_is_counted_once() -> None:
    moments = np.sort(np.random.default_rng(2).uniform(0, 50 * MS, 300)).astype(np.int64)
    samples = pl.DataFrame({"start_ns": T + moments, "exporter": ["x", "y", "z"] * 100}).with_columns(
        end_ns=pl.col("start_ns"),
        src=pl.lit("a"),
        dst=pl.lit("b"),
        bytes=pl.lit(4096 * 3000),
        packets=pl.lit(3000),
        sampling_rate=pl.lit(3000),
    )
    made = rebuild_transfers(samples)
    assert made["bytes"].sum() == 300 * 4096 * 1000, "1 in 3,000 at three places is 1 in 1,000"


@pytest.mark.parametrize(("per_burst", "sparse"), [(3, True), (60, False)])
def test_a_handful_of_samples_is_known_to_be_one(per_burst: int, sparse: bool) -> None:
    rng = np.random.default_rng(3)
    moments = [T + burst * 10**9 + int(m) for burst in range(40) for m in rng.uniform(0, 30 * MS, per_burst)]
    samples = pl.DataFrame({"start_ns": moments}).with_columns(
        end_ns=pl.col("start_ns"),
        src=pl.lit("a"),
        dst=pl.lit("b"),
        bytes=pl.lit(4096 * 10),
        packets=pl.lit(10),
        sampling_rate=pl.lit(10),
    )
    transfers, notes = put_together(samples)
    assert transfers.height == 40 and are_samples(notes)
    assert (samples_per_transfer(transfers) < 10) == sparse == any("but not steps" in line for line in notes)
    assert not are_samples(()), "records that an exporter sampled and put together itself are left to the diagnosis"


def test_sflow_among_other_exporters_is_told_apart() -> None:
    flows = pl.DataFrame({"start_ns": list(range(60)), "exporter": ["sflow"] * 30 + ["netflow"] * 30}).with_columns(
        end_ns=pl.col("start_ns") + pl.when(pl.col("exporter") == "sflow").then(0).otherwise(5),
        packets=pl.when(pl.col("exporter") == "sflow").then(100).otherwise(700),
        sampling_rate=pl.lit(100),
    )
    assert find_samples(flows).to_list() == [True] * 30 + [False] * 30


PIECES = st.one_of(
    st.sampled_from(
        [flow_sample(raw_header(f)) for f, _ in FRAMES.values()] + [counter_sample(1), counter_sample(1, expanded=True)]
    ),
    st.binary(max_size=60),
)


@given(
    st.lists(PIECES, max_size=4),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    st.integers(0, 600),
)
def test_no_bytes_crash_the_decoder(pieces: list[bytes], changes: list[tuple[int, int]], cut: int) -> None:
    datagram = bytearray(sflow(*pieces))
    for place, value in changes:
        if place < len(datagram):
            datagram[place] = value
    flows, _ = take(bytes(datagram[: max(4, len(datagram) - cut)]), bytes(datagram))
    assert flows["bytes"].min() is None or flows["bytes"].min() >= 0


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def some_packets(path: Path) -> Path:
    packets = []
    for i, num in enumerate([40, 10]):
        body = tcp(1000 + i, 6000, bytes(500))
        packets += [
            (T + i * MS + k * 10 * MS, ethernet(ip4(f"10.0.0.{i + 1}", "10.0.0.9", 6, body))) for k in range(num)
        ]
    for k in range(5):
        body = roce(6 if k == 0 else 7, 77, k, 1024, 5120 if k == 0 else None)
        packets.append((T + k * MS, ethernet(ip6("2001:db8::1", "2001:db8::2", 17, body), kind=0x86DD)))
    path.write_bytes(pcap(sorted(packets), nano=False))
    return path


def has_arrived(source: Any, frames: list[pl.DataFrame], wanted: int) -> bool:
    """Add what has arrived since to what had before; is it all there?"""
    frames.append(source.poll(0.2))
    return sum(frame.height for frame in frames) >= wanted


@pytest.mark.skipif(shutil.which("pmacctd") is None, reason="needs pmacct")
def test_a_real_agent_is_understood_live(tmp_path: Path) -> None:
    capture = some_packets(tmp_path / "t.pcap")
    for wait_s in WAITS_S:
        frames: list[pl.DataFrame] = []
        source = open_source("sflow://127.0.0.1:0")
        config = [
            "plugins: sfprobe", "sampling_rate: 1", f"sfprobe_receiver: 127.0.0.1:{source.address[1]}", "sfprobe_agentip: 10.9.9.9",
        ]  # fmt: skip
        with replaying(tmp_path, capture, wait_s, *config) as daemon:
            whole = comes_true(partial(has_arrived, source, frames, 55), daemon, wait_s)
        source.close()
        if whole:
            break
    flows = pl.concat(frames, how="diagonal")
    seen = {
        r[0]: r[1:]
        for r in flows.group_by("src").agg(pl.len(), pl.col("bytes").sum(), pl.col("qp").first()).iter_rows()
    }
    assert seen == {"10.0.0.1": (40, 20_000, None), "10.0.0.2": (10, 5_000, None), "2001:db8::1": (5, 5_120, 77)}
    assert set(flows["exporter"]) == {"10.9.9.9"} and source.counts.num_malformed == 0 and source.counts.lost == 0


@pytest.mark.skipif(shutil.which("sfacctd") is None, reason="needs pmacct")
def test_our_own_bytes_are_sflow_to_a_real_collector_too(tmp_path: Path) -> None:
    port = free_port()
    config = [
        "sfacctd_ip: 127.0.0.1", f"sfacctd_port: {port}", "plugins: print", "print_output: csv", "print_refresh_time: 1",
        "aggregate: src_host, dst_host, src_port, dst_port", "sfacctd_renormalize: true", f"print_output_file: {tmp_path / 'out.csv'}",
        "print_output_file_append: true",
    ]  # fmt: skip
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagram = sflow(
        *(
            flow_sample(raw_header(FRAMES[n][0]), rate=10, sequence=i + 1, expanded=e)
            for i, (n, e) in enumerate([("RoCEv2", False), ("TCP over IPv6", True)])
        ),
        counter_sample(7),
    )
    text = ""
    with sender, running("sfacctd", tmp_path, *config):
        end = time.monotonic() + 600
        while text.count("\n") < 3 and time.monotonic() < end:
            time.sleep(0.5)
            sender.sendto(datagram, ("127.0.0.1", port))
            text = (tmp_path / "out.csv").read_text() if (tmp_path / "out.csv").exists() else ""
    seen = {(r["SRC_IP"], r["DST_PORT"]) for r in pl.read_csv(tmp_path / "out.csv").iter_rows(named=True)}
    ours = {(r["src"], r["dst_port"]) for r in take(datagram)[0].iter_rows(named=True)}
    assert seen == ours == {("10.0.0.1", 4791), ("2001:db8::1", 6)}


def test_a_capture_of_datagrams_is_read_as_what_they_say(tmp_path: Path) -> None:
    frame = FRAMES["RoCEv2"][0]
    packets = [
        (
            T + k * MS,
            ethernet(
                ip4(
                    "10.9.9.9", "192.0.2.1", 17, udp(50000, 6343, sflow(flow_sample(raw_header(frame), sequence=k + 1)))
                )
            ),
        )
        for k in range(40)
    ]
    (tmp_path / "sflow.pcap").write_bytes(pcap(packets))
    read = load_inputs(tmp_path / "sflow.pcap")
    assert read.flows["bytes"].sum() == 40 * 4096 * 1000 and set(read.flows["src"]) == {"10.0.0.1"}
    assert any("packet samples" in line for line in read.report.notes)


def test_counters_in_a_capture_come_with_its_records(tmp_path: Path) -> None:
    frame = FRAMES["RoCEv2"][0]
    datagrams = [sflow(flow_sample(raw_header(frame), sequence=k + 1)) for k in range(30)]
    datagrams += [sflow(counter_sample(7, out_octets=n * 50_000_000_000, errors=5 * n)) for n in (1, 2)]
    packets = [
        (T + k * 10**9, ethernet(ip4("10.9.9.9", "192.0.2.1", 17, udp(50000, 6343, d))))
        for k, d in enumerate(datagrams)
    ]
    (tmp_path / "sflow.pcap").write_bytes(pcap(packets))
    (port,) = measure_ports(load_inputs(tmp_path / "sflow.pcap").counters)
    assert (port.exporter, port.port, port.errors, port.discards) == ("10.9.9.9", 7, 5, 0)
    assert port.peak == pytest.approx(1.0) and port.is_troubled and port.end_ns - port.start_ns == 10**9
    assert measure_ports(pl.DataFrame()) == ()


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ovs-vswitchd") is None, reason="needs root and Open vSwitch")
def test_a_real_switch_is_understood_tags_and_counters_too(tmp_path: Path) -> None:
    script = Path(__file__).parent / "open_vswitch.py"
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    kinds = [row[:4] for row in answer["flows"]]
    assert kinds == [["10.0.0.1", 77, 1024, "127.0.0.1"], ["2001:db8::1", None, 900, "127.0.0.1"]]
    assert all(15 <= row[4] <= 20 for row in answer["flows"]), "the switch may pass its first packets before it samples"
    assert answer["ports"] >= 2 and answer["octets"] > 15 * 1000 and answer["malformed"] == answer["lost"] == 0
