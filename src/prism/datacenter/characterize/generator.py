"""Synthetic job traces with the published statistics of Seren or Kalos, in AcmeTrace's columns.

Fitted to what is published: type, size, duration, queue and state (see `fit`). Not published, so assumed: when jobs
arrive (working-day rhythm below), which user submits them (Zipf), and why failed ones fail (drawn so that large and
long jobs meet the reasons that large and long jobs met in the recalled failure table). Jobs are not packed onto the
cluster: what runs at once may exceed its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from prism.datacenter.characterize.fit import STATES, Cells, load_cells
from prism.datacenter.characterize.published import find_row, find_type_mix, load_published
from prism.datacenter.characterize.settling import SYNTHETIC_PREFIX
from prism.errors import BadConfigError, BadFileError

Array = npt.NDArray[np.float64]
Row = dict[str, float | None]

CLUSTERS = ("seren", "kalos")
NOTICE = "synthetic trace made by Prism from published statistics of AcmeTrace (CC-BY-4.0); no real job is in it"

_SPAN = {"seren": ("2023-03-01", "2023-09-01", "+08:00"), "kalos": ("2023-05-17", "2023-09-01", "+00:00")}
_WORDS = {"completed": "COMPLETED", "cancelled": "CANCELLED", "failed": "FAILED"}
_LONG_S = 1024.0  # only longer jobs are adjusted after drawing, so medians and quartiles stay as fitted
_USERS = 250
# Assumed shares of a day's submissions per local hour: an office day with a long evening.
_HOURS = np.array([3, 2, 2, 1, 1, 1, 1, 2, 3, 5, 7, 7, 5, 5, 7, 8, 8, 8, 6, 6, 7, 6, 5, 4], dtype=float)
_WEEKDAYS = np.array([1.1, 1.1, 1.1, 1.1, 1.0, 0.8, 0.8])  # assumed, Monday first


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """Which cluster to imitate, how many jobs (None: as many as published), and the seed."""

    cluster: str = "seren"
    jobs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise BadConfigError(f"no statistics to imitate for {self.cluster!r}; known: {', '.join(CLUSTERS)}")
        if self.jobs is not None and not 1 <= self.jobs <= 1_000_000_000:
            raise BadConfigError(f"cannot make {self.jobs} jobs; ask for 1 to 1,000,000,000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The distributions: the published row and type shares, and the cells fitted to them."""

    cluster: str
    row: Row
    type_shares: Array  # of GPU time, in the order of the cells' types
    jobs: Cells
    queues: Cells


def load_model(cluster: str) -> Model:
    """The shipped model of Seren or Kalos."""
    jobs = load_cells(f"{cluster}_jobs")
    shares = dict(find_type_mix(cluster).select("type", "gpu_time_pct").iter_rows())
    mix = np.array([shares[name] for name in jobs.types])
    queues = load_cells(f"{cluster}_queues")
    return Model(cluster=cluster, row=find_row(cluster), type_shares=mix / mix.sum(), jobs=jobs, queues=queues)


def generate_trace(options: GeneratorOptions) -> pl.DataFrame:
    """A whole synthetic trace in AcmeTrace's columns, in order of submission."""
    return pl.concat(generate_batches(options)).sort("submit_time", maintain_order=True)


def generate_batches(options: GeneratorOptions) -> Iterator[pl.DataFrame]:
    """The trace in pieces of about the published size, each with the published statistics."""
    model = load_model(options.cluster)
    published = int(model.row["job_num"] or 0)
    wanted = published if options.jobs is None else options.jobs
    pieces = max(1, round(wanted / published))
    bounds = np.linspace(0, wanted, pieces + 1).astype(int)
    for piece, (first, last) in enumerate(pairwise(bounds.tolist())):
        yield _draw(model, first, last - first, np.random.default_rng((options.seed, piece)))


def write_trace(options: GeneratorOptions, path: Path, advance: Callable[[int], None] = lambda jobs: None) -> int:
    """Write a trace to a CSV or Parquet file, piece by piece for CSV; returns how many jobs it has."""
    if path.suffix not in (".csv", ".parquet"):
        raise BadConfigError(f"{path}: give a file that ends in .csv or .parquet")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            trace = generate_trace(options)
            trace.write_parquet(path, metadata={"notice": NOTICE})
            advance(trace.height)
            return trace.height
        count = 0
        with path.open("wb") as file:
            for piece in generate_batches(options):
                piece.write_csv(file, include_header=count == 0)
                count += piece.height
                advance(piece.height)
        return count
    except OSError as error:
        raise BadFileError(f"{path}: cannot be written ({error.strerror}); choose another --output") from None


