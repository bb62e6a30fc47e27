"""Remarks that a reader of the report must know: missing data, contradictions and unusual forms in the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from prism.datacenter.characterize.generator import NOTICE
from prism.datacenter.characterize.intake import Intake, IntakeOptions
from prism.datacenter.characterize.published import recognise_release
from prism.datacenter.characterize.reading import Reading
from prism.datacenter.characterize.study import Study
from prism.datacenter.characterize.trace import HASHED_BYTES, Trace


def write_notes(reading: Reading, options: IntakeOptions, study: Study, clock: str) -> tuple[str, ...]:
    """Every remark on one trace, most important first."""
    trace, intake = reading.trace, reading.intake
    parts = (
        _on_identity(trace, intake, study),
        iter(reading.notes),
        _on_running(reading, options),
        _on_times(trace, intake, options, clock),
        _on_lengths(intake),
        _on_jobs(trace, intake, study),
        _on_words(intake),
        _on_columns(trace),
        _on_capacity(study),
    )
    return tuple(note for part in parts for note in part)


def _on_identity(trace: Trace, intake: Intake, study: Study) -> Iterator[str]:
    if intake.synthetic:
        yield f"SYNTHETIC: {NOTICE}."
    elif trace.known_as:
        yield f"Data version: {trace.known_as} (SHA-256 matches)."
    elif release := recognise_release(study.summary.jobs, study.summary.gpu_jobs):
        yield f"Data version: job counts are those of {release}; the file's checksum is not one that is known."
    if trace.sha256 is None:
        yield f"The file is over {HASHED_BYTES >> 30} GiB, so no checksum was taken."
    if trace.lossy:
        yield "Some text is not UTF-8; the bytes that could not be read were replaced."
    if not study.exact:
        yield "Percentiles: lengths of time were rounded to 0.1 % because the trace holds very many different ones."


def _on_running(reading: Reading, options: IntakeOptions) -> Iterator[str]:
    intake = reading.intake
    if intake.running:
        moment = (
            ""
            if reading.until_ns is None
            else datetime.fromtimestamp(reading.until_ns / 1e9, UTC).isoformat(" ", "seconds")
        )
        how = (
            "the export"
            if options.until_ns is not None
            else "the last time in the table; pass --until to give the export"
        )
        yield (
            f"{intake.running:,} jobs were running at the export: their GPU-hours count for as long as the table says "
            f"they had run, else up to {moment} ({how}); they have no duration."
        )
    if intake.pending:
        yield f"{intake.pending:,} jobs were waiting at the export; they count as jobs without a duration."


def _on_times(trace: Trace, intake: Intake, options: IntakeOptions, clock: str) -> Iterator[str]:
    offsets = sorted(o for o in intake.offsets if o not in ("", "epoch"))
    if "" in intake.offsets:
        yield (
            f"Times without a zone were read as {options.time_zone}."
            if options.time_zone
            else "Times carry no zone and were read as UTC; pass --time-zone to say which. A clock change within the "
            "trace would shift durations by an hour."
        )
    if len(offsets) > 1:
        yield f"Times mix UTC offsets ({', '.join(offsets)}); each was honoured."
    if "epoch" in intake.offsets:
        given = {f: trace.columns.units[f] for f in ("submit", "start", "end") if f in trace.columns.units}
        how = ", ".join(f"{name} in {unit}" for name, unit in given.items()) or "seconds (or finer, where too large)"
        yield f"Times are bare numbers and were read as {how} since 1970 in UTC."
        if not trace.columns.unit_stated and not trace.columns.units:
            yield (
                "Nothing in the table says in what unit its numbers are; they were read as seconds. If they are not, "
                "say so, for example --map submit=submit_time:min,duration=duration:min."
            )
    if intake.offsets:
        yield f"Arrivals by hour and weekday are on the {clock} clock."
    if intake.early_starts:
        yield f"{intake.early_starts:,} jobs start before they were submitted (clocks differ); counted as not queued."


def _on_lengths(intake: Intake) -> Iterator[str]:
    first = "" if intake.checked >= intake.jobs else f", of the first {intake.checked:,}"
    if intake.waited and intake.duration_from_submit > intake.waited / 2:
        yield (
            f"The duration column counts from submission, queueing included, in {intake.duration_from_submit:,} of "
            f"{intake.waited:,} jobs that waited{first}; durations here are end minus start."
        )
    elif intake.duration_differs:
        yield f"In {intake.duration_differs:,} jobs{first}, the duration column is not end minus start; times count."
    if intake.gpu_time_given == 0:
        yield "The trace gives no GPU time; it is GPUs times duration."
    elif intake.gpu_time_differs:
        yield (
            f"In {intake.gpu_time_differs:,} of {intake.gpu_time_given:,} jobs{first}, the GPU-time column is not GPUs "
            "times end minus start; the product was used."
        )


def _on_jobs(trace: Trace, intake: Intake, study: Study) -> Iterator[str]:
    if intake.never_started and "start" in trace.columns.column_of:
        yield f"{intake.never_started:,} jobs ended without ever starting; they have a state but no duration."
    elif intake.never_started:
        yield f"{intake.never_started:,} jobs give no duration; no GPU-hours are counted for them."
    if intake.no_times:
        yield f"{intake.no_times:,} ended jobs give no end or duration; they have a state but no duration."
    if intake.zero_gpus:
        yield (
            f"{intake.zero_gpus:,} jobs used no GPU; durations, queues, sizes, types and states are those of the "
            f"{study.summary.gpu_jobs:,} GPU jobs unless CPU is said."
        )
    if intake.missing_gpus:
        yield f"{intake.missing_gpus:,} jobs give no GPU count and are counted as CPU jobs."
    if intake.sliced:
        yield f"{intake.sliced:,} jobs ran on MIG devices, each counted as its share of a GPU."
    if intake.no_state:
        yield "The table gives no states: how jobs ended, and what failures cost, cannot be told."
    if intake.steps:
        yield f"{intake.steps:,} rows are steps of jobs (Slurm's .batch, .0 ...) and were left out."
    if intake.bad_rows:
        yield f"{intake.bad_rows:,} of {intake.rows:,} rows were bad and were skipped."
    if intake.other_clusters:
        yield f"{intake.other_clusters:,} rows of other clusters were left out."
    elif len(intake.clusters) > 1:
        named = _list(intake.clusters, 5)
        yield f"The trace holds {len(intake.clusters)} clusters, studied as one: {named}; pass --cluster to study one."


def _on_words(intake: Intake) -> Iterator[str]:
    if intake.unknown_states:
        yield f"States nobody has mapped, counted as unknown: {_list(intake.unknown_states)}."
    if intake.site_types:
        yield f"Job types that are the site's own, kept as written: {_list(intake.site_types)}."


def _on_columns(trace: Trace) -> Iterator[str]:
    if trace.columns.note:
        yield trace.columns.note
    if trace.columns.outranked:
        pairs = ", ".join(f"{left} (used: {used})" for left, used in trace.columns.outranked.items())
        yield f"Columns that say the same in another form were left aside: {pairs}."
    if "user" not in trace.columns.column_of:
        yield "The trace names no users."
    if "type" not in trace.columns.column_of:
        yield "The trace gives no job types."
    if "reason" not in trace.columns.column_of and "state" in trace.columns.column_of:
        yield "The trace gives no failure reasons; failures are listed by state."


def _on_capacity(study: Study) -> Iterator[str]:
    capacity = study.capacity
    if capacity is None:
        yield "The trace does not say when jobs started and ended: no capacity or failures over time can be given."
    elif not capacity.gpus_known:
        yield "The cluster's size is taken as the most GPUs ever in use at once; pass --gpus to give it."
    elif capacity.over_capacity_pct > 1:
        yield (
            f"In {capacity.over_capacity_pct:.0f} % of the time jobs held over the given {capacity.gpus:,.0f} GPUs; "
            "idle capacity is a lower bound."
        )


def _list(counts: Counter[str], most: int = 8) -> str:
    shown = ", ".join(f"{name!r} ({count:,})" for name, count in counts.most_common(most))
    return shown + (f" and {len(counts) - most} more" if len(counts) > most else "")
