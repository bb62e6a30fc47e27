"""Compare two timelines of one job: where a step spends the time by which it is longer.

A rank's step is split completely: every moment belongs to the most informative kind that covers it, and a collective
begins when its last member has come. In a job that trains in lockstep a slow rank makes all others wait, so the
difference is taken from the rank that the others wait for, by what it did before it came: it computed, its host came
late, it transferred. Its parts add up to the difference of its step times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.evidence.traces.scatter import ScatterConfig, standard_error
from prism.records.spans import PAIR_KINDS

_CONTAINERS = ("step", "microbatch")  # they hold other spans and are no work themselves
_IDLE = ("wait", "idle")
_MESSAGE = r"(?i)\b(?:i?send|i?recv)"
_SPLIT = pl.Schema({"rank": pl.Int64, "step": pl.Int64, "kind": pl.String, "ms": pl.Float64})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """When a difference is attributed to one rank or one step."""

    blame_share: float = 0.5  # of the step's difference that the busiest change must reach to be called the cause
    alike_share: float = 0.5  # of the largest change that the median rank must reach for all ranks to be alike
    scatter: ScatterConfig = field(default_factory=ScatterConfig)  # what the mean step time may be off by


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the difference."""

    kind: str  # such as compute or "dp all_reduce"; idle where nothing ran
    rank: int | None  # None: all ranks alike
    step: int | None  # None: every step
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """By how much a step became longer, and in which parts."""

    expected_ms: float
    observed_ms: float
    noise_ms: float  # the uncertainty of the difference, from the scatter of steps within one run
    parts: tuple[Part, ...]

    @property
    def difference_ms(self) -> float:
        """Observed minus expected step time."""
        return self.observed_ms - self.expected_ms

    @property
    def is_noise(self) -> bool:
        """Whether the difference is within the scatter of the steps."""
        return abs(self.difference_ms) <= self.noise_ms

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism compare --json` prints."""
        return {
            "schema": "prism.comparison/1",
            "difference_ms": self.difference_ms,
            "expected_ms": self.expected_ms,
            "observed_ms": self.observed_ms,
            "noise_ms": self.noise_ms,
            "is_noise": self.is_noise,
            "parts": [{"kind": p.kind, "rank": p.rank, "step": p.step, "ms": p.ms} for p in self.parts],
        }


def compare_timelines(
    expected: pl.DataFrame, observed: pl.DataFrame, config: CompareConfig | None = None
) -> Comparison:
    """Compare two SPANS tables of the same job."""
    config = config or CompareConfig()
    before, after = split_steps(expected, "expected"), split_steps(observed, "observed")
    first, second = _mean_ms(before), _mean_ms(after)
    steps = min(before["step"].n_unique(), after["step"].n_unique())
    noise = config.scatter.needed(steps) * float(np.hypot(_error_ms(before), _error_ms(after)))
    difference = second - first
    if abs(difference) <= noise or difference == 0.0:
        parts = [Part(kind="noise", rank=None, step=None, ms=difference)] if difference else []
        return Comparison(expected_ms=first, observed_ms=second, noise_ms=noise, parts=tuple(parts))
    parts = _explain(before, after, difference, config)
    rest = difference - sum(p.ms for p in parts)
    if abs(rest) > 1e-9:
        parts.append(Part(kind="other ranks", rank=None, step=None, ms=rest))
    parts.sort(key=lambda p: -abs(p.ms))
    return Comparison(expected_ms=first, observed_ms=second, noise_ms=noise, parts=tuple(parts))


def split_steps(spans: pl.DataFrame, where: str) -> pl.DataFrame:
    """Milliseconds by rank, step and kind; the kinds in a rank's step add up to its length."""
    own = spans.filter(pl.col("step").is_not_null() & (pl.col("end_ns") > pl.col("start_ns")))
    if own.is_empty():
        raise BadConfigError(f"{where}: no span belongs to a step, so there is nothing to compare")
    own = cut_waits(own)
    kind = pl.col("kind").cast(pl.String)
    word = pl.col("name").cast(pl.String).str.extract(r"^([A-Za-z_]+)").fill_null("")
    own = own.with_columns(
        own_kind=kind,
        what=pl.when(kind.is_in(PAIR_KINDS)).then((kind + " " + word).str.strip_chars()).otherwise(kind),
    )
    rows: list[tuple[int, int, str, float]] = []
    for (rank,), part in own.group_by(["rank"], maintain_order=True):
        rows += _split_rank(int(rank), part)
    return pl.DataFrame(rows, schema=_SPLIT, orient="row")


def cut_waits(spans: pl.DataFrame) -> pl.DataFrame:
    """Collectives from the arrival of their last member on; before it, the others wait.

    A collective ends at nearly one moment on all members, which puts the ranks on one clock.
    """
    named = pl.col("name").cast(pl.String)
    is_message = named.str.contains(_MESSAGE).fill_null(False) | (pl.col("kind").cast(pl.String) == "pp")
    called = pl.col("kind").cast(pl.String).is_in(PAIR_KINDS) & ~is_message
    key = ("step", "kind", "name", "group", "number")
    calls = spans.filter(called).sort("start_ns")
    calls = calls.with_columns(number=pl.int_range(pl.len()).over("rank", "step", "kind", "name", "group"))
    # Without the name of its group a call is known only if all ranks made it.
    whole = pl.col("group").is_not_null() | (pl.len().over(key) == spans["rank"].n_unique())
    calls = calls.filter((pl.len().over(key) > 1) & whole)
    if calls.is_empty():
        return spans
    calls = calls.with_columns(late=pl.col("end_ns") - pl.col("end_ns").min().over(key))
    calls = calls.with_columns(clock=pl.col("late").median().over("rank").cast(pl.Int64))
    arrived = (pl.col("start_ns") - pl.col("clock")).max().over(key) + pl.col("clock")
    calls = calls.with_columns(cut=pl.min_horizontal(pl.max_horizontal(arrived, "start_ns"), "end_ns"))
    waits = calls.filter(pl.col("cut") > pl.col("start_ns"))
    kind = pl.lit("wait").cast(spans.schema["kind"])
    rest = spans.join(waits.select("rank", "lane", "start_ns", "end_ns", *key[:2], "name", "cut"), how="left",
                      on=["rank", "lane", "start_ns", "end_ns", "step", "kind", "name"], nulls_equal=True)  # fmt: skip
    rest = rest.with_columns(start_ns=pl.coalesce("cut", "start_ns")).filter(pl.col("end_ns") > pl.col("start_ns"))
    cut = waits.with_columns(end_ns=pl.col("cut"), kind=kind)
    return pl.concat([rest.select(spans.columns), cut.select(spans.columns)])


def _split_rank(rank: int, spans: pl.DataFrame) -> list[tuple[int, int, str, float]]:
    """The steps of one rank: its step spans, or else from the first work of a step to the first work of the next."""
    whole = spans.filter(pl.col("own_kind") == "step")
    work = spans.filter(~pl.col("own_kind").is_in(_CONTAINERS))
    if whole.height:
        bounds = whole.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
    else:
        bounds = work.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
        bounds = bounds.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(pl.col("end_ns")))
    rows = []
    by_step = {int(step): part for (step,), part in work.group_by(["step"])}
    for step, begin, end in bounds.iter_rows():
        part = by_step.get(step, work.clear())
        rows += [(rank, step, kind, ms) for kind, ms in _split(part, begin, end)]
    return rows


def _split(part: pl.DataFrame, begin: int, end: int) -> list[tuple[str, float]]:
    """Cut a step at every start and end inside it; each piece counts for the most informative kind that covers it."""
    start = np.clip(part["start_ns"].to_numpy(), begin, end)
    stop = np.clip(part["end_ns"].to_numpy(), begin, end)
    cuts = np.unique(np.concatenate([start, stop, np.array([begin, end], np.int64)]))
    owner = np.full(len(cuts) - 1, -1, np.int64)
    kinds, own = part["what"].to_list(), part["own_kind"].to_list()
    for i in sorted(range(len(kinds)), key=lambda i: -_weight(own[i])):  # the most informative kind is written last
        owner[np.searchsorted(cuts, start[i]) : np.searchsorted(cuts, stop[i])] = i
    total: dict[str, float] = {}
    for index, length in zip(owner, np.diff(cuts) / 1e6, strict=True):
        kind = kinds[index] if index >= 0 else "idle"
        total[kind] = total.get(kind, 0.0) + float(length)
    return list(total.items())


def _weight(kind: str) -> int:
    """Compute hides communication, which hides work of the host, which hides waiting."""
    return {"compute": 0, "host": 2, "wait": 3}.get(kind, 1)


def _explain(before: pl.DataFrame, after: pl.DataFrame, difference: float, config: CompareConfig) -> list[Part]:
    """The parts of the difference on the rank that the others wait for."""
    busy = pl.col("kind").is_in(["compute", "host"])
    moved = ~busy & ~pl.col("kind").is_in(_IDLE)
    work, transfers = _change_by_rank(before, after, busy), _change_by_rank(before, after, moved)
    gaps = _change_by_rank(before, after, pl.col("kind") == "idle")  # the host launches late, or reads its input
    for change in (work, transfers, gaps):
        if not change:
            continue
        rank = max(change, key=lambda r: change[r] * np.sign(difference))
        if change[rank] / difference >= config.blame_share:
            alike = float(np.median(list(change.values()))) / change[rank] >= config.alike_share
            return _parts_of(rank, before, after, alike=alike, config=config)
    anyone = next(iter(work or transfers), None)
    if anyone is None:
        return []
    return _parts_of(anyone, before, after, alike=True, config=config)


def _change_by_rank(before: pl.DataFrame, after: pl.DataFrame, chosen: pl.Expr) -> dict[int, float]:
    first, second = _mean_by_rank(before, chosen), _mean_by_rank(after, chosen)
    return {rank: second[rank] - first[rank] for rank in second if rank in first}


def _mean_by_rank(split: pl.DataFrame, chosen: pl.Expr) -> dict[int, float]:
    steps = split.group_by("rank").agg(pl.col("step").n_unique(), ms=pl.col("ms").filter(chosen).sum())
    return {rank: ms / num for rank, num, ms in steps.select("rank", "step", "ms").iter_rows()}


def _parts_of(
    rank: int, before: pl.DataFrame, after: pl.DataFrame, *, alike: bool, config: CompareConfig
) -> list[Part]:
    own_before, own_after = before.filter(pl.col("rank") == rank), after.filter(pl.col("rank") == rank)
    then, now = _mean_by_kind(own_before), _mean_by_kind(own_after)
    parts = []
    for kind in sorted(set(then) | set(now)):
        ms = now.get(kind, 0.0) - then.get(kind, 0.0)
        if abs(ms) > 1e-9:
            step = _single_step(kind, ms, then.get(kind, 0.0), own_after, config)
            parts.append(Part(kind=kind, rank=None if alike else rank, step=step, ms=ms))
    return parts


def _mean_by_kind(split: pl.DataFrame) -> dict[str, float]:
    count = max(split["step"].n_unique(), 1)
    return dict(split.group_by("kind").agg(ms=pl.col("ms").sum() / count).iter_rows())


def _single_step(kind: str, ms: float, usual: float, after: pl.DataFrame, config: CompareConfig) -> int | None:
    """The step that accounts for nearly all of a change, if there are several steps and one does."""
    steps = (
        after.select("step")
        .unique()
        .join(after.filter(pl.col("kind") == kind).group_by("step").agg(pl.col("ms").sum()), on="step", how="left")
    )
    if steps.height < 3:
        return None
    change = steps.with_columns(ms=pl.col("ms").fill_null(0.0) - usual).sort(pl.col("ms").abs(), descending=True)
    top, total = change.row(0), ms * steps.height
    return int(top[0]) if top[1] * total > 0 and abs(total - top[1]) < config.blame_share * abs(top[1]) else None


def _mean_ms(split: pl.DataFrame) -> float:
    return float(_step_lengths(split)["ms"].mean())  # type: ignore[arg-type]


def _error_ms(split: pl.DataFrame) -> float:
    """Standard error of the mean step time over steps; unknown for a single step."""
    return standard_error(_step_lengths(split).group_by("step").agg(pl.col("ms").mean())["ms"].to_numpy())


def _step_lengths(split: pl.DataFrame) -> pl.DataFrame:
    return split.group_by("rank", "step").agg(pl.col("ms").sum())
