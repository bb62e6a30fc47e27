"""The scoreboard: how often reason, category and action are right, and which way the mistakes go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from prism.evidence.logs.rules import shipped_rules
from prism.records.verdict import CATEGORY_OF_REASON


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One failure with its true reason and what was answered."""

    truth: str
    reason: str
    action: str
    should_restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """Shares are of 1; `classes` has precision and recall per reason, `confusion` the wrong answers."""

    num_cases: int
    reason_macro: float
    reason_micro: float
    category: float
    action: float
    false_stop: float
    false_restart: float
    classes: pl.DataFrame
    confusion: pl.DataFrame


def restarts_by_default(reason: str) -> bool:
    """Whether a failure of this reason is normally restarted: the truth about actions where only a reason is known."""
    return shipped_rules().advice[reason].action != "stop"


def score(outcomes: Iterable[Outcome]) -> Scoreboard:
    """Score answers; false stop and false restart are shares of all cases."""
    rows = [
        (
            o.truth,
            o.reason,
            CATEGORY_OF_REASON[o.truth],
            CATEGORY_OF_REASON[o.reason],
            o.should_restart,
            o.action != "stop",
        )
        for o in outcomes
    ]
    names = ("truth", "reason", "true_category", "category", "should_restart", "restarts")
    frame = pl.DataFrame(
        rows, schema=dict(zip(names, (*(pl.String,) * 4, pl.Boolean, pl.Boolean), strict=True)), orient="row"
    )
    right = pl.col("truth") == pl.col("reason")
    recall = frame.group_by("truth").agg(pl.len().alias("cases"), right.mean().alias("recall"))
    precision = frame.group_by(pl.col("reason").alias("truth")).agg(right.mean().alias("precision"))
    classes = recall.join(precision, on="truth", how="left").sort("truth")
    confusion = (
        frame.filter(~right).group_by("truth", "reason").len("cases").sort("cases", "truth", descending=[True, False])
    )
    shares = frame.select(
        right.mean().alias("micro"),
        (pl.col("true_category") == pl.col("category")).mean().alias("category"),
        (pl.col("should_restart") == pl.col("restarts")).mean().alias("action"),
        (pl.col("should_restart") & ~pl.col("restarts")).mean().alias("false_stop"),
        (~pl.col("should_restart") & pl.col("restarts")).mean().alias("false_restart"),
    ).row(0, named=True)
    return Scoreboard(
        num_cases=frame.height,
        reason_macro=float(classes["recall"].mean() or 0.0),  # type: ignore[arg-type]
        reason_micro=shares["micro"] or 0.0,
        category=shares["category"] or 0.0,
        action=shares["action"] or 0.0,
        false_stop=shares["false_stop"] or 0.0,
        false_restart=shares["false_restart"] or 0.0,
        classes=classes,
        confusion=confusion,
    )
