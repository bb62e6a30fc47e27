"""Counters and kernel logs: what accuses a device, from real Prometheus, CSV and servers that do not answer."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadFileError, InputError
from prism.evidence.traces.counters import (
    COUNTERS,
    PrometheusSilentError,
    find_anomalies,
    looks_like_counters,
    read_counter_csv,
    read_prometheus,
)
from prism.evidence.traces.kernel_log import rate_error, read_gpu_errors


def series(metric: str, **by_gpu: list[float]) -> pl.DataFrame:
    rows = [
        (f"node-{g[1]}", f"gpu {g[2]}", metric, i * 10**9, v)
        for g, values in by_gpu.items()
        for i, v in enumerate(values)
    ]
    return pl.DataFrame(rows, schema=COUNTERS, orient="row")


def test_errors_that_grow_accuse_and_old_ones_do_not() -> None:
    found = find_anomalies(series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", g10=[3, 3, 3], g11=[0, 0, 2]))
    assert [(a.host, a.device, a.since_ns, a.value) for a in found] == [("node-1", "gpu 1", 2 * 10**9, 2)]


def test_throttling_is_read_bit_by_bit_and_idle_clocks_are_no_fault() -> None:
    found = find_anomalies(series("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", g10=[1, 1], g11=[0, 0x40], g12=[4, 4]))
    assert [a.device for a in found] == ["gpu 1"]


def test_replays_accuse_only_who_has_many_more_than_its_peers() -> None:
    even = series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", g10=[0, 50], g11=[0, 60], g12=[0, 70])
    assert find_anomalies(even) == []
    odd = series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", g10=[0, 5], g11=[0, 6], g12=[0, 700])
    assert [a.device for a in find_anomalies(odd)] == ["gpu 2"]


def test_a_low_clock_is_seen_beside_the_others() -> None:
    clocks = series("DCGM_FI_DEV_SM_CLOCK", g10=[1980, 1980], g11=[1980, 1965], g12=[1200, 1215])
    assert [a.device for a in find_anomalies(clocks)] == ["gpu 2"]


def test_counters_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(
        "time,host,gpu,metric,value\n2026-11-16T00:00:00,n1,3,DCGM_FI_DEV_ROW_REMAP_FAILURE,1\n5,n1,2,other,x\n"
    )
    assert looks_like_counters(path)
    found = find_anomalies(read_counter_csv(path))
    assert [(a.host, a.device) for a in found] == [("n1", "gpu 3")]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadFileError, match="no column time"):
        read_counter_csv(path)


class Slow(BaseHTTPRequestHandler):
    """A server that sends a byte now and then, and never an answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            return

    def log_message(self, *args: object) -> None:
        """Nothing is logged."""


class Wrong(Slow):
    """A server that is no Prometheus."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": [1]}')


@pytest.fixture(params=[Slow, Wrong])
def strange_server(request: pytest.FixtureRequest) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_trickles_or_talks_nonsense_is_given_up(strange_server: str) -> None:
    with pytest.raises(PrometheusSilentError, match="so counters are left out"):
        read_prometheus(strange_server, start_s=0, end_s=60, deadline_s=0.4)


def test_a_server_that_never_answers_or_is_not_there_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(PrometheusSilentError, match="did not answer in time"):
            read_prometheus(f"http://127.0.0.1:{silent.getsockname()[1]}", start_s=0, end_s=60, deadline_s=0.3)
        port = silent.getsockname()[1]
    with pytest.raises(PrometheusSilentError, match="does not answer"):
        read_prometheus(f"http://127.0.0.1:{port}", start_s=0, end_s=60, deadline_s=5)
    with pytest.raises(InputError, match="not a Prometheus"):
        read_prometheus("file:///etc/passwd", start_s=0, end_s=60)


class Exporter(BaseHTTPRequestHandler):
    """What DCGM's exporter shows; GPU 1 gains an uncorrectable error at every scrape."""

    scrapes = 0

    def do_GET(self) -> None:
        type(self).scrapes += 1
        lines = ["# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter"]
        for gpu in (0, 1):
            value = type(self).scrapes if gpu else 0
            lines.append(f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="{gpu}",Hostname="node-7"}} {value}')
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(("\n".join(lines) + "\n").encode())

    def log_message(self, *args: object) -> None:
        """Nothing is logged."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus")
def test_a_real_prometheus_names_the_gpu(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: dcgm\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{server.server_port}']\n"
    )
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    begin = time.time()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        found = []
        while not found and time.time() < begin + 600:
            time.sleep(1)
            try:
                now = time.time()
                found = find_anomalies(
                    read_prometheus(f"http://127.0.0.1:{port}", start_s=now - 60, end_s=now, step_s=1)
                )
            except PrometheusSilentError:
                continue
        assert [(a.host, a.device) for a in found] == [("node-7", "gpu 1")]
    finally:
        process.terminate()
        process.wait(timeout=600)
        server.shutdown()
        thread.join()
        server.server_close()


def test_xids_are_read_with_host_device_and_time(tmp_path: Path) -> None:
    (tmp_path / "node-4.dmesg.log").write_text(
        "[Mon Nov 16 02:00:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU lost\n"
        "2026-11-16T01:00:00.5+00:00 node-9 kernel: NVRM: Xid (PCI:0000:81:00): 31, pid=9921\n"
    )
    (tmp_path / "messages").write_text(
        "Nov 16 02:00:00 sw-1 kernel: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Link 32\n"
    )
    found = read_gpu_errors(sorted(tmp_path.iterdir()))
    assert {(e.host, e.device, e.family, e.code, e.severity) for e in found} == {
        ("node-9", "0000:81:00", "Xid", 31, "program"),
        ("node-4", "0000:3b:00", "Xid", 79, "hardware"),
        ("sw-1", "0000:05:00.0", "SXid", 12028, "hardware"),
    }
    assert found[0].at_ns == 1_794_790_800_500_000_000 and found[-1].at_ns is None


def test_codes_are_rated_as_the_catalogue_asks(shared_data: Path) -> None:
    table = pl.read_csv(shared_data / "kernel_logs" / "xid.csv").filter(pl.col("description") != "Unused")
    for code, action in table.select("code", "immediate").iter_rows():
        severity = rate_error("Xid", code)
        if action in ("RESET_GPU", "RESTART_BM") or (action or "").startswith("WORKFLOW_NVLINK"):
            assert severity == "hardware", code
        if action == "RESTART_APP":
            assert severity == "program" or code == 94, code  # a contained memory error is the memory's fault
        if action == "IGNORE":
            assert severity in ("harmless", "aftermath"), code
    switch = pl.read_csv(shared_data / "kernel_logs" / "sxid.csv")
    for code, kind in switch.select("code", "event_type").iter_rows():
        assert (rate_error("SXid", code) == "hardware") == (kind == "Fatal"), code


@given(st.binary(max_size=200))
def test_any_kernel_log_is_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "kern.log"
    path.write_bytes(b"9999-99-99T99:99:99 Xid (PCI:0000:3b:00): 79" + data)
    assert read_gpu_errors([path])[0].code
