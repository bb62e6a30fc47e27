"""From a batch of a trace's text to JOBS, with counts of everything that a reader of the report must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields

import polars as pl

from prism.datacenter.characterize.fields import (
    Moments,
    is_missing,
    map_distinct,
    parse_gpu_counts,
    parse_lengths,
    parse_moments,
)
from prism.datacenter.characterize.settling import settle_jobs
from prism.datacenter.characterize.trace import EXTRA, Trace
from prism.datacenter.characterize.vocabulary import TYPE_WORDS, name_state, name_type
from prism.errors import BadFileError, BadRowError
from prism.records.jobs import JOB_STATES
from prism.records.long_rows import describe_extra

MAX_TYPES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeOptions:
    """How a trace is read."""

    cluster: str | None = None  # keep this cluster's rows where the trace names clusters
    time_zone: str | None = None  # of times written without one
    skip_bad_rows: bool = False
    until_ns: int | None = None  # when the table was exported


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Counts made while reading; the sum of two intakes is the intake of both."""

    rows: int = 0
    jobs: int = 0
    bad_rows: int = 0
    steps: int = 0  # Slurm's job steps, which are parts of jobs
    other_clusters: int = 0
    missing_gpus: int = 0
    zero_gpus: int = 0
    running: int = 0  # at the export, without an end
    pending: int = 0
    sliced: int = 0  # jobs on MIG devices
    no_state: int = 0
    never_started: int = 0
    no_times: int = 0
    early_starts: int = 0
    checked: int = 0  # jobs whose duration and GPU-time columns were compared with their times
    waited: int = 0  # of those, jobs that queued and have a duration, which show whether it includes the queue
    duration_from_submit: int = 0
    duration_differs: int = 0
    gpu_time_given: int = 0
    gpu_time_differs: int = 0
    synthetic: int = 0
    offsets: Counter[str] = field(default_factory=Counter)
    clusters: Counter[str] = field(default_factory=Counter)
    unknown_states: Counter[str] = field(default_factory=Counter)
    site_types: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Intake) -> Intake:
        return Intake(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def take_in(raw: pl.DataFrame, trace: Trace, options: IntakeOptions, first_row: int) -> tuple[pl.DataFrame, Intake]:
    """JOBS of one batch of text; raises on the first bad row unless these are skipped."""
    counts: dict[str, int] = {"rows": raw.height}
    rows = raw.with_row_index("row", offset=first_row)
    if trace.columns.format == "slurm" and "job" in rows.columns:
        rows = rows.filter(~pl.col("job").str.contains(".", literal=True).fill_null(value=False))
        counts["steps"] = counts["rows"] - rows.height
    clusters = _count(rows["cluster"]) if "cluster" in rows.columns else Counter()
    if options.cluster is not None and "cluster" in rows.columns:
        before = rows.height
        rows = rows.filter(pl.col("cluster").str.to_lowercase() == options.cluster.lower())
        counts["other_clusters"] = before - rows.height
    extra = rows[EXTRA] if EXTRA in rows.columns else None
    parsed, offsets, problems = parse_rows(rows.drop(EXTRA, strict=False), trace, options)
    if extra is not None and extra.null_count() < len(extra):
        problems[EXTRA] = extra.is_not_null()
    bad = pl.select(pl.any_horizontal(*problems.values())).to_series() if problems else None
    if bad is not None and bad.any():
        if not options.skip_bad_rows:
            raise _name_first(problems, rows, trace)
        counts["bad_rows"] = int(bad.sum())
        parsed, rows = parsed.filter(~bad), rows.filter(~bad)
    if "type" in parsed.columns and (kinds := parsed["type"].n_unique()) > MAX_TYPES:
        column = trace.columns.column_of["type"]
        raise BadFileError(
            f"{trace.path}: '{column}' holds {kinds:,} different values, so it is no job type; rename it"
        )
    jobs, more = settle_jobs(parsed, trace.columns)
    if "gpus" in rows.columns:
        counts["sliced"] = int(rows["gpus"].str.contains(r"\dg\.\d+gb").sum() or 0)
    intake = Intake(
        **counts,
        **more,
        jobs=jobs.height,
        offsets=Counter(dict.fromkeys(offsets, jobs.height)),
        clusters=clusters,
        unknown_states=_count_unknown_states(rows["state"], parsed["state"]) if "state" in rows.columns else Counter(),
        site_types=_count_site_types(parsed),
    )
    return jobs, intake


def parse_rows(
    rows: pl.DataFrame, trace: Trace, options: IntakeOptions
) -> tuple[pl.DataFrame, set[str], dict[str, pl.Series]]:
    """Every column as numbers, the time offsets seen, and per field the rows that are not numbers."""
    units = trace.columns.units

    def lengths(text: pl.Series) -> pl.Series:
        return parse_lengths(text, units.get(text.name, "s"))

    def moments(text: pl.Series) -> Moments:
        try:
            return parse_moments(text, options.time_zone, units.get(text.name))
        except BadRowError as error:
            raise BadRowError(f"{trace.path}: {error}") from None

    def counts(text: pl.Series) -> pl.Series:
        return parse_gpu_counts(text, units.get(text.name, "gpu"))

    parsers: dict[str, Callable[[pl.Series], pl.Series | Moments]] = {
        **dict.fromkeys(("gpus", "share"), counts),
        **dict.fromkeys(("duration", "queue", "gpu_time", "restart", "instances"), lengths),
        **dict.fromkeys(("submit", "start", "end"), moments),
        "state": lambda text: map_distinct(
            text, lambda word: name_state(trace.columns.states.get(word.strip(), word)), pl.Enum(JOB_STATES)
        ),
        "type": lambda text: map_distinct(text, lambda t: name_type(t) or t.strip() or None, pl.Categorical()),
    }
    names = [name for name in rows.columns if name in parsers]
    # Polars parses a text column on one core: two at a time halve the wait.
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(lambda name: parsers[name](rows[name]), names))
    offsets: set[str] = set()
    columns: list[pl.Series] = []
    problems: dict[str, pl.Series] = {}
    for name, result in zip(names, results, strict=True):
        column = result.ns if isinstance(result, Moments) else result
        offsets |= result.offsets if isinstance(result, Moments) else set()
        columns.append(column.alias(name))
        if name in ("state", "type") or column.null_count() == rows[name].null_count():
            continue
        problems[name] = column.is_null() & ~is_missing(rows[name])
        if isinstance(result, Moments) and "epoch" in result.offsets:
            problems[name] &= ~rows[name].str.contains(r"^[0.]+$").fill_null(value=False)  # 0 is "not yet"
    columns += [rows[name] for name in rows.columns if name not in parsers and name != "row"]
    parsed = _apply_instances(pl.DataFrame(columns))
    return parsed, offsets, {**problems, **_contradictions(parsed)}


