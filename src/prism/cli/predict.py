"""`prism predict`: which part fails next, why, and what to do about it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.options import App, JsonFlag, RunByDefault, examples
from prism.cli.terminal import note, show, show_json, table
from prism.errors import BadConfigError, InputError

if TYPE_CHECKING:
    from prism.datacenter.predict import History

app = App(
    cls=RunByDefault,
    help="Which part fails next, why, what to do about it and what that is worth.",
    no_args_is_help=True,
)

Events = Annotated[
    str,
    typer.Argument(
        help="Events of parts: a table of serial, location, at, event (Parquet, CSV, JSON), kernel logs (a file or a "
        "folder), or http://HOST:PORT of a Prometheus server that scrapes dcgm-exporter."
    ),
]
Label = Annotated[
    str, typer.Option("--label", help="Prometheus: the label that names a part; else UUID, Hostname, ...")
]
Match = Annotated[str, typer.Option("--match", help='Prometheus: label matchers, as in cluster="a".')]
At = Annotated[str, typer.Option(help="The moment asked about: 2016-10-01, or 300days where times are numbers.")]
Lives = Annotated[
    Path | None, typer.Option(help="Stays of parts: serial, location, installed, removed (empty: still there).")
]
Horizon = Annotated[float, typer.Option(help="How far ahead.", min=0.1, max=3_650)]
Map = Annotated[
    str | None, typer.Option(help="Names of your columns: serial=node_id,at=event_time:days (ns us ms s h days).")
]
Counters = Annotated[
    Path | None, typer.Option(help="Readings of counters: serial, at, counter, value (DCGM, kernel logs).")
]
JobNodes = Annotated[int, typer.Option(help="Nodes of the next job; 0: all.", min=0)]
GpusPerNode = Annotated[int, typer.Option(help="GPUs of one node.", min=1)]
SaveS = Annotated[float, typer.Option(help="Seconds for which a save stops the training.", min=0.0)]
RestartS = Annotated[float, typer.Option(help="Seconds from a failure to the first new step.", min=0.0)]


@app.command(
    "run",
    epilog=examples(
        "prism predict events.parquet --lives lives.parquet --at 2016-10-01 --horizon-days 90",
        "prism predict faults.json --map serial=node_id,at=event_time:days --at 300days --horizon-days 14 --json",
        "prism predict /var/log/kernel/ --at 2026-11-01 --horizon-days 14",
        "PRISM_PROMETHEUS_TOKEN=... prism predict https://prometheus:9090 --match 'cluster=\"a\"' --at 2026-11-01",
    ),
)
def run_predict(
    events: Events,
    at: At,
    lives: Lives = None,
    horizon_days: Horizon = 90.0,
    map: Map = None,
    counters: Counters = None,
    label: Label = "",
    match: Match = "",
    most: Annotated[int, typer.Option(help="Rows to show; --json gives all.", min=1)] = 20,
    json: JsonFlag = False,
) -> None:
    """Give every part in place at a moment its risk of an event, from what was known before that moment."""
    from prism.datacenter.predict import PredictConfig, predict
    from prism.datacenter.predict.history import parse_time

    history = _read(events, lives, map, counters, parse_time(at), label, match)
    found = predict(history, parse_time(at), PredictConfig(horizon_days=horizon_days))
    for line in found.notes:
        note(f"note: {line}")
    if json:
        show_json(found.to_json())
        return
    rows = [[r.id, f"{r.risk:.2%}", "; ".join(r.reasons)] for r in found.risks[:most]]
    show(table(f"Riskiest of {len(found.risks):,} parts, next {horizon_days:g} days", ["part", ">risk", "why"], rows))
    sure = "not known" if found.past_auc != found.past_auc else f"{found.past_auc:.2f} (0.5 is chance, 1 is certain)"
    low, high = found.expected_range
    held, of = found.range_held
    past = f"; such a range held {held} of {of} past times" if of else ""
    show(
        f"{found.expected_events:.0f} parts ({low:.0f} to {high:.0f}) are expected to have an event; "
        f"by {found.method}, past AUC: {sure}{past}"
    )


@app.command(
    "advise",
    epilog=examples(
        "prism predict advise events.parquet --lives lives.parquet --at 2016-10-01 --job-nodes 1024",
        "prism predict advise faults.csv --at 2026-05-01 --running-job run7=node-1,node-2 --json > risk.json",
    ),
)
def run_advise(
    events: Events,
    at: At,
    lives: Lives = None,
    horizon_days: Horizon = 30.0,
    map: Map = None,
    counters: Counters = None,
    job: Annotated[
        list[str] | None, typer.Option("--running-job", help="A job that runs, with its nodes: NAME=NODE,NODE.")
    ] = None,
    job_nodes: JobNodes = 0,
    gpus_per_node: GpusPerNode = 8,
    save_s: SaveS = 60.0,
    restart_s: RestartS = 600.0,
    run_days: Annotated[float, typer.Option(help="How long the next job will run.", min=0.1)] = 14.0,
    json: JsonFlag = False,
) -> None:
    """Say how often to save, which nodes to avoid or drain, and how many spares to hold; nothing is done."""
    from prism.datacenter.predict import AdviceConfig, PredictConfig, advise, predict
    from prism.datacenter.predict.history import parse_time

    history = _read(events, lives, map, counters, parse_time(at))
    forecast = predict(history, parse_time(at), PredictConfig(horizon_days=horizon_days))
    config = AdviceConfig(
        job_nodes=job_nodes, gpus_per_node=gpus_per_node, save_s=save_s, restart_s=restart_s, run_days=run_days
    )
    found = advise(forecast, _parse_jobs(job or []), config, history)
    for line in found.notes:
        note(f"note: {line}")
    if json:
        show_json(found.to_json())
        return
    rows = [[j.job, f"{j.nodes:,}", f"{j.failures_per_day:.3f}", f"{j.interval_s / 60:.0f}"] for j in found.jobs]
    show(table("Checkpoints", ["job", ">nodes", ">failures a day", ">save every min"], rows))
    if found.drains:
        cells = [
            [d.node, f"{d.risk:.1%}", f"{d.cost_gpu_h:.0f}", f"{d.gain_gpu_h:.0f}", "; ".join(d.reasons)]
            for d in found.drains[:20]
        ]
        show(table("Drain before a long run", ["node", ">risk", ">costs GPU-h", ">saves GPU-h", "why"], cells))
    if found.test:
        cells = [[s.node, f"{s.events}", f"{s.expected:.1f}", f"{s.chance:.1g}"] for s in found.test[:20]]
        show(
            table(
                "Test these: more events than their time explains", ["node", ">events", ">expected", ">chance"], cells
            )
        )
    show(f"spares to hold: {found.spares}; nodes the next job should not get: {len(found.avoid):,}")
    show(f"a drain pays from a risk of {found.break_even:.1%} within the run on")
    for line in [*found.to_json()["slurm"][:6], *found.to_json()["kubernetes"][:3]]:
        show(f"  {line}")


@app.command(
    "replay",
    epilog=examples(
        "prism predict replay events.parquet --lives lives.parquet --start 2016-01-01 --end 2016-12-31 --job-nodes 1024"
    ),
)
def run_replay(
    events: Events,
    start: Annotated[str, typer.Option("--start", help="Where the replay begins; what lies before is learned from.")],
    to: Annotated[str, typer.Option("--end", help="Where it ends.")],
    job_nodes: Annotated[int, typer.Option(help="Nodes of the job.", min=1)],
    lives: Lives = None,
    horizon_days: Horizon = 30.0,
    refresh_days: Annotated[float, typer.Option(help="Days between forecasts.", min=1.0)] = 30.0,
    map: Map = None,
    gpus_per_node: GpusPerNode = 8,
    save_s: SaveS = 60.0,
    restart_s: RestartS = 600.0,
    seed: Annotated[int, typer.Option(help="Seed of the order in which nodes are taken.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Run a job through the faults that came, under several policies, with the supervisor's own decisions."""
    from prism.datacenter.predict import PredictConfig, TraceConfig, forecast_often, replay_history
    from prism.datacenter.predict.history import parse_time

    history = _read(events, lives, map, None)
    config = TraceConfig(
        start_ns=parse_time(start),
        end_ns=parse_time(to),
        job_nodes=job_nodes,
        refresh_days=refresh_days,
        gpus_per_node=gpus_per_node,
        save_s=save_s,
        restart_s=restart_s,
        seed=seed,
    )
    if config.end_ns <= config.start_ns:
        raise BadConfigError(f"--end {to} does not lie after --start {start}")
    found = replay_history(history, config, forecast_often(history, config, PredictConfig(horizon_days=horizon_days)))
    if json:
        show_json(found.to_json())
        return
    rows = []
    for p in found.to_json()["policies"]:
        figures = [f"{p['goodput']:.3%}", f"{p['lost_gpu_h']:,.0f}", f"{p['saved']:+.1%}", f"{p['failures']:,}"]
        rows.append([p["policy"], *figures, f"{p['swaps']} ({p['false_swaps']})"])
    title = f"{found.faults:,} faults on {found.nodes:,} nodes, a job of {job_nodes:,}"
    show(table(title, ["policy", ">goodput", ">lost GPU-h", ">saved", ">failures", ">swaps (in vain)"], rows))
    show(f"saved: against {found.best_fixed}, the best fixed interval with hindsight")
    show(f"a swap pays where at least {found.break_even:.0%} of swapped nodes would have failed")