def _draw(model: Model, first: int, count: int, rng: np.random.Generator) -> pl.DataFrame:
    """One piece of the trace, its jobs numbered from `first`."""
    gpu_count = round(count * float(model.row["gpu_job_num"] or 0) / float(model.row["job_num"] or 1))
    jobs = pl.concat([_draw_gpu_jobs(model, gpu_count, rng), _draw_cpu_jobs(model, count - gpu_count, rng)])
    jobs = jobs.with_columns(submit=_draw_arrivals(count, model.cluster, rng))
    jobs = jobs.with_columns(reason=_draw_reasons(jobs, rng), user=_draw_users(count, rng)).sort("submit")
    return _write_columns(jobs, first, model.cluster)


def _draw_gpu_jobs(model: Model, count: int, rng: np.random.Generator) -> pl.DataFrame:
    """GPU jobs by their fitted cells; queueing depends on the type alone."""
    cells, queues = model.jobs, model.queues
    chosen = _sample_cells(cells.probability, count, rng)
    size, state, kind = cells.size[chosen], cells.state[chosen], cells.type[chosen]
    duration = np.rint(_match_totals(_spread(cells, chosen, rng), model, chosen))
    queue = np.zeros(count)
    for index in range(len(cells.types)):
        here = np.flatnonzero(kind == index)
        share = np.where(queues.type == index, queues.probability, 0.0)
        queue[rng.permutation(here)] = np.rint(_spread(queues, _sample_cells(share, len(here), rng), rng))
    types, states = np.array(cells.types), np.array(STATES)
    return pl.DataFrame(
        {"type": types[kind], "state": states[state], "gpus": size, "duration": duration, "queue": queue}
    )


def _draw_cpu_jobs(model: Model, count: int, rng: np.random.Generator) -> pl.DataFrame:
    """CPU jobs: only their means, medians and states are published, so lengths are log-normal."""
    row = model.row
    rates = np.array([float(row[f"{name}_rate_cpu"] or 0) for name in ("complete", "cancel", "fail")])
    state = _sample_cells(rates, count, rng)
    columns = {
        name: _draw_log_normal(count, float(row[f"med_{key}"] or 1), float(row[f"avg_{key}"] or 1), rng)
        for name, key in (("duration", "run_time_cpu"), ("queue", "que_time_cpu"))
    }
    states = np.array(STATES)[rng.permutation(state)]
    return pl.DataFrame({"type": ["Other"] * count, "state": states, "gpus": np.zeros(count), **columns})


