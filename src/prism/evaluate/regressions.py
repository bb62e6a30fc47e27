"""Scores that fell from one training step to a later one by more than chance explains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

# Of all comparisons of a table together: how often a table in which nothing got worse may show a regression.
FALSE_ALARMS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One metric of one checkpoint on one dataset."""

    checkpoint: str
    step: int | None
    dataset: str
    metric: str
    value: float
    stderr: float | None = None  # None: taken from the share and the number of samples, where the value is a share
    samples: int = 0
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A score that is worse than at an earlier step; `sigmas` counts standard errors of the difference."""

    dataset: str
    metric: str
    checkpoint: str
    step: int
    value: float
    before_checkpoint: str
    before_step: int
    before_value: float
    sigmas: float


def find_regressions(scores: Iterable[Score], false_alarms: float = FALSE_ALARMS) -> tuple[Regression, ...]:
    """Compare each score with all earlier ones of its dataset and metric; the largest drop of each step is returned."""
    series: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        if score.step is not None and standard_error(score) is not None and math.isfinite(score.value):
            series.setdefault((score.dataset, score.metric), []).append(score)
    num_pairs = sum(len(line) * (len(line) - 1) // 2 for line in series.values())
    if not num_pairs:
        return ()
    # Bonferroni: with so many comparisons, some fall by two standard errors in every table.
    limit = NormalDist().inv_cdf(1 - false_alarms / num_pairs)
    found = []
    for line in series.values():
        ordered = sorted(line, key=lambda score: score.step or 0)
        values = np.array([score.value for score in ordered])
        errors = np.array([standard_error(score) for score in ordered])
        for i, score in enumerate(ordered[1:], start=1):
            falls = values[:i] - score.value if score.higher_is_better else score.value - values[:i]
            worst = _compare(ordered[np.argmax(falls / np.hypot(errors[:i], errors[i]))], score)
            if worst.sigmas > limit and worst.before_step < worst.step:
                found.append(worst)
    return tuple(sorted(found, key=lambda r: (r.step, r.dataset, r.metric)))


def standard_error(score: Score) -> float | None:
    """How far chance moves a score; None where nothing is known of it."""
    if score.stderr is not None and math.isfinite(score.stderr) and score.stderr > 0:
        return score.stderr
    if score.samples > 0 and 0 <= score.value <= 1:
        # No values between 0 and 1 vary more than noughts and ones of the same mean. Two samples more, one of each,
        # keep a share of exactly 0 or 1 from looking certain.
        share = (score.value * score.samples + 1) / (score.samples + 2)
        return math.sqrt(share * (1 - share) / score.samples)
    return None


def _compare(before: Score, after: Score) -> Regression:
    spread = math.hypot(standard_error(before) or 0.0, standard_error(after) or 0.0)
    fall = before.value - after.value if after.higher_is_better else after.value - before.value
    return Regression(
        dataset=after.dataset,
        metric=after.metric,
        checkpoint=after.checkpoint,
        step=after.step or 0,
        value=after.value,
        before_checkpoint=before.checkpoint,
        before_step=before.step or 0,
        before_value=before.value,
        sigmas=fall / spread if spread > 0 else 0.0,
    )


def lower_is_better(metric: str) -> bool:
    """Whether a metric counts mistakes or surprise, by its usual names."""
    words = ("perplexity", "ppl", "loss", "bits_per_byte", "error", "wer", "cer", "brier", "ter", "mse", "mae")
    names: Sequence[str] = metric.lower().replace(",", "_").replace("-", "_").split("_")
    return any(word in names for word in words) or "bits_per_byte" in metric
