"""Histories out of what a datacenter has: kernel logs, and DCGM's counters on a Prometheus server that asks for a token."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.datacenter.predict.fault_events import is_kernel_log, read_kernel_logs, read_prometheus_events
from prism.datacenter.predict.history import DAY_NS, parse_time
from prism.datacenter.predict.prometheus import PrometheusConfig
from prism.errors import InputError

AT = parse_time("2026-11-01")
LOG = """\
2026-10-01T04:00:00+00:00 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.
2026-10-02T04:00:00+00:00 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python, MMU Fault
2026-10-03T04:00:00+00:00 node8 kernel: NVRM: Xid (PCI:0000:86:00): 95, uncontained ECC error
"""


def test_two_xid_lines_of_a_kernel_log_are_a_history(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text(LOG)
    assert is_kernel_log(path) and is_kernel_log(tmp_path)
    history = read_kernel_logs(tmp_path)
    assert sorted(history.parts) == ["node7/0000:3b:00", "node8/0000:86:00"]
    assert len(history.event_ns) == 2, "an Xid 31 is the program's fault"
    done = CliRunner().invoke(app, ["predict", str(path), "--at", "2026-11-01", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["risks"][0]["place"].startswith("node")


def test_a_kernel_log_without_dates_says_how_to_export_it(tmp_path: Path) -> None:
    path = tmp_path / "dmesg"
    path.write_text("[12.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    with pytest.raises(InputError, match="journalctl -k -o short-iso"):
        read_kernel_logs(path)


@pytest.fixture
def prometheus() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != "Bearer k":
                self.send_error(401)
                return
            query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["query"][0]
            asked.append(query)
            found: list[dict[str, Any]] = []
            if query.startswith("DCGM_FI_DEV_XID_ERRORS"):
                for gpu, codes in ((0, (0, 79, 79, 31)), (1, (0, 0, 0, 0))):
                    labels = {"asset": f"A{gpu}", "UUID": f"GPU-{gpu}", "gpu": str(gpu), "instance": "n1:9400"}
                    values = [[AT / 1e9 - (9 - i) * 86_400, str(code)] for i, code in enumerate(codes)]
                    found.append({"metric": labels, "values": values})
            body = json.dumps({"data": {"result": found}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_prometheus_gives_parts_and_events_with_a_token_and_labels(prometheus: tuple[str, list[str]]) -> None:
    url, asked = prometheus
    config = PrometheusConfig(token="k", match='cluster="a"', part_label="asset")
    history = read_prometheus_events(url, AT, config)
    assert sorted(history.parts) == ["A0", "A1"] and history.lives_known
    assert sorted(history.place_names) == ["n1/0", "n1/1"]
    assert [
        (history.parts[p], (AT - at) // DAY_NS) for p, at in zip(history.event_part, history.event_ns, strict=True)
    ] == [("A0", 8)]
    assert asked[0] == 'DCGM_FI_DEV_XID_ERRORS{cluster="a"}'


def test_a_wrong_token_is_one_clear_line(prometheus: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_PROMETHEUS_TOKEN", "wrong")
    done = CliRunner().invoke(app, ["predict", prometheus[0], "--at", "2026-11-01"])
    assert isinstance(done.exception, InputError) and "PRISM_PROMETHEUS_TOKEN" in str(done.exception)
    monkeypatch.setenv("PRISM_PROMETHEUS_TOKEN", "k")
    done = CliRunner().invoke(app, ["predict", prometheus[0], "--at", "2026-11-01", "--label", "asset"])
    assert done.exit_code == 0 and "A0" in done.output
