"""`prism diagnose`: every training job on the cluster, from its flows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism.cli.flows import make_options, read_sources
from prism.cli.options import JOBS_HELP, JsonFlag, MapOption, OutputDir, SkipBadRows, examples
from prism.cli.terminal import heading, note, progress, show, show_json, table

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType
    from rich.table import Table

    from prism.collect.tables import FlowsRead
    from prism.observe import Diagnosis
    from prism.records import Finding
    from prism.records.scheduled import ScheduledJob

EPILOG = examples(
    "prism diagnose flows.parquet --topology topology.csv",
    "prism diagnose exports/ --topology topology.csv --output report/",
    "prism diagnose flows.parquet --topology topology.csv --jobs squeue.json",
    "prism diagnose flows.parquet --json",
    "prism diagnose flows.parquet --topology topology.csv --method paper",
    "prism diagnose flows.parquet --topology topology.csv --engine ray --ray-address 10.0.0.1:6379",
)
_MOST_JOBS = 40
_MOST_FINDINGS = 20


class Method(StrEnum):
    """How to diagnose."""

    PRISM = "prism"
    PAPER = "paper"


class Engine(StrEnum):
    """Where to run."""

    LOCAL = "local"
    RAY = "ray"


def run_diagnose(
    flows: Annotated[list[Path], typer.Argument(help="Flow files of any tool (see `prism flows`) or folders of them.")],
    topology: Annotated[
        Path | None,
        typer.Option(help="CSV with address, host, rail, switch of every NIC; or auto: hosts guessed from addresses."),
    ] = None,
    output: OutputDir = None,
    method: Annotated[
        Method, typer.Option(help="prism: Prism's own; paper: LLMPrism's published one, to compare with.")
    ] = Method.PRISM,
    engine: Annotated[
        Engine, typer.Option(help="local: this process; ray: jobs spread over Ray, with the same result.")
    ] = Engine.LOCAL,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; else RAY_ADDRESS; else Ray is started here.")
    ] = None,
    gpus_per_host: Annotated[
        int | None,
        typer.Option("--gpus-per-node", help="GPUs of a host, where several share a NIC and flows cannot tell.", min=1),
    ] = None,
    jobs: Annotated[str | None, typer.Option(help=JOBS_HELP)] = None,
    map_columns: MapOption = None,
    skip_bad_rows: SkipBadRows = False,
    json: JsonFlag = False,
) -> None:
    """Find the jobs in network flows, their parallelism, their steps, and what slows them down."""
    from prism.records import TOPOLOGY, read_table

    if engine is Engine.RAY and method is Method.PAPER:
        raise typer.BadParameter("--engine ray runs Prism's own method only; leave --engine or --method paper out")
    read = read_sources(flows, make_options(map_columns, skip_bad_rows))
    known: pl.DataFrame | None = None
    if topology is not None:
        known = _guess_topology(read) if str(topology) == "auto" else read_table(topology, TOPOLOGY)
    given = read_known_jobs(jobs)
    if given and method is Method.PAPER:
        raise typer.BadParameter("--jobs is for Prism's own method; leave --jobs or --method paper out")
    with progress("diagnosing"):
        diagnosis = diagnose_by(method, engine, read.flows, known, ray_address, gpus_per_host, given)
    diagnosis = _add_notes(diagnosis, read)
    if output is not None:
        with progress("writing the report"):
            write_diagnosis(diagnosis, output, method=method, topology=known)
        note(f"wrote report.html, diagnosis.json and the timeline to {output}")
    if json:
        show_json(diagnosis.to_json())
        return
    show_diagnosis(diagnosis)


def _guess_topology(read: FlowsRead) -> pl.DataFrame:
    from prism.collect.topology_guess import guess_topology

    guess = guess_topology(read.flows)
    note(f"topology: {guess.rule}, confidence {guess.confidence:g}")
    return guess.topology


def _add_notes(diagnosis: Diagnosis, read: FlowsRead) -> Diagnosis:
    """Add notes on how the records were read; for transfers rebuilt from samples, drop what cannot be relied on."""
    from dataclasses import replace

    from prism.collect.port_counters import measure_ports
    from prism.observe.port_evidence import add_ports
    from prism.observe.sampled import keep_certain

    diagnosis = keep_certain(diagnosis, read.flows, read.report.notes)
    diagnosis = add_ports(diagnosis, read.flows, measure_ports(read.counters))
    return replace(diagnosis, notes=(*read.report.notes, *diagnosis.notes))


def diagnose_by(
    method: Method,
    engine: Engine,
    flows: pl.DataFrame,
    topology: pl.DataFrame | None,
    ray_address: str | None = None,
    gpus_per_host: int | None = None,
    given: Sequence[ScheduledJob] = (),
) -> Diagnosis:
    """Diagnose by the method and on the engine that were asked for."""
    if method is Method.PAPER:
        from prism.observe.llmprism import diagnose_as_published

        return diagnose_as_published(flows, topology)
    if engine is Engine.RAY:
        from prism.observe.engine_ray import diagnose_on_ray

        return diagnose_on_ray(flows, topology, address=ray_address, gpus_per_host=gpus_per_host, given=given)
    from functools import partial

    from prism.observe.diagnose import diagnose, study_jobs

    return diagnose(flows, topology, study=partial(study_jobs, gpus_per_host=gpus_per_host), given=given)


def read_known_jobs(name: str | None) -> list[ScheduledJob]:
    """What a file, or a scheduler that is asked, says of jobs."""
    from prism.collect.schedulers import COMMANDS, ask_scheduler, read_scheduled

    if name is None:
        return []
    return ask_scheduler(name) if name in COMMANDS else read_scheduled(Path(name))


def show_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the jobs and findings for a person."""
    show(_jobs_table(diagnosis) if diagnosis.jobs else "No training job was recognised.\n")
    if len(diagnosis.jobs) > _MOST_JOBS:
        show(f"{len(diagnosis.jobs) - _MOST_JOBS:,} smaller jobs are not shown; --json lists them all.\n")
    if diagnosis.findings:
        show(heading("Findings, worst first"), "")
        for number, finding in enumerate(diagnosis.findings[:_MOST_FINDINGS], start=1):
            show(_finding_text(number, finding))
    elif diagnosis.jobs:
        from prism.observe.report.words import say_nothing_found

        show(say_nothing_found(diagnosis).text)
    if len(diagnosis.findings) > _MOST_FINDINGS:
        show(f"{len(diagnosis.findings) - _MOST_FINDINGS:,} more findings in --json.")
    for line in diagnosis.notes:
        note(f"note: {line}")


