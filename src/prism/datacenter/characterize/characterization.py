"""The complete study of one datacenter: read the trace in batches, add up the tallies, compute the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl

from prism.datacenter.characterize.checkpoints import FORMULA, CheckpointAdvice, CheckpointCosts, advise_checkpoints
from prism.datacenter.characterize.columns import Choices
from prism.datacenter.characterize.faults import FaultStudy, read_faults, study_faults
from prism.datacenter.characterize.fields import parse_moments
from prism.datacenter.characterize.intake import Intake, IntakeOptions
from prism.datacenter.characterize.notes import write_notes
from prism.datacenter.characterize.overview import Overview, write_overview
from prism.datacenter.characterize.published import CLUSTER_GPUS
from prism.datacenter.characterize.reading import read_trace
from prism.datacenter.characterize.study import Study, StudyOptions, study
from prism.datacenter.characterize.trace import OpenOptions, Trace
from prism.datacenter.characterize.utilisation import Utilisation, read_utilisation
from prism.datacenter.characterize.weekly import Weeks, follow_weeks
from prism.errors import BadConfigError
from prism.records.compression import name_without_endings

_ADVISED_SIZES = (8, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LEAST_FAILURES = 3  # needed for a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterizeOptions:
    """What a user can state about a trace and its cluster."""

    cluster: str | None = None
    time_zone: str | None = None
    skip_bad_rows: bool = False
    choices: Choices = field(default_factory=dict)  # which columns are which fields, and in what unit
    columns: tuple[str, ...] = ()  # names of the columns of a table without a header line
    until: str | None = None  # when the table was exported; running jobs count up to it
    gpus: float | None = None
    gpus_per_node: int = 8
    nodes: int | None = None  # size of the fleet of the fault file
    utilisation: Path | None = None
    faults: Path | None = None
    save_s: float = 30.0
    restart_s: float | None = None  # None: the measured value, or else ten minutes

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise BadConfigError(f"--gpus-per-node is {self.gpus_per_node}, expected at least 1")
        if self.gpus is not None and self.gpus <= 0:
            raise BadConfigError(f"--gpus is {self.gpus:g}, expected more than 0")
        if self.nodes is not None and self.nodes < 1:
            raise BadConfigError(f"--nodes is {self.nodes}, expected at least 1")
        if self.time_zone is not None:
            try:
                ZoneInfo(self.time_zone)
            except (ValueError, OSError, KeyError):
                raise BadConfigError(
                    f"--time-zone {self.time_zone!r} is not known; give a name like Asia/Shanghai"
                ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Checkpoint advice and the source of its failure rate."""

    basis: str
    gpu_hours_per_failure: float
    costs: CheckpointCosts
    advice: tuple[CheckpointAdvice, ...]
    formula: str = FORMULA


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterization:
    """One datacenter's report, as values."""

    name: str
    trace: Trace
    intake: Intake
    clock: str
    study: Study
    notes: tuple[str, ...]
    plan: Plan | None
    overview: Overview
    weeks: Weeks | None
    utilisation: Utilisation | None = None
    faults: FaultStudy | None = None

    @property
    def synthetic(self) -> bool:
        """Whether the jobs come from Prism's generator."""
        return self.intake.synthetic > 0


