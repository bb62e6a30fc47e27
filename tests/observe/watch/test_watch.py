"""A watch from its source to reported findings: files, restarts, alerts, metrics, live sockets."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from unittest.mock import Mock

import polars as pl
import pytest
import typer
from export_bytes import BASIC, a_set, basic_record, ipfix, template_set
from packet_bytes import ethernet, ip4, pcap, roce, udp
from typer.testing import CliRunner
from watch_parts import FrameSource, S, ScriptedAnalyst, make_finding, make_flows, make_report

from prism.cli import watch as watch_command
from prism.collect import SourceConfig, open_source
from prism.collect.folder import FolderSource
from prism.collect.live_capture import interface_names
from prism.errors import BadConfigError, BadFileError
from prism.lab.scenarios import load_scenario, make_scenario
from prism.machine.locks import is_process_alive
from prism.machine.sender import SenderConfig
from prism.observe.watch.alerts import WebhookAlerts
from prism.observe.watch.metrics import MetricsServer, WatchStatus, render_metrics
from prism.observe.watch.stream import Watch, WatchConfig, slice_by_time

app = typer.Typer()
app.command("watch")(watch_command.watch_source)
app.command("other")(lambda: None)
runner = CliRunner()


def always(flows, until_ns):
    """The same finding in every look."""
    until = until_ns / S
    return make_report(until, make_finding(start_s=1_700_000_000, end_s=until))


def run_watch(source, analyst, **config):
    out: list[dict] = []
    said: list[str] = []
    watch = Watch(source, None, WatchConfig(**config), out.append, analyst=analyst, say=said.append)
    watch.run(lambda: False)
    return out, said, watch


def test_files_are_looked_at_every_few_seconds_of_their_own_time():
    analyst = ScriptedAnalyst(always)
    out, _, watch = run_watch(
        FrameSource(make_flows([i / 10 for i in range(600)])), analyst, every_s=3.0, window_s=10.0
    )
    assert 20 <= len(analyst.looks) <= 22
    assert max(num for num, _ in analyst.looks) <= 101
    assert [d["update"] for d in out] == [False]
    assert (out[0]["reported_ns"] / S - 1_700_000_000) <= 24
    assert watch.status().looks == len(analyst.looks) and watch.status().findings["slow_compute"] == 1


def test_a_look_that_fails_is_counted_and_the_watch_goes_on():
    def fail_at_first(flows, until_ns):
        if until_ns < (1_700_000_000 + 10) * S:
            raise RuntimeError("bug")
        return always(flows, until_ns)

    out, said, watch = run_watch(FrameSource(make_flows([i / 10 for i in range(600)])), ScriptedAnalyst(fail_at_first))
    assert watch.status().failed_looks > 0 and len(out) == 1
    assert any("a look at the window went wrong (RuntimeError: bug)" in line for line in said)


def test_a_folder_says_whose_watch_works_in_it_and_how_it_ended(tmp_path):
    words = []

    def look(flows, until_ns):
        words.append((tmp_path / "lock").read_text())
        if len(words) == 1:
            with pytest.raises(BadConfigError, match="another prism watch"):
                run_watch(FrameSource(make_flows([1.0])), ScriptedAnalyst(always), state=tmp_path)
        return always(flows, until_ns)

    run_watch(FrameSource(make_flows([i / 10 for i in range(300)])), ScriptedAnalyst(look), state=tmp_path)
    assert is_process_alive(words[0]) is True and (tmp_path / "lock").read_text() == "finished"


def test_a_full_disk_ends_no_watch_and_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "prism.observe.watch.state.write_durably", Mock(side_effect=OSError(28, "No space left on device"))
    )
    flows = FrameSource(make_flows([i / 10 for i in range(600)]))
    out, said, watch = run_watch(flows, ScriptedAnalyst(always), state=tmp_path)
    assert len(out) == 1, "the finding is told all the same"
    assert sum("kept in memory only (No space left on device)" in line for line in said) == 1
    assert watch.status().state_trouble and "prism_watch_state_in_memory_only 1" in render_metrics(watch.status())


def test_a_restart_neither_loses_nor_repeats(tmp_path):
    first, second = make_flows([i / 10 for i in range(300)]), make_flows([i / 10 for i in range(300, 600)])
    whole, _, _ = run_watch(FrameSource(pl.concat([first, second])), ScriptedAnalyst(always))
    before, _, _ = run_watch(FrameSource(first), ScriptedAnalyst(always), state=tmp_path)
    after, _, watch = run_watch(FrameSource(second), ScriptedAnalyst(always), state=tmp_path)
    assert [(d["kind"], d["id"], d["update"]) for d in before + after] == [
        (d["kind"], d["id"], d["update"]) for d in whole
    ]
    assert watch.status().window_flows > 300, "the window of the first run is still there"
    repeated, _, _ = run_watch(FrameSource(first), ScriptedAnalyst(always), state=tmp_path)
    assert repeated == []


def test_what_was_decided_but_perhaps_not_printed_is_printed_after_a_kill(tmp_path):
    class Killed(BaseException):
        pass

    def die(document):
        raise Killed

    watch = Watch(FrameSource(make_flows([i / 10 for i in range(600)])), None, WatchConfig(state=tmp_path), die,
                  analyst=ScriptedAnalyst(always))  # fmt: skip
    with pytest.raises(Killed):
        watch.run(lambda: False)
    out, _, _ = run_watch(FrameSource(make_flows([60])), ScriptedAnalyst(always), state=tmp_path)
    assert [d["id"] for d in out] == ["finding-1"]


def test_a_planted_slow_gpu_is_reported_within_fifteen_seconds_of_its_onset():
    run = make_scenario(load_scenario("slow-gpu-64"), 0)
    (fault,) = run.truth["faults"]
    begin = run.flows["start_ns"].min()
    flows = run.flows.filter(pl.col("end_ns") < fault["start_ns"] + 15 * S)
    out: list[dict] = []
    watch = Watch(FrameSource(flows), run.topology, WatchConfig(), out.append)
    watch.run(lambda: False)
    culprits = [d for d in out if d["kind"] == "slow_compute"]
    assert culprits and fault["culprit"]["id"] in culprits[0]["culprit"]["id"].split(",")
    assert culprits[0]["reported_ns"] - fault["start_ns"] <= 15 * S
    assert [d for d in out if d["reported_ns"] < fault["start_ns"]] == [], f"told before anything happened at {begin}"


def test_slices_hold_every_flow_once_in_order():
    flows = make_flows([5.5, 0.1, 9.9, 3.0, 3.1])
    parts = list(slice_by_time(flows, 3 * S))
    assert [n for n, _ in parts] == sorted(n for n, _ in parts)
    assert pl.concat([p for _, p in parts]).sort("end_ns").equals(flows.sort("end_ns"))


class Hook(http.server.BaseHTTPRequestHandler):
    """A webhook that refuses the first two posts."""

    taken: list[dict] = []  # noqa: RUF012
    refuse = 2

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).refuse -= 1
        if type(self).refuse < 0:
            self.taken.append(body)  # before the answer, after which the sender is done
        self.send_response(503 if type(self).refuse >= 0 else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


def test_alerts_are_posted_tried_again_and_never_hold_the_watch_up():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    alerts = WebhookAlerts(f"http://127.0.0.1:{server.server_port}/hook", config=SenderConfig(first_pause_s=0.01))
    alerts.send({"kind": "hang"})
    alerts.close(wait_s=600)
    assert Hook.taken == [{"kind": "hang"}] and (alerts.outcomes["sent"], alerts.outcomes["failed"]) == (1, 2)
    server.shutdown()
    server.server_close()
    dead = WebhookAlerts("http://127.0.0.1:9/nobody", config=SenderConfig(first_pause_s=0.01, most_waiting=1_000))
    for _ in range(1_500):
        dead.send({"kind": "hang"})
    dead.close(wait_s=0.2)
    assert dead.outcomes["dropped"] >= 400
    with pytest.raises(BadConfigError, match="expected http"):
        WebhookAlerts("ftp://x")


def test_metrics_are_what_prometheus_reads():
    status = WatchStatus(flows=5, jobs={"job-1": (8, 1.25)}, lag_seconds=0.5)
    status.dropped['odd "reason"\n'] += 3
    text = render_metrics(status)
    assert 'prism_watch_dropped_total{reason="odd \\"reason\\"\\n"} 3' in text
    assert 'prism_watch_job_step_seconds{job="job-1"} 1.25' in text and "prism_watch_flows_total 5" in text
    for line in text.splitlines():
        assert line.startswith(("# HELP prism_watch_", "# TYPE prism_watch_", "prism_watch_"))
    server = MetricsServer("127.0.0.1", 0, lambda: status)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        assert answer.read().decode() == text
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/other")
    refused.value.close()
    with pytest.raises(BadConfigError, match="cannot listen there"):
        MetricsServer("127.0.0.1", server.port, lambda: status)
    server.close()


def drain(source: FolderSource, polls: int = 6) -> int:
    return sum(source.poll(0.01).height for _ in range(polls))


def test_a_folder_is_read_file_by_file_once_each_is_whole(tmp_path):
    source = open_source(str(tmp_path))
    flows = make_flows([1, 2, 3])
    flows.write_parquet(tmp_path / "half.parquet.tmp")
    flows.write_parquet(tmp_path / ".hidden.parquet")
    (tmp_path / "notes.txt").write_text("x")
    assert drain(source) == 0
    (tmp_path / "half.parquet.tmp").rename(tmp_path / "a.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    assert drain(source) == 3 and drain(source) == 0
    assert source.counts.malformed["files that cannot be read"] == 2, "the broken one, and notes that are no table"
    assert any("broken.parquet" in n for n in source.notes) and any("notes.txt" in n for n in source.notes)
    flows.head(1).write_parquet(tmp_path / "b.parquet")
    again = open_source(str(tmp_path), SourceConfig(position=source.save_position()))
    assert drain(again) == 1, "after a restart only the new file is read"


def test_a_file_that_still_grows_is_left_alone(tmp_path):
    source = open_source(str(tmp_path))
    make_flows([1]).write_parquet(tmp_path / "done.parquet")
    whole = (tmp_path / "done.parquet").read_bytes()
    (tmp_path / "done.parquet").unlink()
    for cut in range(10, len(whole), 200):
        (tmp_path / "grows.parquet").write_bytes(whole[:cut])
        assert source._next_whole() is None
    (tmp_path / "grows.parquet").write_bytes(whole)
    assert drain(source) == 1 and source.counts.num_malformed == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ipfix://nowhere", "expected ipfix://HOST:PORT"),
        ("netflow://127.0.0.1:99999", "expected ipfix://HOST:PORT"),
        ("ipfix://203.0.113.77:4739", "cannot listen there"),
        ("pcap:/no/such/file", "neither a file nor a network interface"),
        ("/no/such/folder", "no such folder"),
        (__file__, "a file, not a source that grows.*prism diagnose"),
    ],
)
def test_a_source_that_cannot_be_opened_is_one_clear_line(words, said):
    with pytest.raises(BadConfigError, match=said):
        open_source(words)


def test_a_listener_takes_what_exporters_send_and_counts_what_its_queue_cannot_hold():
    source = open_source("ipfix://127.0.0.1:0", SourceConfig(queue_bytes=20_000))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    record = basic_record("10.0.0.1", "10.0.0.2", 7, 1_700_000_000_000, 1_700_000_000_005)
    sender.sendto(ipfix(template_set({256: BASIC})), source.address)
    sender.sendto(b"noise", source.address)
    for i in range(50):
        sender.sendto(ipfix(a_set(256, record * 20), sequence=20 * i), source.address)
    end = time.monotonic() + 600
    while source._queue_drops + len(source._queue) < 52 and time.monotonic() < end:
        time.sleep(0.01)
    assert source._queued_bytes <= 20_000
    flows = source.poll(1.0)
    dropped = source.counts.dropped["datagrams beyond the queue"]
    assert dropped > 0 and flows.height == 20 * (50 - dropped) and source.counts.malformed["version not supported"] == 1
    source.close()
    sender.close()


@pytest.mark.skipif(os.geteuid() != 0 or "lo" not in interface_names(), reason="capturing needs root")
def test_an_interface_is_captured_without_seeing_loopback_packets_twice():
    source = open_source("pcap:lo")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("127.0.0.1", 0))
    port = sink.getsockname()[1]
    for _ in range(10):
        sender.sendto(bytes(1000), ("127.0.0.1", port))
    found: list[dict] = []
    end = time.monotonic() + 600
    # A busy machine may deliver the packets over several looks; one more look would see any of them a second time.
    while sum(f["packets"] for f in found) < 10 and time.monotonic() < end:
        found += [f for f in source.poll(0.2).to_dicts() if f["dst_port"] == port]
    found += [f for f in source.poll(0.2).to_dicts() if f["dst_port"] == port]
    source.close()
    sender.close()
    sink.close()
    assert sum(f["bytes"] for f in found) == 10_000 and sum(f["packets"] for f in found) == 10


def test_the_command_reads_a_capture_and_says_what_was_wrong_with_it(tmp_path):
    packets = [
        (1_700_000_000 * S + i * 1000, ethernet(ip4("10.0.0.1", "10.0.0.2", 17, roce(0x0A, 1, i, 64, 64))))
        for i in range(9)
    ]
    packets.append((1_700_000_001 * S, ethernet(ip4("10.0.0.1", "10.0.0.2", 17, udp(1, 2, bytes(64))))))
    (tmp_path / "t.pcap").write_bytes(pcap(packets)[:-5])
    result = runner.invoke(app, ["watch", f"pcap:{tmp_path / 't.pcap'}"])
    assert result.exit_code == 0 and result.stdout == ""
    assert "cut inside a packet" in result.stderr and "9 flows out of 9 received" in result.stderr
    missing = runner.invoke(app, ["watch", f"pcap:{tmp_path / 't.pcap'}", "--topology", str(tmp_path / "none.csv")])
    assert isinstance(missing.exception, BadFileError)
    wrong = runner.invoke(app, ["watch", f"pcap:{tmp_path / 't.pcap'}", "--metrics", "x"])
    assert wrong.exit_code == 2


def free_port(kind: int) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_live_watch_serves_metrics_and_stops_cleanly_on_sigterm(tmp_path):
    port, metrics = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
    code = "import typer; from prism.cli.watch import watch_source; typer.run(watch_source)"
    command = [
        sys.executable,
        "-c",
        code,
        f"ipfix://127.0.0.1:{port}",
        "--metrics",
        str(metrics),
        "--state",
        str(tmp_path),
        "--every",
        "0.5",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        text = ""
        end = time.monotonic() + 600
        sequence = 0
        while "prism_watch_looks_total 1" not in text and time.monotonic() < end:
            time.sleep(0.1)
            now = int(time.time() * 1000)
            record = basic_record("10.0.0.1", "10.0.0.2", 1000, now - 5, now)
            sender.sendto(ipfix(template_set({256: BASIC}), a_set(256, record), sequence=sequence), ("127.0.0.1", port))
            sequence += 1
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
        assert "prism_watch_looks_total" in text and "prism_watch_failed_looks_total 0" in text
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        sender.close()
    assert process.returncode == 0 and "Traceback" not in err and "stopped" in err
    assert out == "" or all(json.loads(line) for line in out.splitlines())
    assert json.loads((tmp_path / "state.json").read_text())["schema"] == "prism.watch-state/1"
