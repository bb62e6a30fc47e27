"""`prism place`: which cluster should run a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism.cli.options import App, JsonFlag, examples
from prism.cli.terminal import note, progress, show, show_json, table
from prism.errors import BadConfigError

if TYPE_CHECKING:
    from prism.datacenter.place.live.dispatcher import Asked, Dispatcher

app = App(help="Which cluster should run a job; what sharing clusters would have saved.", no_args_is_help=True)

Clusters = Annotated[Path, typer.Option(help="How the clusters are reached (YAML); see docs/place.md.")]
History = Annotated[
    list[Path] | None, typer.Option(help="Jobs that ended (sacct --parsable2, CSV, Parquet), to expect run times from.")
]
StateFolder = Annotated[Path, typer.Option("--state", help="Folder of the dispatcher's journal.")]


@app.command(
    "simulate",
    epilog=examples(
        "prism place simulate jobs.parquet --clusters clusters.csv",
        "prism place simulate seren.txt kalos.txt --clusters clusters.yaml --policy static-easy --policy prism --json",
    ),
)
def run_simulate(
    jobs: Annotated[list[Path], typer.Argument(help="Jobs, in any form that prism characterize reads.")],
    clusters: Annotated[Path, typer.Option(help="Clusters: name and gpus (CSV, Parquet or YAML).")],
    map_items: Annotated[
        list[str] | None, typer.Option("--map", help="Which column is which field: gpus=num_gpu,submit=time:ms.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Policies to run; all of them where none is named.")] = None,
    json: JsonFlag = False,
) -> None:
    """Run a trace of jobs through policies of sharing clusters, and compare how long jobs wait."""
    from prism.datacenter.characterize import parse_choices
    from prism.datacenter.place import DEFAULT, POLICIES, compare, read_clusters, read_jobs, simulate

    unknown = [name for name in policy or () if name not in POLICIES]
    if unknown:
        raise BadConfigError(f"'{unknown[0]}' is no policy; expected one of {', '.join(POLICIES)}")
    known = read_clusters(clusters)
    choices = parse_choices(map_items or [])
    trace, seconds = read_jobs(*jobs, clusters=[c.name for c in known], choices=choices, say=note)
    found: dict[str, dict[str, Any]] = {}
    chosen = list(policy or POLICIES)
    with progress("simulating", len(chosen)) as advance:
        alone = simulate(trace, seconds, known, POLICIES["static-easy"])
        for name in chosen:
            outcome = alone if name == "static-easy" else simulate(trace, seconds, known, POLICIES[name])
            found[name] = {**outcome.to_json(), "unfairness": compare(outcome, alone).to_json()}
            advance(1)
    if json:
        show_json({"schema": "prism.placement/1", "policies": found})
        return
    for name, told in found.items():
        if told["left_out"]:
            note(f"{name}: {told['left_out']:,} of {len(trace):,} jobs fit nowhere and were left out")
    if len({told["jobs"] for told in found.values()}) > 1:
        note("waits of policies that ran different numbers of jobs cannot be compared; see the column 'jobs run'")
    rows = [
        [
            f"{name} (dispatches)" if name == DEFAULT else name,
            f"{told['jobs']:,}",
            f"{told['mean_queue_s']:,.0f}",
            f"{told['p50_queue_s']:,.0f}",
            f"{told['p99_queue_s']:,.0f}",
            f"{told['moved_pct']:.1f}",
            f"{told['idle_gpu_h']:,.0f}",
            f"{told['unfairness']['max_slowdown_ratio']:.2f}",
        ]
        for name, told in found.items()
    ]
    columns = [
        "policy",
        ">jobs run",
        ">mean wait s",
        ">median s",
        ">p99 s",
        ">% not at home",
        ">GPU-h idle, jobs waiting",
        ">worst owner",
    ]
    show(table(f"{len(trace):,} jobs, {sum(c.gpus for c in known):,} GPUs in {len(known)} clusters", columns, rows))
    show("worst owner: mean slowdown of the cluster's own users that fares worst, over having it to themselves")


@app.command(
    "ask",
    epilog=examples(
        "prism place ask train.sbatch --clusters live.yaml --history seren.txt --history kalos.txt",
        "prism place ask train.sbatch --clusters live.yaml --act",
    ),
)
def run_ask(
    job: Annotated[Path, typer.Argument(help="A batch script (its #SBATCH lines say what it needs) or a manifest.")],
    clusters: Clusters,
    history: History = None,
    home: Annotated[str, typer.Option(help="The cluster whose user you are.")] = "",
    act: Annotated[bool, typer.Option("--act", help="Submit it to the best cluster, once.")] = False,
    state: StateFolder = Path("prism-place"),
    json: JsonFlag = False,
) -> None:
    """Ask all clusters when a job would start and end there, and say where it should run; submits only with --act."""
    from prism.datacenter.place.live.forms import find_job
    from prism.datacenter.place.live.journal import DispatchJournal

    dispatcher = _make_dispatcher(clusters, history)
    file = find_job(job)
    asked = dispatcher.ask(file, home)
    _show_asked(asked, json=json and not act)
    if not act:
        return
    with DispatchJournal(state) as journal:
        placed = dispatcher.place(file, journal, home)
    if json:
        show_json({"placed": None if placed is None else {"cluster": placed.cluster, "job": placed.job}})
    if placed is None:
        note("not submitted: no cluster that answers can run it now, or whether one has it already is not known")
        raise typer.Exit(1)
    note(f"submitted to {placed.cluster} as job {placed.job}")


@app.command("dispatch", epilog=examples("prism place dispatch jobs/ --clusters live.yaml --act"))
def run_dispatch(
    folder: Annotated[Path, typer.Argument(help="Folder of *.sh, *.sbatch and *.yaml, placed in order of name.")],
    clusters: Clusters,
    history: History = None,
    act: Annotated[
        bool, typer.Option("--act", help="Submit them; without it, only print where each would go.")
    ] = False,
    state: StateFolder = Path("prism-place"),
    poll_s: Annotated[
        float, typer.Option(help="Pause before jobs that could not be placed are tried again.", min=0.1)
    ] = 10.0,
) -> None:
    """Place every job of a folder exactly once; after a kill, the same --state continues."""
    from prism.datacenter.place.live.forms import list_jobs
    from prism.datacenter.place.live.journal import DispatchJournal

    dispatcher = _make_dispatcher(clusters, history)
    files = list_jobs(folder)
    if not act:
        for file in files:
            _show_asked(dispatcher.ask(file), json=False)
        return
    with DispatchJournal(state) as journal:
        left = files
        while left:
            left = [file for file in left if dispatcher.place(file, journal) is None]
            if left:
                note(f"{len(left)} of {len(files)} jobs are not placed yet; trying again in {poll_s:g} s")
                time.sleep(poll_s)
        missing = dispatcher.find_missing(files, journal)
    note(f"{len(files)} jobs are placed")
    for entry in missing:
        note(f"{entry.cluster} took {entry.mark} as {entry.job} and does not know it now; it may have run: look there")
    if missing:
        raise typer.Exit(1)


@app.command("nominate", epilog=examples("prism place nominate --clusters workers.yaml --manager hub --act"))
def run_nominate(
    clusters: Clusters,
    manager: Annotated[str, typer.Option(help="Context of kubectl for the cluster that Kueue's manager runs in.")] = "",
    kubeconfig: Annotated[str, typer.Option(help="Its kubeconfig.")] = "",
    act: Annotated[bool, typer.Option("--act", help="Write the nominations; without it, only print them.")] = False,
    poll_s: Annotated[float, typer.Option(help="Pause between rounds.", min=0.1)] = 10.0,
    rounds: Annotated[int, typer.Option(help="Rounds to make; 0: until stopped.", min=0)] = 0,
    patience_s: Annotated[float, typer.Option(help="Seconds until one more worker is nominated.", min=1.0)] = 300.0,
) -> None:
    """Experimental, never run on a real Kueue: tell MultiKueue to which worker cluster each waiting workload goes."""
    from prism.datacenter.place.live.kueue import KueueCluster
    from prism.datacenter.place.live.nominating import Nominator
    from prism.datacenter.place.live.snapshot import SubmitError

    hub = KueueCluster(name="manager", context=manager, kubeconfig=kubeconfig)
    nominator = Nominator(manager=hub, dispatcher=_make_dispatcher(clusters, None), patience_s=patience_s)
    made = 0
    while True:
        try:
            for found in nominator.decide():
                show(f"{found.namespace}/{found.workload}: {', '.join(found.clusters)} ({found.why})")
                if act:
                    nominator.act(found)
        except (SubmitError, KeyError, TypeError, AttributeError, ValueError) as error:
            note(f"this round is left out: {error!s:.160}")
        made += 1
        if not act or (rounds and made >= rounds):
            return
        time.sleep(poll_s)


def _make_dispatcher(clusters: Path, history: list[Path] | None) -> Dispatcher:
    from prism.datacenter.place import RunTimes, learn_run_times, read_jobs
    from prism.datacenter.place.live.dispatcher import Dispatcher
    from prism.datacenter.place.live.sites_file import read_live

    live, traits = read_live(clusters)
    times = learn_run_times(*read_jobs(*history, clusters=list(traits))) if history else RunTimes()
    return Dispatcher(clusters=live, traits=traits, times=times, tell=note)


def _show_asked(asked: Asked, *, json: bool) -> None:
    for name, error in asked.errors.items():
        note(f"{name} is left out: {error}")
    if json:
        best = [c.cluster for c in asked.choices if c.fits]
        show_json(
            {
                "schema": "prism.placement-choice/1",
                "job": asked.job.id,
                "gpus": asked.job.gpus,
                "best": best[0] if best else None,
                "second": best[1] if len(best) > 1 else None,
                "choices": [choice.to_json() for choice in asked.choices],
            }
        )
        return
    rows = []
    for c in asked.choices:
        times = [f"{c.start_s / 60:,.0f}", f"{c.finish_s / 60:,.0f}", f"{c.cost:,.1f}"] if c.fits else ["-", "-", "-"]
        rows.append([c.cluster, *times, c.why])
    title = f"{asked.job.id}: {asked.job.gpus} GPUs, best first"
    show(table(title, ["cluster", ">starts in min", ">ends within min", ">cost", "why"], rows))