def characterize(
    path: Path, options: CharacterizeOptions | None = None, advance: Callable[[int], None] = lambda rows: None
) -> Characterization:
    """Study one job trace; `advance` gets the number of rows of each batch."""
    options = options or CharacterizeOptions()
    costs = CheckpointCosts(
        save_s=options.save_s, restart_s=options.restart_s if options.restart_s is not None else 600.0
    )
    taking = IntakeOptions(
        cluster=options.cluster,
        time_zone=options.time_zone,
        skip_bad_rows=options.skip_bad_rows,
        until_ns=parse_until(options.until, options.time_zone) if options.until else None,
    )
    faults = study_faults(read_faults(options.faults), options.nodes) if options.faults else None
    utilisation = read_utilisation(options.utilisation) if options.utilisation else None
    opening = OpenOptions(choices=options.choices, columns=options.columns)
    reading = read_trace(path, opening, taking, advance)
    trace, tally, intake = reading.trace, reading.tally, reading.intake
    clock = _choose_clock(intake, options.time_zone)
    name = options.cluster or name_without_endings(path)
    gpus = options.gpus if options.gpus is not None else CLUSTER_GPUS.get((options.cluster or "").lower())
    found = study(tally, StudyOptions(gpus=gpus, gpus_per_node=options.gpus_per_node, clock=clock))
    notes = write_notes(reading, taking, found, clock)
    extra = (_note_utilisation(utilisation), _note_faults(faults))
    plan = plan_checkpoints(found, faults, costs, options)
    return Characterization(
        name=name,
        trace=trace,
        intake=intake,
        clock=clock,
        study=found,
        notes=notes + tuple(note for note in extra if note),
        plan=plan,
        overview=write_overview(found, faults, options.gpus_per_node, plan.advice if plan else ()),
        weeks=follow_weeks(tally, reading.until_ns),
        utilisation=utilisation,
        faults=faults,
    )


def plan_checkpoints(
    found: Study, faults: FaultStudy | None, costs: CheckpointCosts, options: CharacterizeOptions
) -> Plan | None:
    """Advice from the best available failure rate: node faults, infrastructure failures, or any mid-run failure."""
    known = found.reliability
    if faults is not None and faults.faults >= _LEAST_FAILURES:
        rate = faults.node_mtbf_hours * options.gpus_per_node
        basis = f"{faults.faults} node faults on {faults.nodes} nodes of {options.gpus_per_node} GPUs"
    elif known.infrastructure_mid_run_failures >= _LEAST_FAILURES:
        rate = known.gpu_hours / known.infrastructure_mid_run_failures
        basis = (
            f"{known.infrastructure_mid_run_failures:,} infrastructure failures after 10 minutes or more, in "
            f"{known.gpu_hours:,.0f} GPU-hours"
        )
    elif known.mid_run_failures >= _LEAST_FAILURES and known.gpu_hours_per_mid_run_failure:
        rate = known.gpu_hours_per_mid_run_failure
        basis = (
            f"{known.mid_run_failures:,} multi-node jobs that failed after 10 minutes or more, in "
            f"{known.multi_node_gpu_hours:,.0f} GPU-hours; causes are not recorded, so software errors are among them"
        )
    else:
        return None
    if options.restart_s is None and (measured := _measure_restart(found)) is not None:
        costs = replace(costs, restart_s=measured)
    largest = max(found.summary.max_gpus or 0, 1024)
    sizes = tuple(size for size in _ADVISED_SIZES if size <= 2 * largest)
    return Plan(basis=basis, gpu_hours_per_failure=rate, costs=costs, advice=advise_checkpoints(rate, sizes, costs))


def parse_until(text: str, time_zone: str | None) -> int:
    """The moment of an export, from a user's text: a time, or Unix seconds."""
    moment = parse_moments(pl.Series([text]), time_zone).ns[0]
    if moment is None:
        raise BadConfigError(f"--until {text!r} is not a time; give one such as 2024-05-01T12:00:00")
    return int(moment)


def _note_utilisation(utilisation: Utilisation | None) -> str | None:
    if utilisation is None or not utilisation.unknown:
        return None
    return f"Utilisation metrics that are not known, shown as given: {', '.join(utilisation.unknown)}."


def _note_faults(faults: FaultStudy | None) -> str | None:
    if faults is None or faults.nodes_known:
        return None
    return (
        "Only nodes that failed are in the fault file, so faults per node are too many; pass --nodes to give the fleet."
    )


def _choose_clock(intake: Intake, time_zone: str | None) -> str:
    """The zone given, else the one offset that all times share, else UTC."""
    offsets = [o for o in intake.offsets if o not in ("", "epoch")]
    if time_zone is not None:
        return time_zone
    return offsets[0] if len(offsets) == 1 and offsets[0] != "+00:00" else "UTC"


def _measure_restart(found: Study) -> float | None:
    """Mean time to restart after failures, if the trace records it."""
    known = found.failures.drop_nulls("restart_mean_s")
    if known.is_empty():
        return None
    return float((known["restart_mean_s"] * known["count"]).sum()) / float(known["count"].sum())
