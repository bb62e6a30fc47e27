"""A real exporter: softflowd reads packets of ours and exports them to the collector over loopback."""

from __future__ import annotations

import shutil
import subprocess
import time

import polars as pl
import pytest
from packet_bytes import ethernet, ip4, pcap, tcp, udp

from prism.collect import open_source

pytestmark = pytest.mark.skipif(shutil.which("softflowd") is None, reason="needs softflowd")

T = 1_700_000_000 * 10**9


@pytest.fixture
def capture(tmp_path):
    """Three one-way flows of known size and time."""
    packets = []
    for i, (src, num) in enumerate([("10.0.0.1", 40), ("10.0.0.2", 10), ("10.0.0.3", 1)]):
        for k in range(num):
            body = tcp(1000 + i, 6000, bytes(500), 500 * k) if i < 2 else udp(1000, 2000, bytes(500))
            packets.append((T + i * 10**6 + k * 10**7, ethernet(ip4(src, "10.0.0.9", 6 if i < 2 else 17, body))))
    path = tmp_path / "t.pcap"
    path.write_bytes(pcap(sorted(packets), nano=False))
    return path


@pytest.mark.parametrize("version", [5, 9, 10])
def test_what_softflowd_exports_is_what_was_captured(capture, tmp_path, version):
    source = open_source("ipfix://127.0.0.1:0")
    port = source.address[1]
    command = ["softflowd", "-D", "-r", str(capture), "-n", f"127.0.0.1:{port}", "-v", str(version)]
    command += ["-p", str(tmp_path / "pid"), "-c", "none"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    frames = []
    end = time.monotonic() + 600
    while time.monotonic() < end and sum(f.height for f in frames) < 3:
        frames.append(source.poll(0.2))
    source.close()
    flows = pl.concat(frames).filter(pl.col("bytes") > 0).sort("src")
    assert source.counts.num_malformed == 0 and source.counts.lost == 0
    assert flows["src"].to_list() == ["10.0.0.1", "10.0.0.2", "10.0.0.3"] and set(flows["dst"]) == {"10.0.0.9"}
    assert flows["bytes"].to_list() == [40 * 540, 10 * 540, 528], "softflowd counts IP headers"
    assert flows["packets"].to_list() == [40, 10, 1]
    lasted_ms = ((flows["end_ns"] - flows["start_ns"]) // 10**6).to_list()
    assert lasted_ms == [390, 90, 0]