def _sample_cells(probability: Array, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Systematic draws: every cell, and every run of cells, gets its share to within one job."""
    ends = np.cumsum(probability)
    at = (np.arange(count) + rng.random()) / max(count, 1) * ends[-1]
    return np.asarray(np.minimum(np.searchsorted(ends, at, side="right"), len(probability) - 1), dtype=np.int64)


def _spread(cells: Cells, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> Array:
    """Lengths spread evenly on the log axis of each job's cell; `chosen` ascends."""
    counts = np.bincount(chosen, minlength=len(cells.low))
    starts = np.cumsum(counts) - counts
    within = (np.arange(len(chosen)) - starts[chosen] + rng.random(len(chosen))) / np.maximum(counts[chosen], 1)
    low, high = cells.low[chosen], cells.high[chosen]
    return np.asarray(low * (high / low) ** within)


def _match_totals(duration: Array, model: Model, chosen: npt.NDArray[np.int64]) -> Array:
    """Adjust long jobs so that GPU time per type and state and the mean duration are the published ones.

    A few of the largest jobs hold much of the GPU time, so without this a draw is wrong by several percent.
    """
    row, cells = model.row, model.jobs
    movable = np.flatnonzero(duration > _LONG_S)
    size, state, kind = cells.size[chosen], cells.state[chosen], cells.type[chosen]
    gpu_time = size * duration
    gpu_time[movable] = 0.0
    wanted = np.array([float(row[f"{name}_gpu_time"] or 0) for name in ("complete", "cancel", "fail")])
    wanted *= len(duration) / float(row["gpu_job_num"] or 1)
    still_state = np.bincount(state, gpu_time, minlength=len(STATES))
    still_type = np.bincount(kind, gpu_time, minlength=len(cells.types))
    still_s = float(duration.sum() - duration[movable].sum())
    moved, size, state, kind = duration[movable], size[movable], state[movable], kind[movable]
    longest, small = float(row["max_run_time_gpu"] or 1), size <= 8
    for _ in range(60):
        for index, target in enumerate(model.type_shares * wanted.sum()):
            here = kind == index
            # Wide jobs hold most of the GPU time, so a few suffice; a type without any is adjusted as a whole.
            wide = here & ~small if (here & ~small).any() else here
            rest = float(size[here] @ moved[here]) - float(size[wide] @ moved[wide])
            moved[wide] *= _factor(target - still_type[index] - rest, float(size[wide] @ moved[wide]))
        for index, target in enumerate(wanted):
            here, wide = state == index, (state == index) & ~small
            rest = float(size[here] @ moved[here]) - float(size[wide] @ moved[wide])
            moved[wide] *= _factor(target - still_state[index] - rest, float(size[wide] @ moved[wide]))
        rest = float(moved[~small].sum())
        target = float(row["avg_run_time_gpu"] or 0) * len(duration)
        moved[small] *= _factor(target - still_s - rest, float(moved[small].sum()))
        moved = np.minimum(moved, longest)
    out = duration.copy()
    if len(moved):
        moved[int(np.argmax(moved))] = longest
        out[movable] = moved
    return out


def _factor(wanted: float, held: float) -> float:
    """The factor from the present to the wanted value; at most a quarter at a time."""
    return float(np.clip(wanted / held, 0.8, 1.25)) if held > 0 else 1.0


def _draw_log_normal(count: int, median: float, mean: float, rng: np.random.Generator) -> Array:
    """Whole seconds with this median, the distribution's width set so that the mean of the draw comes out."""
    if count == 0:
        return np.empty(0)
    z = rng.standard_normal(count)
    z -= np.median(z)
    low, high = 0.0, 6.0
    values = np.full(count, median)
    for _ in range(50):
        width = (low + high) / 2
        values = np.rint(np.minimum(median * np.exp(width * z), 30 * 86_400))
        low, high = (width, high) if float(values.mean()) < mean else (low, width)
    return values


def _draw_arrivals(count: int, cluster: str, rng: np.random.Generator) -> Array:
    """Submission times in local seconds of the Unix epoch, more by day than by night."""
    first, last = (datetime.fromisoformat(day).replace(tzinfo=UTC) for day in _SPAN[cluster][:2])
    days = (last - first).days
    weights = (_WEEKDAYS[(first.weekday() + np.arange(days)) % 7][:, None] * _HOURS).ravel()
    hour = rng.choice(len(weights), size=count, p=weights / weights.sum())
    return np.floor(first.timestamp() + hour * 3600 + rng.random(count) * 3600)


def _draw_users(count: int, rng: np.random.Generator) -> pl.Series:
    """Assumed: the k-th busiest user submits in proportion to 1/k."""
    weights = 1 / np.arange(1, _USERS + 1)
    index = rng.choice(_USERS, size=count, p=weights / weights.sum())
    return pl.Series(index).cast(pl.String).str.zfill(4)


def _draw_reasons(jobs: pl.DataFrame, rng: np.random.Generator) -> pl.Series:
    """A reason for every failed GPU job, likelier where its size and time to failure are like that reason's."""
    table = load_published("failures_recalled")
    failed = ((jobs["state"] == "failed") & (jobs["gpus"] > 0)).arg_true().to_numpy()
    size = np.log2(jobs["gpus"].to_numpy()[failed])[:, None]
    minutes = np.log2(jobs["duration"].to_numpy()[failed] / 60 + 0.1)[:, None]
    usual_size = np.log2(table["mean_gpus"].to_numpy())[None, :]
    usual_minutes = np.log2(table["ttf_median_min"].to_numpy() + 0.1)[None, :]
    # Within a factor of eight or so of the reason's own size and time: wide, for only means and medians are known.
    score = (
        np.log(table["count"].to_numpy())[None, :] - ((size - usual_size) ** 2 + (minutes - usual_minutes) ** 2) / 18
    )
    picked = np.argmax(score + rng.gumbel(size=score.shape), axis=1)
    index = np.full(jobs.height, table.height)
    index[failed] = picked
    return table["reason"].extend_constant(None, 1).gather(index)


def _write_columns(jobs: pl.DataFrame, first: int, cluster: str) -> pl.DataFrame:
    """AcmeTrace's columns; every job id and user is marked as synthetic."""
    offset = _SPAN[cluster][2]

    def moment(seconds: pl.Expr) -> pl.Expr:
        return (seconds * 1000).cast(pl.Int64).cast(pl.Datetime("ms")).dt.strftime(f"%Y-%m-%d %H:%M:%S{offset}")

    start = pl.col("submit") + pl.col("queue")
    number = pl.int_range(first, first + jobs.height, dtype=pl.Int64, eager=True).cast(pl.String)
    return jobs.select(
        job_id=pl.lit(f"{SYNTHETIC_PREFIX}{cluster}-") + number,
        user=pl.lit("synthetic-u") + pl.col("user"),
        node_num=(pl.col("gpus") / 8).ceil().clip(1).cast(pl.Int64),
        gpu_num=pl.col("gpus").cast(pl.Int64),
        cpu_num=(pl.col("gpus") * 16).clip(8).cast(pl.Int64),
        type="type",
        state=pl.col("state").replace_strict(_WORDS, return_dtype=pl.String),
        submit_time=moment(pl.col("submit")),
        start_time=moment(start),
        end_time=moment(start + pl.col("duration")),
        duration=pl.col("duration").cast(pl.Int64),
        queue=pl.col("queue").cast(pl.Int64),
        gpu_time=pl.col("duration") * pl.col("gpus"),
        reason="reason",
    )
