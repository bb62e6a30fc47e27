"""A watch that is killed, restarted and left in silence: nothing is lost, nothing is made up, alerts begin and end."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from export_bytes import BASIC, a_set, basic_record, ipfix, template_set
from watch_parts import S, ScriptedAnalyst, make_finding, make_flows, make_report

from prism.collect import SourceConfig, open_source
from prism.collect.folder import FolderSource
from prism.observe.watch import stream
from prism.observe.watch.alerts import AlertmanagerAlerts
from prism.observe.watch.metrics import MetricsServer, WatchStatus
from prism.observe.watch.state import WatchState, WindowReport
from prism.observe.watch.stream import Watch, WatchConfig


class Killed(BaseException):
    """As abrupt as kill -9: nothing is written on the way out."""


def number_of_flows(flows: pl.DataFrame, until_ns: int) -> WindowReport:
    """A finding of every window that names how many flows it holds, so that a lost or doubled flow shows."""
    end = until_ns / S
    return make_report(end, make_finding(start_s=end - 5, end_s=end, evidence=f"{flows.height} flows"))


def watch_folder(folder: Path, state: Path, die_after: int | None) -> tuple[list[Any], bool]:
    """Run until the folder is read or the n-th look; returns every look's until and flows."""
    looks: list[tuple[int, int]] = []

    def answer(flows: pl.DataFrame, until_ns: int) -> WindowReport:
        if die_after is not None and len(looks) >= die_after:
            raise Killed
        looks.append((until_ns, flows.height))
        return number_of_flows(flows, until_ns)

    def submit(flows: pl.DataFrame, topology: object, until_ns: int, given: object = ()) -> Any:
        from concurrent.futures import Future

        done: Future[WindowReport] = Future()
        done.set_result(answer(flows, until_ns))
        return done

    analyst = ScriptedAnalyst(number_of_flows)
    analyst.submit = submit  # type: ignore[method-assign]
    from prism.observe.watch.state import load_state

    source = open_source(str(folder), SourceConfig(position=load_state(state / "state.json").position))
    watch = Watch(source, None, WatchConfig(state=state, window_s=20.0), lambda d: None, analyst=analyst)
    idle = 0

    def stop() -> bool:
        nonlocal idle
        idle += 1
        return idle > 40

    try:
        watch.run(stop)
    except Killed:
        return looks, True
    return looks, False


def fill(folder: Path) -> None:
    folder.mkdir()
    for number in range(5):
        make_flows([10 * number + i / 10 for i in range(100)]).write_parquet(folder / f"{number}.parquet")
        time.sleep(0.02)


