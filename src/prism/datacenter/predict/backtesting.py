"""How good the risks would have been: forecasts at past moments, from what was known then, against what followed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from prism.datacenter.predict.features import describe_parts, label_parts
from prism.datacenter.predict.forecast import predict
from prism.datacenter.predict.history import History
from prism.datacenter.predict.level import PredictConfig
from prism.datacenter.predict.model import RULES, area_under_curve

BACKTEST = pl.Schema(
    {
        "at_ns": pl.Int64,
        "parts": pl.Int64,
        "events": pl.Int64,
        "auc": pl.Float64,
        "precision_top": pl.Float64,  # share of the riskiest 1 % that had an event
        "base_rate": pl.Float64,
        "level": pl.Float64,  # events expected over events that came
        "in_range": pl.Boolean,  # whether the events came within the 80 % range that was given
        "best_rule": pl.String,
        "best_rule_auc": pl.Float64,  # of the rule that was best in hindsight
        "method": pl.String,
    }
)


def backtest(history: History, moments: Iterable[int], config: PredictConfig | None = None) -> pl.DataFrame:
    """One row per moment; `predict` sees only the history before the moment, and the rest is the truth."""
    config = config or PredictConfig()
    rows = []
    for at_ns in moments:
        forecast = predict(history, at_ns, config)
        panel = describe_parts(history, at_ns, config.horizon_days)
        truth = label_parts(history, panel, config.horizon_days)
        by_id = {r.id: r.risk for r in forecast.risks}
        risk = np.array([by_id[history.parts[p]] for p in panel.part])
        rules = {name: area_under_curve(rule(panel), truth) for name, rule in RULES.items()}
        best = max(rules, key=lambda name: np.nan_to_num(rules[name]))
        top = np.argsort(-risk, kind="stable")[: max(1, len(risk) // 100)]
        low, high = forecast.expected_range
        rows.append(
            {
                "at_ns": at_ns,
                "parts": len(risk),
                "events": int(truth.sum()),
                "auc": area_under_curve(risk, truth),
                "precision_top": float(truth[top].mean()),
                "base_rate": float(truth.mean()),
                "level": forecast.expected_events / max(int(truth.sum()), 1),
                "in_range": low <= int(truth.sum()) <= high,
                "best_rule": best,
                "best_rule_auc": rules[best],
                "method": forecast.method,
            }
        )
    return pl.DataFrame(rows, schema=BACKTEST)
