"""A trace read once, in batches: its tally, the counts made while reading, and when it was exported."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from prism.datacenter.characterize.capacity import MAX_BINS
from prism.datacenter.characterize.fields import is_missing, parse_lengths
from prism.datacenter.characterize.intake import Intake, IntakeOptions, parse_rows, take_in
from prism.datacenter.characterize.settling import close_running
from prism.datacenter.characterize.tally import BIN_S, Tally, merge_tallies, tally_jobs
from prism.datacenter.characterize.trace import (
    EXTRA,
    NotUtf8Error,
    OpenOptions,
    Trace,
    hash_file,
    open_trace,
    read_batches,
)
from prism.datacenter.characterize.units import check_units, refuse_span
from prism.errors import BadFileError

MAX_CHECKED_IDS = 8_000_000
_MERGE_EVERY = 8  # tallies added up at a time: fewer copies of the large tables
_PROBED_ROWS = 20_000
_REPEATING = frozenset({"duration", "queue", "gpu_time"})  # columns that only repeat what follows from the times
_CHECKED = ("checked", "waited", "duration_from_submit", "duration_differs", "gpu_time_given", "gpu_time_differs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of reading a trace."""

    trace: Trace
    tally: Tally
    intake: Intake
    until_ns: int | None  # the time of the export, or the last time in the table if that is unknown
    notes: tuple[str, ...] = ()


def read_trace(path: Path, opening: OpenOptions, taking: IntakeOptions, advance: Callable[[int], None]) -> Reading:
    """The trace's tally and intake; text that is not UTF-8 is read a second time with its bad bytes replaced."""
    trace = _open(path, opening)
    with ThreadPoolExecutor(max_workers=1) as pool:
        digest = pool.submit(hash_file, path)  # while the rows are read: hashing takes a tenth as long
        try:
            reading = _read_once(trace, taking, advance)
        except NotUtf8Error:
            reading = _read_once(replace(trace, lossy=True), taking, advance)
        return replace(reading, trace=replace(reading.trace, sha256=digest.result()))


def read_jobs(path: Path, opening: OpenOptions, taking: IntakeOptions) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """JOBS of a whole table, with the caller's own fields as text, and remarks on units that differ from the names."""
    trace = _open(path, opening)
    try:
        batches = list(read_batches(trace))
    except NotUtf8Error:
        batches = list(read_batches(replace(trace, lossy=True)))
    if not any(batch.height for batch in batches):
        raise BadFileError(_explain_empty(trace, Intake(), taking))
    rows = pl.concat(batches)
    trace = _drop_names(rows.head(_PROBED_ROWS), trace)
    rows = rows.select(name for name in rows.columns if name in trace.columns.column_of or name == EXTRA)
    trace, notes = _settle_units(rows.head(_PROBED_ROWS), trace, taking)
    return take_in(rows, trace, taking, 0)[0], notes


def _open(path: Path, opening: OpenOptions) -> Trace:
    try:
        return open_trace(path, opening)
    except NotUtf8Error:
        return open_trace(path, replace(opening, lossy=True))


def _drop_names(first: pl.DataFrame, trace: Trace) -> Trace:
    """Without a column called queue that holds the names of queues and not the time in them."""
    if "queue" not in first.columns or "queue" in trace.columns.units:
        return trace
    given = first["queue"].filter(~is_missing(first["queue"]))
    if not len(given) or parse_lengths(given).null_count() < len(given):
        return trace
    kept = {name: column for name, column in trace.columns.column_of.items() if name != "queue"}
    return replace(trace, columns=replace(trace.columns, column_of=kept))


def _settle_units(first: pl.DataFrame, trace: Trace, taking: IntakeOptions) -> tuple[Trace, tuple[str, ...]]:
    """The trace with the units that its first rows show."""
    check = check_units(first, parse_rows(first, trace, taking)[0], trace.columns, str(trace.path))
    return replace(trace, columns=check.apply(trace.columns)), check.notes