def test_a_watch_killed_in_any_look_sees_what_an_unbroken_one_sees(tmp_path, monkeypatch):
    monkeypatch.setattr("prism.collect.folder._LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(stream, "_POLL_S", 0.001)
    fill(tmp_path / "in")
    whole, _ = watch_folder(tmp_path / "in", tmp_path / "unbroken", None)
    assert len(whole) >= 15
    for die_after in (1, 2, 3, 5):
        seen: dict[int, int] = {}
        killed, times = True, 0
        while killed:
            looks, killed = watch_folder(tmp_path / "in", tmp_path / f"broken-{die_after}", die_after)
            for until, num in looks:
                assert seen.setdefault(until, num) == num, "a look that is taken again sees the same flows"
            times += killed
            assert times < 50
        assert times >= 2 and seen == dict(whole), f"killed {times} times"


def test_a_restarted_live_watch_does_not_take_its_own_absence_for_silence(tmp_path):
    class Live:
        is_live, starts_over, notes, is_finished = True, False, (), False

        def __init__(self, *frames: pl.DataFrame) -> None:
            from prism.collect import SourceCounts

            self.counts, self.frames = SourceCounts(), list(frames)

        def poll(self, timeout_s: float) -> pl.DataFrame:
            if self.frames:
                return self.frames.pop(0)
            time.sleep(0.05)
            return make_flows([])

        def save_position(self) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            pass

    begins: list[int] = []

    def answer(flows: pl.DataFrame, until_ns: int) -> WindowReport:
        begins.append(int(flows["end_ns"].min() or until_ns))
        return make_report(until_ns / S, make_finding(start_s=until_ns / S - 30, end_s=until_ns / S, kind="hang"))

    def run(source: Live, seconds: float) -> list[Any]:
        told: list[Any] = []
        begins.clear()
        end = time.monotonic() + seconds
        watch = Watch(
            source,
            None,
            WatchConfig(state=tmp_path, every_s=0.1, settle_s=0.0),
            told.append,
            analyst=ScriptedAnalyst(answer),
        )
        watch.run(lambda: bool(begins) and time.monotonic() > end)
        return told

    now = time.time()
    run(Live(make_flows([-40 + i for i in range(30)], start_s=now)), 0.3)
    restarted = time.time_ns()
    told = run(Live(make_flows([0.1, 0.2, 0.3], start_s=now + 1)), 1.0)
    assert begins and min(begins) >= restarted - S, "what was before the restart is not judged"
    assert told == [], "and the jobs are got to know again first"


def test_templates_are_still_known_after_a_restart():
    source = open_source("ipfix://127.0.0.1:0")
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    record = basic_record("10.0.0.1", "10.0.0.2", 7, 1_700_000_000_000, 1_700_000_000_005)
    sender.sendto(ipfix(template_set({256: BASIC}), a_set(256, record)), source.address)
    assert wait_for(source) == 1
    position = json.loads(json.dumps(source.save_position()))
    source.close()
    again = open_source("ipfix://127.0.0.1:0", SourceConfig(position=position))
    sender.sendto(ipfix(a_set(256, record * 3), sequence=1), again.address)
    assert wait_for(again) == 3 and again.counts.waiting == 0
    again.close()
    damaged = open_source("ipfix://127.0.0.1:0", SourceConfig(position={"exporters": [{"sender": 5}, {}, 7]}))
    assert damaged.counts.events["saved exporters that could not be read"] == 3
    damaged.close()
    sender.close()


def wait_for(source: Any) -> int:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if height := source.poll(0.2).height:
            return int(height)
    return 0


def test_a_folder_that_falls_silent_is_looked_at_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr("prism.collect.folder._LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(stream, "_POLL_S", 0.01)
    monkeypatch.setattr(stream, "_LEAST_SILENCE_S", 0.2)
    looks: list[int] = []

    def answer(flows: pl.DataFrame, until_ns: int) -> WindowReport:
        looks.append(until_ns)
        return WindowReport(until_ns=until_ns)

    def run(ends: list[float], start_s: float, silence_ns: float = -math.inf) -> int:
        """How far beyond the last flow was looked, in 1.5 seconds or until it is as far as it should be."""
        folder = tmp_path / f"in-{start_s}"
        folder.mkdir()
        looks.clear()
        for number, end in enumerate(ends):
            make_flows([end], start_s=start_s).write_parquet(folder / f"{number}.parquet")
        end = time.monotonic() + 1.5
        watch = Watch(
            FolderSource(folder), None, WatchConfig(every_s=0.1), lambda d: None, analyst=ScriptedAnalyst(answer)
        )
        last = int((start_s + ends[-1]) * S)
        watch.run(lambda: time.monotonic() > end and bool(looks) and max(looks) - last >= silence_ns)
        return max(looks) - last

    assert run([0.0, 0.1, 0.2], time.time(), S) >= S, "the looks go on beyond the last flow"
    assert run([0.0, 0.1], time.time()) <= 0, "two files do not tell when the next is due"
    assert run([0.0, 0.1, 0.2], time.time() - 86_400) <= 0, "an archive is not silent, it is over"


def test_a_finding_that_is_not_seen_any_more_is_reported_as_resolved_once():
    state = WatchState(warm_up_ns=0)
    state.handle(make_report(7))
    for until in (10, 13):
        told = state.handle(make_report(until, make_finding(end_s=until), step_s=1.3))
    assert [(t.id, t.status) for t in told] == [("finding-1", "firing")]
    over = [t for until in (16, 19, 22, 25, 28) for t in state.handle(make_report(until))]
    assert [(t.id, t.status, t.update) for t in over] == [("finding-1", "resolved", True)] and state.firing() == []


def test_a_finding_of_a_job_that_is_gone_stays_open():
    state = WatchState(warm_up_ns=0)
    state.handle(make_report(10, make_finding(kind="hang", end_s=10)))
    gone = [t for until in range(13, 60, 3) for t in state.handle(WindowReport(until_ns=until * S))]
    assert gone == [] and [t.id for t in state.firing()] == ["finding-1"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def wait_until(check: Any, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := check():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    return None


@pytest.fixture
def alertmanager(tmp_path):
    """A real Alertmanager."""
    if shutil.which("prometheus-alertmanager") is None:
        pytest.skip("needs prometheus-alertmanager")
    port = free_port()
    (tmp_path / "am.yml").write_text("route: {receiver: none, group_wait: 0s}\nreceivers: [{name: none}]\n")
    command = ["prometheus-alertmanager", f"--config.file={tmp_path / 'am.yml'}", f"--storage.path={tmp_path / 'am'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    assert wait_until(lambda: ask(f"{url}/api/v2/status"), 600)
    yield url
    process.kill()
    process.wait(600)


def finding_document(cost: float, status: str = "firing") -> dict[str, Any]:
    finding = make_finding(start_s=time.time() - 60, end_s=time.time(), cost=cost)
    return {**finding.to_json(), "id": "finding-1", "update": False, "status": status, "reported_ns": 0}


def test_alertmanager_is_told_of_findings_their_growth_and_their_end(alertmanager):
    sink = AlertmanagerAlerts(alertmanager)

    def alerts() -> Any:
        return ask(f"{alertmanager}/api/v2/alerts?filter=culprit%3D%2210.0.0.1%22")

    sink.send(finding_document(10.0))
    (raised,) = wait_until(alerts, 600)
    assert raised["labels"]["kind"] == "slow_compute" and raised["annotations"]["lost_gpu_seconds"] == "10.0"
    sink.send(finding_document(25.0))
    grown = wait_until(lambda: [a for a in alerts() if a["annotations"]["lost_gpu_seconds"] == "25.0"], 600)
    assert len(grown) == 1 and grown[0]["fingerprint"] == raised["fingerprint"], "the same alert, not another"
    sink.resume([finding_document(25.0)])
    sink.keep_up()
    sink.send(finding_document(25.0, "resolved"))
    assert wait_until(lambda: alerts() == [], 600), "a finding that is over is no alert"
    sink.close()
    assert sink.outcomes["sent"] == 4 and not sink.outcomes["failed"]


def test_prometheus_raises_an_alert_from_the_metrics(alertmanager, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus")
    server = MetricsServer("127.0.0.1", 0, lambda: WatchStatus(firing=(finding_document(10.0),)))
    rule = "groups: [{name: prism, interval: 1s, rules: [{alert: PrismWatch, expr: prism_watch_finding > 0, labels: {severity: page}}]}]\n"
    (tmp_path / "rules.yml").write_text(rule)
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: [{tmp_path / 'rules.yml'}]\n"
        f"scrape_configs: [{{job_name: prism, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]}}]\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{alertmanager.removeprefix('http://')}']}}]}}]}}\n"
    )
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{free_port()}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (alert,) = wait_until(lambda: ask(f"{alertmanager}/api/v2/alerts?filter=alertname%3DPrismWatch"), 600)
    finally:
        process.kill()
        process.wait(600)
        server.close()
    assert (alert["labels"]["job"], alert["labels"]["kind"], alert["labels"]["id"]) == (
        "job-1",
        "slow_compute",
        "finding-1",
    )


@pytest.mark.parametrize("signals", [1, 3])
def test_a_live_watch_that_is_stopped_however_often_leaves_no_traceback(tmp_path, signals):
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "prism",
        "watch",
        f"sflow://127.0.0.1:{port}",
        "--state",
        str(tmp_path),
        "--every",
        "0.2",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    record = lambda now: basic_record("10.0.0.1", "10.0.0.2", 1000, now - 5, now)  # noqa: E731
    try:
        end = time.monotonic() + 600
        while not (tmp_path / "state.json").exists() and time.monotonic() < end:
            now = int(time.time() * 1000)
            sender.sendto(ipfix(template_set({256: BASIC}), a_set(256, record(now))), ("127.0.0.1", port))
            time.sleep(0.1)
        for _ in range(signals):
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: the whole group
            time.sleep(0.3)
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
        sender.close()
    # Told once it ends by itself; a further Ctrl-C while it leaves may end it at once.
    assert process.returncode in ((0,) if signals == 1 else (0, -signal.SIGINT)), err
    assert "Traceback" not in err and "leaked" not in err and "stopped" in err
