"""Models of risk, fitted to the past: gradient-boosted trees, and the plain rules to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.datacenter.predict.features import Floats, Panel
from prism.errors import MissingExtraError

MOST_QUIET_ROWS = 60_000  # rows without an event that trees are fitted to; AUC on Titan is the same with 360,000

# The usual rules of thumb: how often, how recently, where, and how old. Each is a score that rises with the risk.
RULES: dict[str, Callable[[Panel], Floats]] = {
    "earlier events": lambda p: p.column("own_events"),
    "latest event": lambda p: -p.column("days_since_event"),
    "age": lambda p: p.column("age_days"),
    "youth": lambda p: -p.column("age_days"),
    "events in its place": lambda p: p.column("events_in_place"),
    "its neighbours' rate": lambda p: np.max(
        [p.column(n) for n in p.names if n.startswith("rate_within")] or [np.zeros(len(p.part))], axis=0
    ),
    "its level's rate": lambda p: np.max(
        [p.column(n) for n in p.names if n.startswith("rate_level")] or [np.zeros(len(p.part))], axis=0
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A fitted scorer of panels."""

    name: str
    score: Callable[[Panel], Floats]  # a probability for the model, any rising score for a rule
    is_probability: bool


def fit_trees(
    panels: Sequence[Panel], labels: Sequence[NDArray[np.bool_]], weights: Sequence[float], seed: int = 0
) -> Learned:
    """Trees on all past panels, with more weight on recent ones; shallow and slow, because events are few."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits  # a requirement of scikit-learn
    except ImportError:
        raise MissingExtraError("`prism predict`", "predict") from None
    rows = np.vstack([p.values for p in panels])
    target = np.concatenate(labels)
    weight = np.concatenate([w * p.stands_for for p, w in zip(panels, weights, strict=True)])
    rows, target, weight = _thin_out(rows, target, weight, seed)
    model: Any = HistGradientBoostingClassifier(
        max_iter=80,
        learning_rate=0.05,
        max_leaf_nodes=8,
        min_samples_leaf=200 if len(rows) > 20_000 else 20,
        l2_regularization=5.0,
        random_state=seed,
    )

    def score(panel: Panel) -> Floats:
        with threadpool_limits(1, user_api="openmp"):
            found: Floats = model.predict_proba(panel.values)[:, 1]
        return found

    # One thread fits 60,000 rows in a quarter of a second. More threads wait for each other at every node of a tree,
    # and on cores that others use too they take eight times as long.
    with threadpool_limits(1, user_api="openmp"):
        model.fit(rows, target, sample_weight=weight)
    return Learned(name="trees", score=score, is_probability=True)


def _thin_out(
    rows: Floats, target: NDArray[np.bool_], weight: Floats, seed: int
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Keep every row with an event and a sample of the others, which represents those left out."""
    quiet = np.flatnonzero(~target)
    if len(quiet) <= MOST_QUIET_ROWS:
        return rows, target, weight
    kept = np.random.default_rng(seed).choice(quiet, MOST_QUIET_ROWS, replace=False)
    weight = weight.copy()
    weight[kept] *= len(quiet) / len(kept)
    chosen = np.sort(np.concatenate([np.flatnonzero(target), kept]))
    return rows[chosen], target[chosen], weight[chosen]


def area_under_curve(score: Floats, label: NDArray[np.bool_]) -> float:
    """How often a part with an event scores above one without; 0.5 is chance, nan if one kind is missing."""
    positive = int(label.sum())
    if positive == 0 or positive == len(label):
        return float("nan")
    ranks = rank_share(score) * (len(score) + 1)
    return float((ranks[label].sum() - positive * (positive + 1) / 2) / (positive * (len(label) - positive)))


def rank_share(score: Floats) -> Floats:
    """Scores as shares of the fleet below them; equal scores share their mean."""
    _, inverse, count = np.unique(score, return_inverse=True, return_counts=True)
    below = np.cumsum(count) - count
    share: Floats = ((below + (count + 1) / 2.0) / (len(score) + 1))[inverse]
    return share
