"""Arrivals: how late each endpoint comes to what the ranks of a stage do together, step by step.

A transfer of a collective begins when its sender comes and ends with all others, so whoever everybody waits for is the
one whose transfer begins last. What an endpoint is late by in all collectives of a step is what it costs that step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.findings.windows import quantile_rows

_MOST_PLACES = 48  # of one stream in a step that are looked at
_TOGETHER = ("dp", "ep", "embedding")
_EARLY = 0.25  # share of those that come together before the others
_ENOUGH = levels.MAJORITY  # of the collectives that an endpoint is usually seen in
_USUAL = levels.SOME  # of the steps count as undisturbed


@dataclass(frozen=True)
class Arrivals:
    """By endpoint and step: seconds that it comes after the first, beyond its own quick steps; nan where not seen."""

    endpoints: Ints
    late_s: Floats


def measure_arrivals(case: Case) -> Arrivals:
    """How late every endpoint of a case comes to its collectives, step by step."""
    endpoints = np.asarray(case.job.endpoints, np.int64)
    late = np.full((len(endpoints), case.steps.height), np.nan)
    known = case.messages.filter(
        (pl.col("step") >= 0) & (pl.col("role") != "rare") & pl.col("kind").is_in(list(_TOGETHER))
    )
    if known.is_empty():
        return Arrivals(endpoints, late)
    stage = np.full(max(int(known["src"].max()), max(case.stages.stage, default=0)) + 1, -1, np.int64)  # type: ignore[arg-type]
    stage[list(case.stages.stage)] = list(case.stages.stage.values())
    every = -(-pl.col("num") // _MOST_PLACES)
    like = (pl.col("bytes").log1p().median().over("stream") * 20).round().cast(pl.Int32).alias("like")
    known = known.with_columns(pl.Series("stage", stage[known["src"].to_numpy()]), like, every.alias("every"))
    known = known.filter(pl.col("place") % pl.col("every") == 0)
    alike = ["kind", "stage", "like", "place", "step"]
    first = known.group_by("src", *alike, "every").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    after = (pl.col("start_ns") - pl.col("start_ns").quantile(_EARLY, "lower").over(alike)).clip(
        lower_bound=0
    ) * pl.col("every")
    # Where the others have ended before it begins they did not wait for it: it is another transfer.
    waited = pl.col("start_ns") < pl.col("end_ns").median().over(alike)
    total = (
        first.with_columns(pl.when(waited).then(after).otherwise(0).alias("after"))
        .group_by("src", "step")
        .agg(pl.col("after").sum() / 1e9, pl.len().alias("seen"))
        .filter(pl.col("seen") >= _ENOUGH * pl.col("seen").median().over("src"))
    )
    late[np.searchsorted(endpoints, total["src"].to_numpy()), total["step"].to_numpy()] = total["after"].to_numpy()
    return Arrivals(endpoints, late - quantile_rows(late, _USUAL, axis=1)[:, None])
