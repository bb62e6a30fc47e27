"""`prism emulate`: run a few ranks of a training script and predict the whole job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prism.cli.options import JsonFlag, OutputDir, examples
from prism.cli.terminal import note, show, show_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prism.emulate.emulation import EmulateConfig, Emulation
    from prism.emulate.live import LiveRun
    from prism.emulate.sweep import Trial

EPILOG = examples(
    "prism emulate --world-size 8 -- train.py --layers 8",
    "prism emulate --world-size 8192 --cluster dgx-h100 -o out -- examples/gpt/train.py --pp 8 --tp 8 --data fsdp",
    "prism emulate --world-size 8 --live 0 --fault hang:rank=5,step=3 -- train.py",
    "prism emulate --layouts sweep.yaml",
)

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}
"""How the command is registered: everything after -- belongs to the script."""

Script = Annotated[
    list[str] | None, typer.Argument(help="The script and its arguments, after --.", metavar="SCRIPT ARGS")
]
WorldSize = Annotated[int, typer.Option("--world-size", "-n", help="Ranks of the job.", min=1)]
Ranks = Annotated[str | None, typer.Option(help="Ranks to capture, as 0,5; found by running the script if not given.")]
GpusPerNode = Annotated[int, typer.Option(help="Ranks of one host.", min=1)]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Cluster file, or a preset such as dgx-h100.")]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="Measured collectives: `prism calibrate`, or nccl-tests output.")
]
Iterations = Annotated[int, typer.Option(help="Iterations to measure.", min=1)]
Warmup = Annotated[int, typer.Option(help="Iterations before those.", min=0)]
GpuMemory = Annotated[float | None, typer.Option(help="GB of the target GPU, for the verdict on memory.")]
ComputeScale = Annotated[float, typer.Option(help="Compute time on the target GPU over that on this one.")]
Live = Annotated[str | None, typer.Option(help="Ranks to run again among virtual peers that keep time, as 0,5.")]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        help="What a virtual rank does wrong: slow|hang|die|wrong_collective|wrong_size:rank=5,step=3[,factor=2]."
    ),
]
Layouts = Annotated[Path | None, typer.Option(help="File of layouts to try and rank.")]
RoutingName = Annotated[str, typer.Option("--routing", help="Tokens to experts: balanced, zipf, or recorded.")]
RoutingFile = Annotated[Path | None, typer.Option(help="Tokens of each expert, one number per line, for recorded.")]
Overlap = Annotated[
    bool | None, typer.Option(help="CPU ranks: communication beside compute; by default where cores are spare.")
]
AtOnce = Annotated[int | None, typer.Option(help="CPU ranks that run at once; by default as many as cores allow.")]
Unit = Annotated[
    str, typer.Option(help="What the headline is the time of: optimizer (a step), or loop (what repeats around steps).")
]
Pin = Annotated[bool, typer.Option("--pin", help="One core per live rank.")]
Symmetry = Annotated[bool, typer.Option(help="Capture a second rank of each class to check that they are alike.")]
LintRanks = Annotated[
    int,
    typer.Option(help="Run the host code of every rank in worlds up to this size; 0 runs a sample of ranks.", min=0),
]
MeasureHost = Annotated[
    bool,
    typer.Option(
        help="CPU ranks without --cluster and --calibration: time this host's collectives once, and keep them."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds after which a run of the script is given up.")]
MaxLive = Annotated[int, typer.Option(help="Most ranks to run at once.", min=1)]
Chakra = Annotated[bool, typer.Option("--chakra", help="Also write Chakra execution traces to the output folder.")]
Snapshot = Annotated[bool, typer.Option("--snapshot", help="Also keep CUDA memory snapshots in the output folder.")]


def run_emulate(
    script: Script = None,
    world_size: WorldSize = 8,
    ranks: Ranks = None,
    gpus_per_node: GpusPerNode = 8,
    cluster: ClusterName = None,
    calibration: CalibrationFile = None,
    iterations: Iterations = 5,
    warmup: Warmup = 3,
    output: OutputDir = None,
    gpu_memory: GpuMemory = None,
    compute_scale: ComputeScale = 1.0,
    live: Live = None,
    fault: Fault = None,
    layouts: Layouts = None,
    routing: RoutingName = "balanced",
    routing_file: RoutingFile = None,
    overlap: Overlap = None,
    at_once: AtOnce = None,
    unit: Unit = "optimizer",
    pin: Pin = False,
    check_symmetry: Symmetry = True,
    lint_ranks: LintRanks = 1024,
    measure_host: MeasureHost = True,
    timeout: Timeout = 1800.0,
    max_live: MaxLive = 64,
    chakra: Chakra = False,
    snapshot: Snapshot = False,
    json: JsonFlag = False,
) -> None:
    """Run a few ranks of a training script, unmodified, and predict the whole job."""
    need_torch("prism emulate")
    from prism.emulate import CaptureConfig, EmulateConfig, LaunchConfig, emulate, read_sweep, run_live, write_outputs

    faults = [read_fault(text) for text in fault or ()]
    plan = read_sweep(layouts) if layouts else None
    first = plan.choices()[0] if plan and plan.choices() else {}
    command = plan.command(first) if plan else tuple(script or ())
    launch = LaunchConfig(
        script=command,
        world_size=world_size,
        gpus_per_node=gpus_per_node,
        timeout_s=timeout,
        max_live=max_live,
        pin=pin,
        folder=output / "ranks" if output else None,
        note=note,
    )
    capture = CaptureConfig(
        launch=launch, ranks=read_ranks(ranks), iterations=iterations, warmup=warmup, at_once=at_once,
        check_symmetry=check_symmetry, lint_ranks=lint_ranks, snapshot=snapshot, note=note,
        **read_routing(routing, routing_file),
    )  # fmt: skip
    config = EmulateConfig(
        capture=capture,
        cluster=cluster,
        calibration=calibration,
        compute_scale=compute_scale,
        overlap=overlap,
        gpu_memory_bytes=round(gpu_memory * 1e9) if gpu_memory else None,
        measure_host=measure_host,
        unit=read_unit(unit),
    )
    if plan is not None:
        _sweep(plan, config, json)
        return
    emulation = emulate(config)
    live_runs = run_live(emulation, read_ranks(live) or (0,), faults) if live or faults else []
    written = write_outputs(emulation, output, live_runs, chakra=chakra) if output else []
    _show(emulation, live_runs, json)
    if written:
        note(f"wrote {', '.join(str(path) for path in written)}")


def read_ranks(text: str | None) -> tuple[int, ...]:
    """Ranks from a list such as 0,5."""
    from prism.errors import BadConfigError

    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    bad = [part for part in parts if not part.isdecimal()]
    if bad:
        raise BadConfigError(f"'{bad[0]}' is not a rank; write ranks as 0,5")
    return tuple(sorted({int(part) for part in parts}))


def read_fault(text: str) -> Any:
    """A fault from hang:rank=5,step=3."""
    from prism.emulate import FaultPlan
    from prism.errors import BadConfigError

    kinds = ("slow", "hang", "die", "wrong_collective", "wrong_size")
    kind, _, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    if kind not in kinds or "rank" not in values or not set(values) <= {"rank", "step", "factor"}:
        raise BadConfigError(f"--fault is '{text}'; write one of {', '.join(kinds)} as in hang:rank=5,step=3")
    try:
        factor = float(values.get("factor", "2"))
        plan = FaultPlan(kind=kind, rank=int(values["rank"]), step=int(values.get("step", "1")), factor=factor)
    except ValueError as error:
        raise BadConfigError(f"--fault is '{text}': {error}; write numbers, as in hang:rank=5,step=3") from None
    if not factor > 0:
        raise BadConfigError(f"--fault is '{text}': factor must be more than 0")
    return plan


def read_unit(text: str) -> Any:
    """What the headline is the time of."""
    from prism.errors import BadConfigError

    if text not in ("optimizer", "loop"):
        raise BadConfigError(f"--unit is '{text}', expected optimizer or loop")
    return text


def read_routing(routing: str, path: Path | None) -> dict[str, Any]:
    """The routing flags as fields of the capture's config."""
    from prism.errors import BadConfigError, BadFileError

    if routing not in ("balanced", "zipf", "recorded"):
        raise BadConfigError(f"--routing is '{routing}', expected balanced, zipf or recorded")
    if (routing == "recorded") != (path is not None):
        raise BadConfigError("--routing recorded needs --routing-file, and only it does")
    if path is None:
        return {"routing": routing}
    try:
        counts = tuple(int(line) for line in path.read_text().split())
    except (OSError, ValueError) as error:
        raise BadFileError(f"{path}: expected one whole number per line ({error})") from None
    if sum(counts) <= 0 or min(counts) < 0:
        raise BadFileError(f"{path}: token counts must be 0 or more, and not all 0")
    return {"routing": routing, "routing_counts": counts}


