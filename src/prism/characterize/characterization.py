"""The whole study of one datacenter: reads the trace in batches, adds up the tallies, and draws the conclusions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl

from prism.characterize.checkpoints import FORMULA, CheckpointAdvice, CheckpointCosts, advise_checkpoints
from prism.characterize.faults import FaultStudy, read_faults, study_faults
from prism.characterize.intake import Intake, IntakeOptions, take_in
from prism.characterize.notes import write_notes
from prism.characterize.published import CLUSTER_GPUS
from prism.characterize.study import Study, StudyOptions, study
from prism.characterize.tally import Tally, merge_tallies, tally_jobs
from prism.characterize.trace import NotUtf8Error, Trace, hash_file, open_trace, read_batches
from prism.characterize.utilisation import Utilisation, read_utilisation
from prism.errors import BadConfigError, BadFileError

MAX_CHECKED_IDS = 8_000_000
_MERGE_EVERY = 8  # tallies added up at a time: fewer copies of the large tables
_PROBED_ROWS = 20_000
_REPEATING = frozenset({"duration", "queue", "gpu_time"})  # columns that say again what the times say
_CHECKED = ("checked", "waited", "duration_from_submit", "duration_differs", "gpu_time_given", "gpu_time_differs")
_ADVISED_SIZES = (8, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LEAST_FAILURES = 3  # fewer do not make a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterizeOptions:
    """What a user can say about a trace and its cluster."""

    cluster: str | None = None
    time_zone: str | None = None
    skip_bad_rows: bool = False
    gpus: float | None = None
    gpus_per_node: int = 8
    nodes: int | None = None  # size of the fleet that the fault file is about
    utilisation: Path | None = None
    faults: Path | None = None
    save_s: float = 30.0
    restart_s: float | None = None  # None: as measured, else ten minutes

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
    """Checkpoint advice with where its failure rate comes from."""

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
    utilisation: Utilisation | None = None
    faults: FaultStudy | None = None

    @property
    def synthetic(self) -> bool:
        """Whether the jobs come from Prism's generator."""
        return self.intake.synthetic > 0


def characterize(
    path: Path, options: CharacterizeOptions | None = None, advance: Callable[[int], None] = lambda rows: None
) -> Characterization:
    """Study one job trace; `advance` is told how many rows each batch had."""
    options = options or CharacterizeOptions()
    costs = CheckpointCosts(
        save_s=options.save_s, restart_s=options.restart_s if options.restart_s is not None else 600.0
    )
    taking = IntakeOptions(cluster=options.cluster, time_zone=options.time_zone, skip_bad_rows=options.skip_bad_rows)
    faults = study_faults(read_faults(options.faults), options.nodes) if options.faults else None
    utilisation = read_utilisation(options.utilisation) if options.utilisation else None
    trace, tally, intake, repeats = _read(path, taking, advance)
    clock = _choose_clock(intake, options.time_zone)
    name = options.cluster or path.stem
    gpus = options.gpus if options.gpus is not None else CLUSTER_GPUS.get((options.cluster or "").lower())
    found = study(tally, StudyOptions(gpus=gpus, gpus_per_node=options.gpus_per_node, clock=clock))
    notes = write_notes(trace, intake, taking, found, clock)
    extra = (repeats, _note_utilisation(utilisation), _note_faults(faults))
    return Characterization(
        name=name,
        trace=trace,
        intake=intake,
        clock=clock,
        study=found,
        notes=notes + tuple(note for note in extra if note),
        plan=plan_checkpoints(found, faults, costs, options),
        utilisation=utilisation,
        faults=faults,
    )


def plan_checkpoints(
    found: Study, faults: FaultStudy | None, costs: CheckpointCosts, options: CharacterizeOptions
) -> Plan | None:
    """Advice from the best failure rate at hand: node faults, infrastructure failures, or any mid-run failure."""
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


