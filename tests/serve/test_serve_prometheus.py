"""A real Prometheus scrapes the service, and every panel of the Grafana dashboard finds its numbers there."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from service import RunningService, run_service
from small_folder import make_small_folder

DASHBOARD = Path(__file__).parents[2] / "src" / "prism" / "serve" / "grafana" / "prism-serve.json"
pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus, as Debian has it")
Query = Callable[[str], list[dict[str, Any]]]


@contextmanager
def run_prometheus(folder: Path, target: RunningService) -> Iterator[Query]:
    """Prometheus on a free port; a function that puts a question to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "cluster-a", "static_configs": [{"targets": [f"127.0.0.1:{target.port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML too
    checked = subprocess.run(["promtool", "check", "config", str(folder / "prometheus.yml")], capture_output=True)
    assert checked.returncode == 0, checked.stderr
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip

    def query(expression: str) -> list[dict[str, Any]]:
        asked = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": expression}, timeout=600)
        answer = asked.raise_for_status().json()  # 503 while it starts
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield query
        finally:
            process.terminate()


def wait_for_scrape(query: Query) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            if query('up{job="cluster-a"} == 1') and query("prism_serve_jobs"):
                return
        except httpx.HTTPError:
            pass  # not up yet
        time.sleep(0.2)
    raise AssertionError("Prometheus has not scraped the service")


def test_every_panel_of_the_dashboard_has_numbers_in_a_real_prometheus(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    folder = make_small_folder(tmp_path / "served", characterized=False)
    asked = [
        (panel["title"], target["expr"])
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(asked) >= 10
    with run_service(folder) as service, run_prometheus(tmp_path, service) as query:
        wait_for_scrape(query)
        without = [title for title, expression in asked if not query(expression)]
        assert without == [], "panels without a number"
        steps = query("prism_serve_job_step_seconds")
        assert {row["metric"]["job"] for row in steps} == {"cluster-a"}, "Prometheus' own label"
        assert {"job-1", "job-2"} <= {row["metric"]["prism_job"] for row in steps}
        assert not [row for row in steps if "exported_job" in row["metric"]]