def need_torch(command: str) -> None:
    """Raise MissingExtraError where torch is not installed."""
    from importlib.util import find_spec

    from prism.errors import MissingExtraError

    if find_spec("torch") is None:
        raise MissingExtraError(command, "emulate")


def _sweep(plan: Any, config: EmulateConfig, json: bool) -> None:
    from dataclasses import asdict

    from prism.emulate import run_sweep
    from prism.emulate.sweep import describe_choice

    trials: list[Trial] = run_sweep(plan, config, note)
    if json:
        show_json({"schema": "prism.sweep/1", "trials": [asdict(trial) for trial in trials]})
        return
    rows = (
        (
            describe_choice(t.choice),
            f"{t.predicted_ms:,.2f} ms" if t.predicted_ms is not None else "failed",
            f"{t.peak_reserved_bytes / 1e9:,.3f} GB" if t.peak_reserved_bytes is not None else "",
            {True: "fits", False: "too large", None: ""}[t.fits],
            t.problem,
        )
        for t in trials
    )
    show(table("Layouts, best first", ("layout", ">predicted", ">memory", "", ""), rows))


def _unit_rows(steps: dict[str, Any]) -> list[tuple[str, str]]:
    """What to say of iterations that are not all alike."""
    if steps["unit"] == 1:
        return []
    if steps["plain_ms"] is None:
        return []
    unit = f"{steps['unit']} iterations" if steps["unit"] else "none seen twice"
    whole = f", the whole of it {steps['loop_ms']:,.3f} ms" if steps["loop_ms"] is not None else ""
    rows = [("repeating unit", f"{unit}; plain {steps['plain_ms']:,.3f} ms, mean {steps['mean_ms']:,.3f} ms{whole}")]
    shown = steps["special"][:4]
    return rows + [(f"  number {s['index']}", f"{s['ms']:,.3f} ms {s['source']}") for s in shown]