@app.command(
    "watch",
    epilog=examples(
        "prism predict watch events.csv --lives lives.csv --output risks",
        "prism predict watch events.csv --prometheus http://localhost:9090 --output risks --every 3600",
    ),
)
def run_watch(
    events: Events,
    output: Annotated[Path, typer.Option(help="Folder for risk.json, metrics.prom and alerts.jsonl.")],
    lives: Lives = None,
    horizon_days: Horizon = 30.0,
    map: Map = None,
    counters: Counters = None,
    prometheus: Annotated[str | None, typer.Option(help="Prometheus with the DCGM exporter's counters.")] = None,
    limit: Annotated[
        float, typer.Option("--min-risk", help="Risk from which a node is worth an alert.", min=0.0, max=1.0)
    ] = 0.2,
    every_s: Annotated[float, typer.Option("--every", help="Seconds between scores.", min=1.0)] = 3_600.0,
    rounds: Annotated[int, typer.Option(help="Scores to make; 0: until stopped.", min=0)] = 0,
    at: Annotated[str | None, typer.Option(help="Score as of this moment; else now.")] = None,
) -> None:
    """Score every node again and again from files; alert once per node, and when calibration drifts."""
    from prism.datacenter.predict import PredictConfig, RiskRound, WatchConfig
    from prism.datacenter.predict.history import parse_time

    config = PredictConfig(horizon_days=horizon_days)
    made = 0
    scorer = RiskRound(output, WatchConfig(limit=limit), config)
    while True:
        at_ns = parse_time(at) if at is not None else time.time_ns()
        try:
            history = _read(events, lives, map, counters)
            if prometheus is not None:
                history = scorer.with_prometheus(history, prometheus, at_ns)
            for alert in scorer.score(history, at_ns):
                show(f"{alert.kind}: {alert.node} {alert.text}")
        except InputError as error:
            if not made:
                raise
            # A file is being written, or a server is not reachable for a while.
            note(f"this round is left out: {error}")
        made += 1
        if rounds and made >= rounds:
            return
        time.sleep(every_s)


