"""Counters out of Prometheus: as its API gives them, and, where it is installed, out of a real server."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.datacenter.predict.counters import make_counters
from prism.datacenter.predict.history import DAY_NS
from prism.datacenter.predict.prometheus import XID, PrometheusConfig, read_prometheus
from prism.errors import InputError

REMAP = "DCGM_FI_DEV_ROW_REMAP_FAILURE"


def gpu(host: int, number: int, **more: str) -> dict[str, str]:
    """Labels as dcgm-exporter writes them."""
    own = {"gpu": str(number), "UUID": f"GPU-{host}-{number}", "Hostname": f"n{host}", "modelName": "NVIDIA H100"}
    return {**own, "instance": f"n{host}:9400", "job": "dcgm", **more}


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server that gives what the test puts in, by the metric asked for."""
    kept: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
            result = kept.get(asked["query"][0], [])
            body = result if isinstance(result, bytes) else json.dumps({"data": {"result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", kept
        server.shutdown()


def series(labels: dict[str, str], *values: float) -> dict[str, Any]:
    return {"metric": labels, "values": [[86_400 * day, str(value)] for day, value in enumerate(values)]}


def test_gpus_of_one_host_are_counted_apart_and_added_up(answers: tuple[str, dict[str, Any]]) -> None:
    url, kept = answers
    kept[REMAP] = [series(gpu(1, 0), 5, 5, 7), series(gpu(1, 1), 100, 101, 101), series(gpu(9, 0), 1, 2, 3)]
    found = read_prometheus(url, 0, 2 * 86_400, ["n0", "n1"])
    assert found["serial"].unique().to_list() == ["n1"]
    (counter,) = make_counters(found, {"n0": 0, "n1": 1})
    # Read as one series these would fall and rise by a hundred every day.
    assert counter.rise(np.array([0, 1]), 0, 2 * DAY_NS).tolist() == [0.0, 3.0]


def test_a_part_is_named_by_whatever_the_history_calls_it(answers: tuple[str, dict[str, Any]]) -> None:
    url, kept = answers
    kept[REMAP] = [series(gpu(1, 0), 1, 2)]
    for known in ("GPU-1-0", "n1"):
        assert read_prometheus(url, 0, 86_400, [known])["serial"].unique().to_list() == [known]
    kept[REMAP] = [series({"instance": "10.0.0.7:9400"}, 1, 2)]
    assert read_prometheus(url, 0, 86_400, ["10.0.0.7"])["serial"].unique().to_list() == ["10.0.0.7"]


def test_the_code_of_the_last_error_is_no_counter(answers: tuple[str, dict[str, Any]]) -> None:
    url, kept = answers
    kept[XID] = [series(gpu(1, 0), 0, 79, 79, 0, 31)]
    found = read_prometheus(url, 0, 4 * 86_400, ["n1"])
    (counter,) = make_counters(found, {"n1": 0}, codes=(XID,))
    assert counter.rise(np.array([0]), 0, 4 * DAY_NS).tolist() == [2.0]


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b'{"data": {"result": [{"metric": {}}]}}', b'{"data": 3}'])
def test_what_is_no_answer_of_prometheus_is_one_clear_line(answers: tuple[str, dict[str, Any]], text: bytes) -> None:
    url, kept = answers
    kept[XID] = text
    if b"metric" in text:
        kept[XID] = b'{"data": {"result": [{"metric": {"Hostname": "n1"}, "values": [["x", 1]]}]}}'
    with pytest.raises(InputError, match="not an answer of Prometheus"):
        read_prometheus(url, 0, 86_400, ["n1"])


def test_a_server_that_is_away_is_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match="does not answer"):
            read_prometheus(f"http://127.0.0.1:{probe.getsockname()[1]}", 0, 1, ["a"])
    with pytest.raises(InputError, match="expected http"):
        read_prometheus("file:///etc/passwd", 0, 1, ["a"])


def write_fleet(folder: Path, hosts: int, now_s: float) -> None:
    """Files of a fleet of which every third host fails every fourth day, to the present."""
    moments = pl.DataFrame(
        [
            (f"n{i}", round((now_s - 86_400 * (day + 0.1)) * 1e9))
            for day in range(0, 200, 4)
            for i in range(0, hosts, 3)
        ],
        schema={"serial": pl.String, "at": pl.Int64},
        orient="row",
    )
    moments.with_columns(pl.col("at").cast(pl.Datetime("ns"))).write_csv(folder / "events.csv")
    installed = pl.Series([round((now_s - 300 * 86_400) * 1e9)] * hosts).cast(pl.Datetime("ns"))
    pl.DataFrame({"serial": [f"n{i}" for i in range(hosts)], "installed": installed}).write_csv(folder / "lives.csv")