def write_diagnosis(
    diagnosis: Diagnosis, folder: Path, *, method: Method = Method.PRISM, topology: pl.DataFrame | None = None
) -> None:
    """Write the page, the timeline as a table and as a trace, the load of links, the topology, and the JSON."""
    from prism.observe import build_timeline
    from prism.observe.llmprism import draw_published_timeline
    from prism.observe.report.outputs import write_outputs

    draw = draw_published_timeline if method is Method.PAPER else build_timeline
    write_outputs(diagnosis, draw(diagnosis), folder, topology)


def _jobs_table(diagnosis: Diagnosis) -> Table:
    from prism.observe.report.words import describe_layout, describe_step, sparkline, step_seconds

    rows = [
        (
            job.id if job.observed.given is None else f"{job.id} ({job.observed.given.name})",
            f"{len(job.hosts):,}",
            f"{len(job.endpoints):,}",
            describe_layout(job),
            job.life.state,
            f"{job.steps.height:,}",
            describe_step(job),
            sparkline(step_seconds(job)),
        )
        for job in diagnosis.jobs[:_MOST_JOBS]
    ]
    return table("Jobs", ("job", ">hosts", ">NICs", "layout", "state", ">steps", ">step time", "over time"), rows)


def _finding_text(number: int, finding: Finding) -> RenderableType:
    """A finding in a few lines: what and who; what it cost, when and how sure; why."""
    from rich.padding import Padding
    from rich.text import Text

    from prism.observe.report.words import describe_culprit, say_window

    text = Text()
    text.append(f"{number}. {finding.kind.replace('_', ' ')}: {describe_culprit(finding)}\n", style="bold")
    text.append(
        f"{finding.job}, {finding.lost_gpu_seconds:,.0f} GPU-seconds lost, "
        f"{say_window(finding.start_ns, finding.end_ns)}, {100 * finding.score:.0f} % sure\n"
    )
    text.append(finding.evidence + "\n")
    return Padding(text, (0, 0, 0, 2), expand=False)
