"""Whether one rank makes the others wait, or whether somebody always comes last: a test against chance.

In every step some rank comes last. One stands out if it leads in more steps than it would if each rank were as likely
to, and if what the others wait for it exceeds, at the median, its scatter from step to step. Otherwise what is told is
how much of a step one rank may cost at most. Where few steps are recorded, calls are counted; they are of different
kinds, so their scatter tells nothing, and what the others waited in all decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb

import numpy as np
import polars as pl

from prism.evidence.traces.scatter import ScatterConfig, standard_error


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerConfig:
    """When a rank stands out."""

    chance: float = 0.05  # that some rank leads in so many steps by itself; two ranks need six steps, three need four
    scatter: ScatterConfig = field(default_factory=ScatterConfig)  # by which the others' wait must exceed nothing
    least_share: float = 0.02  # of a step, below which nobody would act on it
    fewest_steps: int = 4  # with fewer steps the calls themselves are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The rank that others wait for most, and whether that is more than chance."""

    rank: int
    led: int  # steps in which the others waited longest for it
    steps: int
    unit: str  # step, or call where there are few steps
    wait_ns: float  # median over steps (mean over calls) of what the others waited for it more than for any other rank
    error_ns: float  # standard error of that median
    step_ns: float  # median length
    chance: float  # probability that some rank leads so often if all are alike
    stands_out: bool

    @property
    def share(self) -> float:
        """The part of a step that it costs."""
        return self.wait_ns / self.step_ns if self.step_ns else 0.0

    @property
    def most_share(self) -> float:
        """The part of a step that one rank costs at most, as far as these steps can tell."""
        return min((max(self.wait_ns, 0.0) + 3 * self.error_ns) / self.step_ns, 1.0) if self.step_ns else 1.0


def find_straggler(aligned: pl.DataFrame, config: StragglerConfig | None = None) -> Straggler | None:
    """Judge calls of all ranks on one clock (rank, step, group, collective, number, start_ns); None without any."""
    config = config or StragglerConfig()
    by_step = aligned["step"].drop_nulls().n_unique() >= config.fewest_steps
    call = ("step", "group", "collective", "number")
    keys = ["step"] if by_step else list(call)
    # The others wait from the median arrival of a call until the last one.
    since = pl.col("start_ns") - aligned["start_ns"].min()
    others = since.sort().slice(0, pl.len() - 1).median().over(*call)
    is_last = pl.col("start_ns") == pl.col("start_ns").max().over(*call)
    known = aligned.filter(pl.col("step").is_not_null()) if by_step else aligned
    waits = known.with_columns(held=pl.when(is_last).then(since - others).otherwise(0.0))
    table = waits.group_by(*keys, "rank").agg(pl.col("held").sum()).pivot(on="rank", index=keys, values="held")
    ranks = [c for c in table.columns if c not in keys]
    if table.is_empty() or len(ranks) < 2:
        return None
    held = table.select(ranks).fill_null(0.0).to_numpy()
    best = int(np.argmax(np.median(held, axis=0) * len(held) + held.sum(axis=0) / len(held)))
    lead = held[:, best] - np.delete(held, best, axis=1).max(axis=1)
    wait = float(np.median(lead))
    error = 1.2533 * standard_error(lead)  # a median's is so much larger than a mean's
    spans = known.group_by(keys).agg(ns=pl.col("end_ns").max() - pl.col("start_ns").min())
    if not by_step:
        wait, error = float(lead.mean()), 0.0
    whole = float(np.ptp(aligned.select("start_ns", "end_ns").to_numpy()))
    step_ns = max(whole / len(lead), float(spans["ns"].median() or 0.0))  # type: ignore[arg-type]
    led = int((lead > 0).sum())
    chance = _chance(led, len(lead), len(ranks))
    least = max(config.scatter.needed(len(lead)) * error, config.least_share * step_ns)
    return Straggler(
        rank=int(ranks[best]),
        led=led,
        steps=len(lead),
        unit="step" if by_step else "call",
        wait_ns=wait,
        error_ns=error,
        step_ns=step_ns,
        chance=chance,
        stands_out=wait > least and chance <= config.chance,
    )


def _chance(led: int, steps: int, ranks: int) -> float:
    """That any of so many equal ranks leads in so many steps or more."""
    one = 1 / ranks
    tail = sum(comb(steps, k) * one**k * (1 - one) ** (steps - k) for k in range(led, steps + 1))
    return min(1.0, ranks * tail)
