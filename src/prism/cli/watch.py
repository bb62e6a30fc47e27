"""`prism watch`: findings as they happen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism.cli.flows import make_options
from prism.cli.options import JOBS_HELP, MapOption, examples
from prism.cli.terminal import note, show_json

if TYPE_CHECKING:
    from prism.observe.watch.stream import Watch

EPILOG = examples(
    "prism watch ipfix://0.0.0.0:4739 --topology topology.csv",
    "prism watch netflow://0.0.0.0:2055 --topology topology.csv --metrics 9108 --state /var/lib/prism",
    "prism watch sflow://0.0.0.0:6343 --topology topology.csv --alertmanager http://127.0.0.1:9093",
    "prism watch pcap:capture.pcapng --topology topology.csv",
    "sudo prism watch pcap:eth0 --webhook https://alerts.example.com/prism",
    "prism watch exports/ --topology topology.csv",
    "prism watch ipfix://0.0.0.0:4739 --topology topology.csv --jobs slurm",
    "prism watch --grafana dashboard.json",
)


def _write_dashboard(target: Path | None) -> Path | None:
    """Copy the dashboard out of the package; a command that only does this needs no source."""
    if target is None:
        return None
    from importlib.resources import files

    from prism.errors import BadFileError

    try:
        target.write_bytes(files("prism.observe.watch").joinpath("grafana/prism-watch.json").read_bytes())
    except OSError as error:
        raise BadFileError(f"{target}: cannot be written ({error.strerror}); choose another file") from None
    note(f"wrote {target}; import it in Grafana under Dashboards, New, Import")
    raise typer.Exit


def watch_source(
    source: Annotated[
        str,
        typer.Argument(
            help="ipfix://HOST:PORT, netflow://HOST:PORT, sflow://HOST:PORT, kafka://HOST:PORT/TOPIC, "
            "clickhouse://HOST:PORT/DATABASE/TABLE, pcap:FILE-or-interface, or a folder."
        ),
    ],
    topology: Annotated[
        Path | None, typer.Option(help="CSV of address,host,rail,switch; without it every endpoint is a host.")
    ] = None,
    window: Annotated[float, typer.Option(help="Seconds of flows that each analysis covers.", min=1.0)] = 60.0,
    every: Annotated[float, typer.Option(help="Seconds between analyses.", min=0.1)] = 3.0,
    max_flows: Annotated[int, typer.Option(help="Flows to keep at most; the oldest go first.", min=1_000)] = 4_000_000,
    gap_ms: Annotated[
        float, typer.Option("--gap-ms", help="pcap: silence that ends a burst of TCP or UDP, in ms.", min=0.001)
    ] = 5.0,
    metrics: Annotated[
        str | None, typer.Option(help="Serve Prometheus metrics on [HOST:]PORT; the host is 127.0.0.1 if left out.")
    ] = None,
    webhook: Annotated[str | None, typer.Option(help="POST every finding as JSON to this address.")] = None,
    alertmanager: Annotated[
        str | None,
        typer.Option(help="Raise, update and resolve alerts for findings in the Alertmanager at this address."),
    ] = None,
    jobs: Annotated[str | None, typer.Option(help=JOBS_HELP)] = None,
    map_columns: MapOption = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder that keeps the watch across restarts; made if missing.")
    ] = None,
    grafana: Annotated[
        Path | None,
        typer.Option(
            help="Write the Grafana dashboard of the metrics to this file, and exit.",
            callback=_write_dashboard,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Watch a source of flows and print findings as JSON Lines, each one once."""
    from prism.collect import BurstConfig, SourceConfig, open_source
    from prism.observe.watch.alerts import AlertmanagerAlerts, AlertSink, WebhookAlerts
    from prism.observe.watch.given_source import GivenSource
    from prism.observe.watch.state import load_state
    from prism.observe.watch.stream import Watch, WatchConfig
    from prism.records import TOPOLOGY, read_table

    table = read_table(topology, TOPOLOGY) if topology is not None else None
    address = parse_address(metrics) if metrics is not None else None
    alerts: list[AlertSink] = [] if webhook is None else [WebhookAlerts(webhook, state)]
    alerts += [] if alertmanager is None else [AlertmanagerAlerts(alertmanager, state)]
    given = GivenSource(name=jobs) if jobs is not None else None
    position = load_state(state / "state.json").position if state is not None else {}
    columns = make_options(map_columns, skip_bad_rows=True).columns
    config = SourceConfig(bursts=BurstConfig(gap_ns=int(gap_ms * 1e6)), position=position, columns=columns)
    watch = Watch(
        open_source(source, config),
        table,
        WatchConfig(window_s=window, every_s=every, max_rows=max_flows, state=state),
        _print_line,
        alerts=alerts,
        given=given,
        say=note,
    )
    try:
        _run_until_stopped(watch, address)
    finally:
        for sink in alerts:
            sink.close()
        if given is not None:
            given.close()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port out of `[HOST:]PORT`."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"--metrics {text}: expected PORT or HOST:PORT, as in 9108")
    return host.strip("[]") or "127.0.0.1", int(port)


def _print_line(document: dict[str, Any]) -> None:
    show_json(document)
    sys.stdout.flush()


def _run_until_stopped(watch: Watch, metrics: tuple[str, int] | None) -> None:
    """Run until the source ends, or SIGINT or SIGTERM asks for a clean stop."""
    import signal
    import threading

    from prism.observe.watch.metrics import MetricsServer

    stop = threading.Event()
    server = MetricsServer(*metrics, watch.status) if metrics is not None else None
    if server is not None and metrics is not None:
        note(f"metrics on http://{metrics[0]}:{server.port}/metrics")
    before = {s: signal.signal(s, lambda *_: stop.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        watch.run(stop.is_set)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if server is not None:
            server.close()
    if stop.is_set():
        note("stopped")