def watch(folder: Path, *more: str) -> str:
    words = ["predict", "watch", str(folder / "events.csv"), "--lives", str(folder / "lives.csv"), "--rounds", "1"]
    done = CliRunner().invoke(app, [*words, "--output", str(folder / "risks"), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_counter_that_means_damage_is_reported_once_even_before_anything_was_learned(
    answers: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, kept = answers
    now_s = time.time()
    write_fleet(tmp_path, 60, now_s)
    values = [[now_s - 7_200, "0"], [now_s - 10, "1"]]
    kept[REMAP] = [{"metric": gpu(7, 3), "values": values}]
    first, second = watch(tmp_path, "--prometheus", url), watch(tmp_path, "--prometheus", url)
    assert f"counter: n7 {REMAP} of n7 rose by 1 in 7 days" in first and "counter:" not in second
    assert "prism_predict_counters_rising 1" in (tmp_path / "risks" / "metrics.prom").read_text()
    # The server forgets; what was read is kept.
    kept.clear()
    watch(tmp_path, "--prometheus", url)
    assert pl.read_parquet(tmp_path / "risks" / "counters.parquet")["value"].to_list() == [0.0, 1.0]


def test_a_watch_that_has_begun_outlives_a_file_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path, 60, time.time())

    def spoil(seconds: float) -> None:
        if seconds == 3_600.0:  # the pause between two rounds; libraries sleep, too
            (tmp_path / "events.csv").write_text("serial\n")

    monkeypatch.setattr(time, "sleep", spoil)
    words = ["predict", "watch", str(tmp_path / "events.csv"), "--lives", str(tmp_path / "lives.csv")]
    done = CliRunner().invoke(app, [*words, "--output", str(tmp_path / "risks"), "--rounds", "2"])
    assert done.exit_code == 0 and "this round is left out" in done.stderr
    assert isinstance(
        CliRunner().invoke(app, [*words, "--output", str(tmp_path / "x"), "--rounds", "1"]).exception, InputError
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_openmetrics(path: Path, hosts: int, days: int, now_s: float) -> None:
    """Forty days of counters: on every third host the replays of both GPUs rise, on others hardly."""
    name = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    lines = [f"# TYPE {name} unknown"]
    for host in range(hosts):
        for number in range(2):
            labels = ",".join(f'{k}="{v}"' for k, v in gpu(host, number).items())
            for hour in range(0, days * 24, 6):
                value = hour * 3 if host % 3 == 0 else hour // 240
                lines.append(f"{name}{{{labels}}} {value} {now_s - (days * 24 - hour) * 3_600:.0f}")
    path.write_text("\n".join(lines) + "\n# EOF\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None or shutil.which("promtool") is None, reason="needs prometheus")
def test_a_real_server_is_read_scored_scraped_and_alerted_about_once(tmp_path: Path) -> None:
    now_s = time.time()
    write_fleet(tmp_path, 100, now_s)
    write_openmetrics(tmp_path / "past.txt", 100, 40, now_s)
    data = tmp_path / "data"
    backfill = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=2000h", "openmetrics"]
    subprocess.run([*backfill, str(tmp_path / "past.txt"), str(data)], check=True, capture_output=True)
    risks = tmp_path / "risks"
    risks.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(risks))) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        target = {"targets": [f"127.0.0.1:{files.server_port}"]}
        scrape = {"job_name": "prism", "metrics_path": "/metrics.prom", "static_configs": [target]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        port = _free_port()
        words = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={data}"]
        words += [f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y"]
        words += ["--query.lookback-delta=7h"]  # readings lie six hours apart, a scrape would give one a minute
        with (tmp_path / "prometheus.log").open("wb") as log:
            server = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
        try:
            _check_server(tmp_path, f"http://127.0.0.1:{port}")
        finally:
            server.kill()
            server.wait()
            files.shutdown()


def _check_server(folder: Path, url: str) -> None:
    _wait(lambda: urllib.request.urlopen(f"{url}/-/ready", timeout=60).status == 200)
    config = PrometheusConfig(step_s=86_400.0)
    found = read_prometheus(url, time.time() - 30 * 86_400, time.time(), ["n0", "n1"], config)
    assert set(found["serial"]) == {"n0", "n1"} and found["series"].n_unique() == 4
    first = watch(folder, "--prometheus", url, "--min-risk", "0.5", "--horizon-days", "10")
    alerted = {line.split()[1] for line in first.splitlines() if line.startswith("risk:")}
    assert alerted == {f"n{i}" for i in range(0, 100, 3)}
    assert "DCGM_FI_DEV_PCIE_REPLAY_COUNTER rose by" in first
    assert "risk:" not in watch(folder, "--prometheus", url, "--min-risk", "0.5", "--horizon-days", "10")
    text = (folder / "risks" / "metrics.prom").read_bytes()
    subprocess.run(["promtool", "check", "metrics"], input=text, check=True, capture_output=True)
    query = urllib.parse.urlencode({"query": "prism_predict_risk > 0.5"})

    def scraped() -> bool:
        answer = json.load(urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=60))
        return {row["metric"]["node"] for row in answer["data"]["result"]} == alerted

    _wait(scraped)


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("waited in vain")