def _apply_instances(parsed: pl.DataFrame) -> pl.DataFrame:
    """GPUs per instance times instances and times the share of each GPU, if the table counts that way."""
    factors = [name for name in ("instances", "share") if name in parsed.columns]
    gpus = pl.col("gpus")
    for name in factors:
        gpus = gpus * pl.col(name).fill_null(1)
    return parsed.with_columns(gpus=gpus).drop(factors) if factors else parsed


def _contradictions(parsed: pl.DataFrame) -> dict[str, pl.Series]:
    """Rows with impossible values: negative lengths, an end before the start."""
    found: dict[str, pl.Series] = {}
    for name in ("duration", "queue", "gpu_time", "restart"):
        if name in parsed.columns and (parsed[name].min() or 0) < 0:  # type: ignore[operator]
            found[f"{name}<0"] = (parsed[name] < 0).fill_null(value=False)
    if {"start", "end"} <= set(parsed.columns):
        backwards = (parsed["end"] < parsed["start"]).fill_null(value=False)
        if backwards.any():
            found["end<start"] = backwards
    return found


_EXPECTED: Mapping[str, str] = {
    "gpus": "a GPU count such as 8, 8.0 or 8xA100",
    **dict.fromkeys(("submit", "start", "end"), "a time such as 2023-03-01 00:18:22+08:00"),
    **dict.fromkeys(("duration", "queue", "restart"), "seconds or [DD-]HH:MM:SS"),
}


def _name_first(problems: Mapping[str, pl.Series], rows: pl.DataFrame, trace: Trace) -> BadRowError:
    """The error for the first bad row: what is wrong there and how to fix it."""
    first = {name: mask.arg_max() or 0 for name, mask in problems.items() if mask.any()}
    name = min(first, key=lambda n: (first[n], n))
    row, place = first[name], "row" if trace.kind != "csv" else "line"
    number = rows["row"][row] + (1 if place == "row" or trace.header else 2)
    where = f"{trace.path} {place} {number}"
    column_of = trace.columns.column_of
    if name == EXTRA:
        what = describe_extra(rows[EXTRA][row])
    elif name == "end<start":
        what = f"'{column_of['end']}' is {rows['end'][row]!r}, before '{column_of['start']}' {rows['start'][row]!r}"
    elif name.endswith("<0"):
        column = name.removesuffix("<0")
        what = f"'{column_of[column]}' is {rows[column][row]!r}, expected a length of time that is not negative"
    else:
        what = f"'{column_of[name]}' is {rows[name][row]!r}, expected {_EXPECTED.get(name, 'a number')}"
    return BadRowError(f"{where}: {what}; fix the row or pass --skip-bad-rows")


def _count(values: pl.Series) -> Counter[str]:
    table = values.drop_nulls().value_counts()
    return Counter(dict(zip(*table.to_dict(as_series=False).values(), strict=True)))


def _count_unknown_states(text: pl.Series, state: pl.Series) -> Counter[str]:
    """Words for a job's end that are not mapped to a state."""
    unmapped = text.filter(state.is_null())
    return _count(unmapped.filter(~is_missing(unmapped)))


def _count_site_types(parsed: pl.DataFrame) -> Counter[str]:
    """Type names that are the site's own."""
    if "type" not in parsed.columns:
        return Counter()
    counts = _count(parsed["type"])
    return Counter({name: count for name, count in counts.items() if name not in TYPE_WORDS})
