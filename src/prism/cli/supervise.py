"""`prism supervise`: keep a training job running, and show its state."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from prism.cli.options import App, JsonFlag, RunByDefault, examples
from prism.cli.terminal import note, show, show_json, table

if TYPE_CHECKING:
    from prism.recover.supervise import HostHistory, RunStatus
    from prism.recover.supervise.config import Judgement
    from prism.recover.supervise.echo import Echo


app = App(
    cls=RunByDefault,
    help="Launch a training command, watch it, and restart it from its last good checkpoint when it fails.",
    no_args_is_help=True,
)

RunDir = Annotated[Path, typer.Option("--run-dir", help="Folder of this run: state, logs, decisions.")]


@app.command(
    "run",
    epilog=examples(
        "prism supervise -- torchrun --nproc-per-node 8 train.py",
        "prism supervise --checkpoint auto -- torchrun --nproc-per-node 8 train.py",
        "prism supervise --launcher slurm --config run.yaml -- python train.py",
        "prism supervise --launcher kubernetes --manifest jobset.yaml",
    ),
)
def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="The training command, after --. Kubernetes: in place of the manifest's, if given."),
    ] = None,
    launcher: Annotated[Literal["local", "slurm", "ssh", "kubernetes"], typer.Option(help="Where it runs.")] = "local",
    manifest: Annotated[
        Path | None, typer.Option(help="Kubernetes: the file with the JobSet, TrainJob or Indexed Job.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings of the run (YAML); see docs/recover.md.")] = None,
    run_dir: RunDir = Path("prism-run"),
    checkpoint: Annotated[
        Literal["auto", "own"],
        typer.Option(
            help="auto: asynchronous checkpoints and resume for Hugging Face, Lightning, DeepSpeed, torchtitan."
        ),
    ] = "own",
    risk: Annotated[
        Path | None,
        typer.Option(
            help="Risks of hosts (prism predict advise --json), read again when it changes; see docs/predict.md."
        ),
    ] = None,
    act_on: Annotated[
        str,
        typer.Option(
            help="Judgements that may act, comma-separated: spike, slow, hang, corruption, bug. "
            "The others are only written down and shown; the command is only restarted."
        ),
    ] = "",
    max_restarts: Annotated[
        int | None, typer.Option(min=0, help="Restarts in all. Default: no limit while there is progress.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Continue a run that failed, once the cause is fixed, or with another command."),
    ] = False,
    output: Annotated[
        bool, typer.Option("--echo/--no-echo", help="Write what the command prints to stdout (never with --json).")
    ] = True,
    pass_exit_code: Annotated[
        bool,
        typer.Option("--pass-exit-code", help="Exit with the code of a command that failed, not with 1."),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Run a command until it is done, whatever happens to it; the same command continues a run that was stopped."""
    from prism.recover.risks import read_risks
    from prism.recover.supervise import SuperviseConfig, read_config, read_status
    from prism.recover.supervise.start import supervise

    settings = read_config(config) if config is not None else SuperviseConfig()
    if checkpoint == "auto":
        settings = replace(settings, checkpoint=replace(settings.checkpoint, enabled=True))
    if risk is not None:
        read_risks(risk)  # report a file that cannot be used before anything starts
        settings = replace(settings, risk=str(risk.resolve()))
    if act_on:
        named = cast("tuple[Judgement, ...]", tuple(filter(None, (word.strip() for word in act_on.split(",")))))
        settings = replace(settings, act_on=named)
    if max_restarts is not None:
        settings = replace(settings, restarts=replace(settings.restarts, max_restarts=max_restarts))
    if manifest is not None:
        cluster = replace(settings.launch.kubernetes, manifest=str(manifest))
        settings = replace(settings, launch=replace(settings.launch, kubernetes=cluster))
    with _open_echo(run_dir) if output and not json else nullcontext():
        state = supervise(run_dir, tuple(command or ()), settings, launcher=launcher, again=again, say=_say)
    if json:
        show_json(read_status(run_dir).to_json())
    raise typer.Exit(state.exit_code if pass_exit_code else min(state.exit_code, 1))


def _say(line: str) -> None:
    """A message on stderr; if stderr is closed, the job continues."""
    with suppress(OSError):
        note(line)


def _open_echo(run_dir: Path) -> Echo:
    from prism.recover.supervise.echo import Echo

    sys.stdout.flush()
    return Echo(run_dir, getattr(sys.stdout.buffer, "raw", sys.stdout.buffer), _say)


@app.command("status", epilog=examples("prism supervise status prism-run", "prism supervise status prism-run --json"))
def status(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")] = Path("prism-run"),
    json: JsonFlag = False,
) -> None:
    """Show the state of a run, and its last decisions."""
    from rich.text import Text

    from prism.recover.supervise import read_status

    found = read_status(run_dir)
    if json:
        show_json(found.to_json())
        return
    show(table(None, ("", ""), _rows(found)))
    for line in found.decisions:
        show(Text(f"  {line}"))  # unchanged: a log line may look like markup


def _rows(found: RunStatus) -> list[tuple[str, str]]:
    loss = "" if found.loss is None else f", loss {found.loss:.6g}"
    good = "none yet" if found.last_good_step is None else f"step {found.last_good_step}"
    return [
        ("run", found.run_dir),
        ("state", f"{found.outcome or found.phase}{': ' + found.outcome_text if found.outcome_text else ''}"),
        ("supervisor", _tell_supervisor(found)),
        ("attempt", f"{found.attempt} on {', '.join(found.hosts) or 'this machine'}"),
        ("progress", f"step {found.step}{loss}" if found.step >= 0 else "no step seen in this attempt yet"),
        ("last good checkpoint", good),
        ("failures", f"{found.num_failures}, {found.num_rollbacks} rollbacks"),
        ("batches left out", ", ".join(found.skipped_batches) or "none"),
        ("hosts out of use", ", ".join(found.cordoned) or "none"),
        *(("not acted on", text) for text in found.shadows[-5:]),
        *((f"  {past.host}", _tell_history(past)) for past in found.host_history),
    ]


def _tell_supervisor(found: RunStatus) -> str:
    if found.supervised:
        return "at work"
    if found.outcome == "done":
        return "done"
    flag = " and --again" if found.outcome == "failed" else ""
    return f"not running; the same command{flag} continues the run"


def _tell_history(past: HostHistory) -> str:
    back = f"back in {past.hours_left:g} h" if past.hours_left else "back in use"
    return f"out {past.num_cordons} times, last for: {past.reasons[-1]}; {back}"
