"""Prometheus metrics of a watch, served over HTTP."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prism.errors import BadConfigError
from prism.records.ports import PortLoad

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[dict[str, str], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """The state of a watch at one moment."""

    received: int = 0
    received_bytes: int = 0
    flows: int = 0
    lost: int = 0
    waiting: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    window_flows: int = 0
    jobs: dict[str, tuple[int, float | None]] = field(default_factory=dict)  # name -> endpoints, seconds a step
    findings: Counter[str] = field(default_factory=Counter)
    firing: tuple[dict[str, Any], ...] = ()  # findings reported and not resolved
    alerts: Counter[str] = field(default_factory=Counter)
    ports: tuple[PortLoad, ...] = ()  # of switches, from sFlow
    state_trouble: bool = False  # the state is kept in memory only
    looks: int = 0
    failed_looks: int = 0
    look_seconds: float = 0.0
    lag_seconds: float | None = None  # how far the newest flow is behind the clock; None for files


def render_metrics(status: WatchStatus) -> str:
    """The text format that Prometheus reads."""
    one: Callable[[float], Samples] = lambda value: [({}, value)]  # noqa: E731
    parts = [
        _metric("flows_total", "counter", "Flows taken from the source.", one(status.flows)),
        _metric("received_total", "counter", "Datagrams, packets or files taken.", one(status.received)),
        _metric("received_bytes_total", "counter", "Their bytes.", one(status.received_bytes)),
        _metric("lost_total", "counter", "Records that sequence numbers show never arrived.", one(status.lost)),
        _metric("waiting_total", "counter", "Data sets that came before their template.", one(status.waiting)),
        _metric("dropped_total", "counter", "Let go, by reason.", _labelled("reason", status.dropped)),
        _metric("malformed_total", "counter", "Unreadable, by fault.", _labelled("fault", status.malformed)),
        _metric("events_total", "counter", "Other things of note.", _labelled("event", status.events)),
        _metric("window_flows", "gauge", "Flows in the window.", one(status.window_flows)),
        _metric("state_in_memory_only", "gauge", "1 while no state can be saved.", one(int(status.state_trouble))),
        _metric("jobs", "gauge", "Jobs in the last look.", one(len(status.jobs))),
        _metric(
            "job_step_seconds", "gauge", "Usual step of a job.",
            [({"job": name}, step) for name, (_, step) in status.jobs.items() if step is not None],
        ),
        _metric(
            "job_endpoints", "gauge", "Endpoints of a job.",
            [({"job": name}, num) for name, (num, _) in status.jobs.items()],
        ),
        _metric("findings_total", "counter", "Findings reported, by kind.", _labelled("kind", status.findings)),
        _metric(
            "finding", "gauge", "GPU-seconds lost to a finding that is reported and not resolved.",
            [
                ({**{k: d[k] for k in ("id", "kind", "job")}, "culprit": d["culprit"]["id"]}, d["lost_gpu_seconds"])
                for d in status.firing
            ],
        ),
        _metric(
            "port_load", "gauge", "Share of a switch port's speed in use, out.",
            [({"exporter": p.exporter, "port": str(p.port)}, p.load) for p in status.ports if p.load is not None],
        ),
        _metric(
            "port_faults_total", "counter", "Errors and discards of a switch port since the watch began.",
            [({"exporter": p.exporter, "port": str(p.port)}, p.errors + p.discards) for p in status.ports],
        ),
        _metric("alerts_total", "counter", "Alerts, by outcome.", _labelled("outcome", status.alerts)),
        _metric("looks_total", "counter", "Times the window was diagnosed.", one(status.looks)),
        _metric("failed_looks_total", "counter", "Times that went wrong.", one(status.failed_looks)),
        _metric("look_seconds", "gauge", "How long the last look took.", one(status.look_seconds)),
    ]  # fmt: skip
    if status.lag_seconds is not None:
        parts.append(_metric("lag_seconds", "gauge", "Newest flow behind the clock.", one(status.lag_seconds)))
    return "".join(parts)


def _labelled(label: str, counts: Counter[str]) -> Samples:
    # A copy, because other threads change it while this one reads.
    return [({label: key}, value) for key, value in sorted(dict(counts).items())]


def _metric(name: str, kind: str, about: str, samples: Samples) -> str:
    lines = [f"# HELP prism_watch_{name} {about}", f"# TYPE prism_watch_{name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        lines.append(f"prism_watch_{name}{'{' + inside + '}' if inside else ''} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsServer:
    """Serves /metrics, and /healthz for probes, from a thread."""

    def __init__(self, host: str, port: int, status: Callable[[], WatchStatus]) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(status))
        except OSError as error:
            reason = error.strerror or error
            raise BadConfigError(f"--metrics {host}:{port}: cannot listen there ({reason}); choose another") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="prism-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port in use, chosen by the system where 0 was asked for."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _handler(status: Callable[[], WatchStatus]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages: dict[str, Callable[[], str]] = {
                "/metrics": lambda: render_metrics(status()),
                "/healthz": lambda: "ok\n",
            }
            page = pages.get(self.path.partition("?")[0])
            body = ("see /metrics\n" if page is None else page()).encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: stdout and stderr are for findings."""

    return Handler