def _time_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    times, known = document["iteration_ms"], document["provenance"]
    loop = document["unit"] == "loop"
    told = f"{document['predicted_ms']:,.3f} ms" if document["predicted_ms"] is not None else "none seen twice"
    return [
        *([("loop", told)] if loop else []),
        ("iteration", f"{times['median']:,.3f} ms (mean {times['mean']:,.3f}, 95 % {times['p95']:,.3f})"),
        *_unit_rows(document["iterations"]),
        ("error band", f"{known['error_band_pct']:g} %; compute measured, communication {known['communication']}"),
    ]


def _work_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known where no step time can be stood by."""
    work = sorted(c["cpu_ms"] for c in document["classes"])
    return [
        ("iteration", f"step not predicted here: {document['not_predicted']}"),
        ("CPU work of a rank", f"{work[0]:,.3f} to {work[-1]:,.3f} ms an iteration"),
    ]


def _show(emulation: Emulation, live: Sequence[LiveRun], json: bool) -> None:
    from prism.emulate import describe_emulation

    document = describe_emulation(emulation, live)
    if json:
        show_json(document)
        return
    times, split, known = document["iteration_ms"], document["split"], document["provenance"]
    rows = [
        *(_time_rows(document) if times["median"] is not None else _work_rows(document)),
        ("compute", f"{split['compute']:.1%}"),
        ("exposed communication", f"{split['exposed_communication']:.1%}"),
        ("bubble", f"{split['bubble']:.1%}"),
        ("hidden communication", f"{split['overlapped_communication']:.1%}"),
        ("compared", f"the calls of {known['compared_ranks']:,} of {document['world_size']:,} ranks"),
        ("took", f"{document['wall_s']:,.1f} s on {known['device']}, ranks {known['captured_ranks']} measured"),
    ]
    verdict = {True: "fits", False: "too large", None: ""}
    memory = (
        (
            f"{len(c['ranks'])} ranks from {c['ranks'][0]}",
            *(
                f"{c[key] / 2**20:,.1f} MiB"
                for key in ("peak_allocated_bytes", "peak_reserved_bytes", "communicator_bytes")
            ),
            verdict[c["fits"]],
        )
        for c in document["classes"]
    )
    show(table(f"{document['world_size']:,} ranks on {known['cluster']}", ("", ""), rows))
    how = "of the allocator" if known["memory"] == "allocator" else "counted by tensor, an estimate"
    show(table(f"Memory ({how})", ("class", ">allocated", ">reserved", ">communicators", ""), memory))
    if live:
        lines = ((r.rank, r.status, f"{r.median_ms:,.2f} ms", f"{r.predicted_ms:,.2f} ms", r.reason) for r in live)
        show(table("Live", (">rank", "ended", ">iteration", ">predicted", "in its own words"), lines))