def _read(path: Path, taking: IntakeOptions, advance: Callable[[int], None]) -> tuple[Trace, Tally, Intake, str | None]:
    """The trace's tally and intake; text that is not UTF-8 is read a second time with its bad bytes replaced."""
    try:
        trace = open_trace(path)
    except NotUtf8Error:
        trace = open_trace(path, lossy=True)
    with ThreadPoolExecutor(max_workers=1) as pool:
        digest = pool.submit(hash_file, path)  # while the rows are read: hashing takes a tenth as long
        try:
            trace, tally, intake, repeats = _read_once(trace, taking, advance)
        except NotUtf8Error:
            trace, tally, intake, repeats = _read_once(replace(trace, lossy=True), taking, advance)
        return replace(trace, sha256=digest.result()), tally, intake, repeats


def _read_once(
    trace: Trace, taking: IntakeOptions, advance: Callable[[int], None]
) -> tuple[Trace, Tally, Intake, str | None]:
    """The trace's tally; columns that only repeat the times are read no further than it takes to check them."""
    probe = _probe(trace, taking)
    if probe is None:
        return trace, *_read_rows(trace, taking, advance, frozenset())
    tally, intake, repeats = _read_rows(trace, taking, advance, _REPEATING)
    if intake.never_started or intake.no_times:
        # Some jobs give no times after all, so what the other columns say of them is needed.
        return trace, *_read_rows(trace, taking, advance, frozenset())
    checked = {name: getattr(probe, name) for name in _CHECKED}
    return trace, tally, replace(intake, **checked), repeats


def _probe(trace: Trace, taking: IntakeOptions) -> Intake | None:
    """The intake of the first rows where these give all times and more rows follow; else None."""
    if not {"submit", "start", "end"} <= trace.columns.column_of.keys():
        return None
    batches = list(read_batches(trace, skip_bad_rows=taking.skip_bad_rows, rows=_PROBED_ROWS))
    if sum(batch.height for batch in batches) < _PROBED_ROWS:
        return None
    met = take_in(pl.concat(batches), trace, taking, 0)[1]
    return None if met.never_started or met.no_times else met


def _read_rows(
    trace: Trace, taking: IntakeOptions, advance: Callable[[int], None], without: frozenset[str]
) -> tuple[Tally, Intake, str | None]:
    tallies: list[Tally] = []
    intake = Intake()
    ids: list[pl.Series] = []
    for batch in read_batches(trace, skip_bad_rows=taking.skip_bad_rows, without=without):
        jobs, met = take_in(batch, trace, taking, intake.rows)
        intake += met
        tallies.append(tally_jobs(jobs))
        if len(tallies) >= _MERGE_EVERY:
            tallies = [merge_tallies(tallies)]
        if intake.jobs <= MAX_CHECKED_IDS and "job" in batch.columns:
            key = pl.struct("cluster", "job") if "cluster" in jobs.columns else pl.col("job")
            ids.append(jobs.select(key.hash()).to_series())
        advance(batch.height)
    if intake.jobs == 0:
        raise BadFileError(_explain_empty(trace, intake, taking))
    return merge_tallies(tallies), intake, _count_repeats(ids, intake)


def _explain_empty(trace: Trace, intake: Intake, taking: IntakeOptions) -> str:
    if intake.other_clusters:
        named = ", ".join(sorted(intake.clusters)[:8])
        return f"{trace.path}: no jobs of cluster {taking.cluster!r}; it holds {named}"
    if intake.rows:
        return f"{trace.path}: none of its {intake.rows:,} rows is a job that can be read; check the export"
    return f"{trace.path}: has a header but no jobs; export the job table again"


def _count_repeats(ids: list[pl.Series], intake: Intake) -> str | None:
    """A remark on job ids that occur more than once; very long traces are not checked."""
    if not ids:
        return None
    if intake.jobs > MAX_CHECKED_IDS:
        return f"With over {MAX_CHECKED_IDS:,} jobs, ids were not checked for repetition."
    repeats = intake.jobs - pl.concat(ids).n_unique()
    if repeats == 0:
        return None
    return (
        f"{repeats:,} job ids repeat an earlier one (requeues, or clusters joined without a cluster column); "
        "all are counted."
    )


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
    """Mean time to restart after failures, where the trace records it."""
    known = found.failures.drop_nulls("restart_mean_s")
    if known.is_empty():
        return None
    return float((known["restart_mean_s"] * known["count"]).sum()) / float(known["count"].sum())
