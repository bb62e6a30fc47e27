"""`prism evaluate`: score checkpoints, once or as training writes them."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prism.cli.options import App, JsonFlag, RunByDefault, examples
from prism.cli.terminal import console, note, show, show_json, table, verbosity

if TYPE_CHECKING:
    from rich.table import Table

    from prism.evaluate.evaluation import EvaluateConfig, Evaluation
    from prism.evaluate.plan_file import EvaluationPlan
    from prism.evaluate.schedule.trials import Checkpoint

app = App(
    cls=RunByDefault,
    help="Score every checkpoint on every dataset, as soon as the hardware allows.",
    no_args_is_help=True,
)

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of this evaluation; run again to continue it.")]
EngineName = Annotated[
    Literal["ray", "local"] | None, typer.Option("--engine", help="Where trials run; Ray where it is installed.")
]
Consent = Annotated[
    bool,
    typer.Option("--confirm-run-unsafe-code", help="Let tasks run code that models write; it runs in the sandbox."),
]
BesideTraining = Annotated[
    bool, typer.Option("--beside-training", help="Use only GPUs that no other program uses, and leave those it takes.")
]
Address = Annotated[
    str | None, typer.Option("--ray-address", help="A running Ray cluster, as HOST:PORT or auto; else one is embedded.")
]


@app.command(
    "run",
    epilog=examples(
        "prism evaluate --demo",
        "prism evaluate plan.yaml --output scores",
        "prism evaluate plan.yaml --output scores --ray-address auto --json",
        "prism evaluate watch checkpoints --plan plan.yaml --output scores",
    ),
)
def run(
    plan: Annotated[Path | None, typer.Argument(help="Checkpoints, datasets, hardware; see docs/evaluate.md.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Small random models on built-in tasks; no download.")] = False,
    output: Output = Path("prism-evaluation"),
    confirm_run_unsafe_code: Consent = False,
    engine: EngineName = None,
    address: Address = None,
    beside_training: BesideTraining = False,
    json: JsonFlag = False,
) -> None:
    """Score the checkpoints of a plan; what an earlier run finished is kept."""
    from prism.evaluate.demo import write_demo
    from prism.evaluate.plan_file import read_plan
    from prism.evaluate.run.adapters import BUILTIN_DATASETS

    if (plan is None) == (not demo):
        raise typer.BadParameter("give a plan, or --demo")
    path = write_demo(output) if plan is None else plan
    chosen = _settle(read_plan(path, BUILTIN_DATASETS), path, consent=confirm_run_unsafe_code)
    if demo and engine is None and address is None:
        engine = "local"  # starting Ray takes longer than the demo
    engine = _check_beside(engine, address) if beside_training else engine
    with _live(json) as draw:
        config = _configure(chosen, output, draw, beside_training=beside_training)
        done = _evaluate(chosen, engine, address, config)
    _finish(done, output, json)


@app.command(
    "watch",
    epilog=examples(
        "prism evaluate watch checkpoints --plan plan.yaml --output scores",
        "prism evaluate watch checkpoints --plan plan.yaml --output scores --idle 3600 --json",
    ),
)
def watch(
    folder: Annotated[Path, typer.Argument(help="Where training writes checkpoints, each a folder.")],
    plan: Annotated[Path, typer.Option(help="Datasets and hardware; its checkpoints are scored too.")],
    output: Output = Path("prism-evaluation"),
    settle: Annotated[
        float, typer.Option(help="Seconds without a change that make a checkpoint whole.", min=0.0)
    ] = 5.0,
    idle: Annotated[
        float | None, typer.Option(help="End after so many seconds without a new checkpoint; else on Ctrl-C.")
    ] = None,
    confirm_run_unsafe_code: Consent = False,
    engine: EngineName = None,
    address: Address = None,
    json: JsonFlag = False,
) -> None:
    """Score each checkpoint as training writes it; half-written ones wait."""
    from dataclasses import replace

    from prism.evaluate.plan_file import read_plan
    from prism.evaluate.run.adapters import BUILTIN_DATASETS
    from prism.evaluate.run.watching import CheckpointWatch

    chosen = _settle(read_plan(plan, BUILTIN_DATASETS, watching=True), plan, consent=confirm_run_unsafe_code)
    look = CheckpointWatch(folder=folder, settle_s=settle, idle_s=idle, say=note)
    own = {Path(checkpoint.path).resolve() for checkpoint in chosen.checkpoints}

    def arrive() -> list[Checkpoint] | None:
        found = look.look()
        return None if found is None else [c for c in found if Path(c.path).resolve() not in own]

    with _live(json) as draw:
        config = replace(_configure(chosen, output, draw), arrivals=arrive, watched=look.states)
        done = _evaluate(chosen, engine, address, config)
    _finish(done, output, json)


def _settle(plan: EvaluationPlan, path: Path, *, consent: bool) -> EvaluationPlan:
    """Tell datasets the folder of the plan, to which their paths are relative, and whether code may be run."""
    from dataclasses import replace

    from prism.evaluate.plan_file import share_settings

    where = str(path.parent.resolve())
    datasets = share_settings(plan.datasets, {"confirm_run_unsafe_code": True}) if consent else plan.datasets
    return replace(plan, datasets=tuple(replace(d, settings={**d.settings, "folder": where}) for d in datasets))


def _check_beside(engine: str | None, address: str | None) -> Literal["local"]:
    """Refuse Ray: under it the evaluation's processes cannot be distinguished from other programs'."""
    if engine == "ray" or address is not None:
        raise typer.BadParameter("--beside-training works with --engine local, on one machine")
    return "local"


def _configure(
    plan: EvaluationPlan, output: Path, draw: Callable[[dict[str, Any]], None], *, beside_training: bool = False
) -> EvaluateConfig:
    """Write results as they come, so that a stopped run keeps what it found."""
    from prism.evaluate.evaluation import EvaluateConfig
    from prism.evaluate.publishing import Publisher
    from prism.evaluate.run.busy_gpus import BusyGpus

    priors = Path(plan.priors) if plan.priors else None
    publisher = Publisher(output, plan.push, note)
    atexit.register(publisher.close)
    busy: Callable[[], frozenset[int]] = BusyGpus() if beside_training else frozenset
    return EvaluateConfig(folder=output, say=note, show=draw, priors=priors, publish=publisher.publish, busy_gpus=busy)


def _evaluate(plan: EvaluationPlan, engine: str | None, address: str | None, config: EvaluateConfig) -> Evaluation:
    from prism.evaluate.evaluation import count_slots, evaluate
    from prism.evaluate.run.engines import open_engine

    slots, log = count_slots(plan.hardware), config.folder / "workers.log"
    with redirect_stdout(sys.stderr):  # Ray prints there when a node dies, and stdout is for results
        return evaluate(plan, lambda: open_engine(engine, address or plan.ray_address, slots, log), config)


def _finish(done: Evaluation, output: Path, json: bool) -> None:
    """Write the files and show the leaderboard; return 1 if a trial was given up."""
    from prism.evaluate.leaderboard import make_table
    from prism.evaluate.results import describe_evaluation, write_results
    from prism.evaluate.run.run_log import count

    board = write_results(done, output)  # once more: failures may have come after the last result
    if json:
        show_json(describe_evaluation(done, board))
    else:
        head, rows = make_table(board)
        show(table(None, head, rows))
        note(
            f"{count(done.found.num_trials, 'trial')} in {done.makespan_s:.1f} s, at best {done.lower_bound_s:.1f} s; "
            f"results in {output}: results.json, leaderboard.csv, leaderboard.html"
        )
    num_failed = len(done.found.problems)
    if num_failed:
        given_up = f"{count(num_failed, 'part')} {'was' if num_failed == 1 else 'were'} given up"
        note(f"{given_up}; results.json says which and why, run again to retry")
        raise typer.Exit(1)


@contextmanager
def _live(json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A live table of the run on stderr, if that is a terminal."""
    if json or verbosity.level < 0 or not sys.stderr.isatty():
        yield lambda document: None
        return
    from rich.live import Live

    with Live(console=console(stderr=True), transient=True, refresh_per_second=2) as live:
        yield lambda document: live.update(draw_progress(document))


def draw_progress(document: dict[str, Any]) -> Table:
    """The progress of an evaluation: trials, busy GPUs, time left."""
    left = document["time_left_s"]
    trials = document["trials"]
    share = f"{document['gpus_busy']} of {document['gpus']}" if document["gpus"] else "none; CPU workers"
    rows = [
        ("results", f"{document['results']} of {document['results_wanted']}"),
        ("trials", f"{trials['done']} done, {trials['running']} running, {trials['failed']} failed"),
        ("samples", f"{document['inferred']} inferred, {document['scored']} scored of {document['samples']}"),
        ("GPUs busy", share),
        ("time left", "unknown" if left is None else f"{int(left) // 60}:{int(left) % 60:02d}"),
    ]
    return table(None, ("", ""), rows)