def _read(
    events: str,
    lives: Path | None,
    map: str | None,
    counters: Path | None,
    at_ns: int = 0,
    label: str = "",
    match: str = "",
) -> History:
    from prism.datacenter.predict import add_counters, read_history
    from prism.datacenter.predict.fault_events import is_kernel_log, read_kernel_logs, read_prometheus_events
    from prism.datacenter.predict.prometheus import PrometheusConfig

    if events.startswith(("http://", "https://")):
        token = os.environ.get("PRISM_PROMETHEUS_TOKEN", "")
        config = PrometheusConfig(token=token, match=match, part_label=label)
        return read_prometheus_events(events, at_ns or time.time_ns(), config)
    if lives is None and is_kernel_log(Path(events)):
        return read_kernel_logs(Path(events))
    names = _parse_map(map)
    history = read_history(Path(events), lives, names)
    return add_counters(history, counters, names) if counters is not None else history


def _parse_jobs(entries: list[str]) -> dict[str, list[str]]:
    jobs = {}
    for entry in entries:
        name, found, nodes = entry.partition("=")
        if not found or not nodes:
            raise BadConfigError(f"--running-job: '{entry}' names no nodes; write NAME=node-1,node-2")
        jobs[name.strip()] = [node.strip() for node in nodes.split(",") if node.strip()]
    return jobs


def _parse_map(text: str | None) -> dict[str, str]:
    names = {}
    for entry in (text or "").split(","):
        column, found, name = entry.partition("=")
        if entry and not found:
            raise BadConfigError(f"--map: '{entry}' is no assignment; write serial=node_id,at=event_time:days")
        if entry:
            names[column.strip()] = name.strip()
    return names