def _read_once(trace: Trace, taking: IntakeOptions, advance: Callable[[int], None]) -> Reading:
    """The trace's tally; columns that only repeat the times are read only as far as needed to check them."""
    probe = list(read_batches(trace, rows=_PROBED_ROWS))
    first = pl.concat(probe) if probe else pl.DataFrame()
    notes: tuple[str, ...] = ()
    if first.height:
        trace = _drop_names(first, trace)
        first = first.select(name for name in first.columns if name in trace.columns.column_of or name == EXTRA)
        trace, notes = _settle_units(first, trace, taking)
    repeating = _check_repeating(first, trace, taking)
    if repeating is None:
        return _read_rows(trace, taking, advance, frozenset(), notes)
    without = _REPEATING - {"gpu_time"} if trace.columns.gpu_time_counts else _REPEATING
    reading = _read_rows(trace, taking, advance, without, notes)
    if reading.intake.never_started or reading.intake.no_times or reading.intake.running:
        # Some jobs have no times after all, so the other columns are needed for them.
        return _read_rows(trace, taking, advance, frozenset(), notes)
    checked = {name: getattr(repeating, name) for name in _CHECKED}
    return replace(reading, intake=replace(reading.intake, **checked))


def _check_repeating(first: pl.DataFrame, trace: Trace, taking: IntakeOptions) -> Intake | None:
    """The intake of the first rows if these have all times and more rows follow; else None."""
    if not {"submit", "start", "end"} <= trace.columns.column_of.keys() or first.height < _PROBED_ROWS:
        return None
    met = take_in(first, trace, taking, 0)[1]
    return None if met.never_started or met.no_times or met.running else met


def _read_rows(
    trace: Trace, taking: IntakeOptions, advance: Callable[[int], None], without: frozenset[str], notes: tuple[str, ...]
) -> Reading:
    tallies: list[Tally] = []
    intake = Intake()
    ids: list[pl.Series] = []
    running: list[pl.DataFrame] = []
    latest: int | None = None
    for batch in read_batches(trace, without=without):
        jobs, met = take_in(batch, trace, taking, intake.rows)
        intake += met
        moments = jobs.select(pl.max_horizontal(pl.col("submit_ns", "start_ns", "end_ns").max())).item()
        latest = moments if latest is None else latest if moments is None else max(latest, moments)
        running.append(jobs.filter(pl.col("open")).drop("open"))
        tallies.append(tally_jobs(jobs.filter(~pl.col("open")).drop("open")))
        if len(tallies) >= _MERGE_EVERY:
            tallies = [merge_tallies(tallies)]
        if intake.jobs <= MAX_CHECKED_IDS and "job" in batch.columns:
            key = pl.struct("cluster", "job") if "cluster" in jobs.columns else pl.col("job")
            ids.append(jobs.select(key.hash()).to_series())
        advance(batch.height)
    if intake.jobs == 0:
        raise BadFileError(_explain_empty(trace, intake, taking))
    until = taking.until_ns if taking.until_ns is not None else latest
    if until is not None:
        tallies += [tally_jobs(close_running(jobs, until)) for jobs in running if jobs.height]
    tally = merge_tallies(tallies)
    if not (tally.cells["gpus"] > 0).any():
        column = trace.columns.column_of["gpus"]
        raise BadFileError(
            f"{trace.path}: none of its {intake.jobs:,} jobs has a GPU: '{column}' is 0 or empty in every row; "
            "say which column counts them with --map gpus=COLUMN, or give a table of GPU jobs"
        )
    if tally.bins.height and (span := tally.bins.select(pl.col("bin").max() - pl.col("bin").min()).item()) > MAX_BINS:
        refuse_span(span * BIN_S, trace.columns, str(trace.path))
    repeats = _count_repeats(ids, intake)
    return Reading(
        trace=trace, tally=tally, intake=intake, until_ns=until, notes=(*notes, *([repeats] if repeats else []))
    )


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
