"""`predict`: from a history and a moment to one risk per part. The only file that chains the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.datacenter.predict.features import Floats, Panel, describe_parts, label_parts, thin_out
from prism.datacenter.predict.history import DAY_NS, History
from prism.datacenter.predict.level import (
    PredictConfig,
    check_ranges,
    expect_events,
    find_gap,
    find_range,
    list_moments,
    set_level,
)
from prism.datacenter.predict.model import RULES, Learned, area_under_curve, fit_trees, rank_share

# Parts that failed recently or often fail again, in every fleet with published faults.
_LASTING_RULES = ("latest event", "earlier events", "its neighbours' rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The probability that a part has an event within the horizon, and why."""

    id: str
    risk: float
    reasons: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Parts of similar risk in the last whole horizon before the moment, and how many had an event."""

    parts: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Risks of all parts in place, highest first, and how reliable they are."""

    at_ns: int
    horizon_days: float
    risks: tuple[Risk, ...]
    method: str
    past_auc: float  # on the last whole horizon before the moment, which training did not see
    expected_events: float
    expected_range: tuple[float, float]  # 80 %, from the errors of such expectations in the past
    reliability: tuple[Reliability, ...]
    tells_apart: bool  # whether past risks were better than chance by two standard errors
    notes: tuple[str, ...]
    range_held: tuple[int, int] = (0, 0)  # past moments whose count lay in the range given then, of how many

    def reliability_json(self) -> list[dict[str, float]]:
        """Bins of a reliability diagram."""
        return [{"parts": b.parts, "predicted": b.predicted, "observed": b.observed} for b in self.reliability]

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism predict --json` prints."""
        return {
            "schema": "prism.prediction/1",
            "at_ns": self.at_ns,
            "horizon_days": self.horizon_days,
            "risks": [{"id": r.id, "risk": r.risk, "reasons": list(r.reasons), "place": r.place} for r in self.risks],
            "calibration": {
                "method": self.method,
                "past_auc": None if np.isnan(self.past_auc) else self.past_auc,
                "expected_events": self.expected_events,
                "expected_range": list(self.expected_range),
                "range_held": list(self.range_held),
                "tells_apart": self.tells_apart,
                "reliability": self.reliability_json(),
            },
            "notes": list(self.notes),
        }


def predict(history: History, at_ns: int, config: PredictConfig | None = None) -> Forecast:
    """The risk of every part in place at a moment, from earlier data only."""
    config = config or PredictConfig()
    known = history.before(at_ns)
    panel = describe_parts(known, at_ns, config.horizon_days)
    if len(panel.part) == 0:
        return Forecast(
            at_ns=at_ns,
            horizon_days=config.horizon_days,
            risks=(),
            method="none",
            past_auc=float("nan"),
            expected_events=0.0,
            expected_range=(0.0, 0.0),
            reliability=(),
            tells_apart=False,
            notes=(*known.notes, "no part is in place at that moment"),
        )
    counted = expect_events(known, at_ns, config)
    notes = [*known.notes, *find_gap(known, at_ns, config)]
    chosen = _choose(known, at_ns, panel, config, notes)
    # The mean of forecasts that err apart: the count's own trend, and what trees expect of the parts in place now.
    expected = float(np.exp(np.mean(np.log([max(counted, 1e-3), *chosen.levels]))))
    learned = chosen.learned
    score = learned.score(panel) if learned is not None else np.full(len(panel.part), 0.5)
    share = score if learned is not None and learned.is_probability else rank_share(score) ** 3 * 0.05
    risk = set_level(share, expected) if learned is not None else np.full(len(panel.part), expected / len(panel.part))
    order = np.argsort(-risk, kind="stable")
    reasons = _explain(panel, risk)
    return Forecast(
        at_ns=at_ns,
        horizon_days=config.horizon_days,
        risks=tuple(
            Risk(
                id=known.parts[panel.part[i]],
                risk=float(risk[i]),
                reasons=reasons[i],
                place=known.place_names[panel.place[i]],
            )
            for i in order
        ),
        method=learned.name if learned is not None else "the same for all",
        past_auc=chosen.auc,
        expected_events=expected,
        expected_range=find_range(known, at_ns, expected, config, len(panel.part)),
        range_held=check_ranges(known, at_ns, config, len(panel.part)),
        reliability=chosen.reliability,
        tells_apart=chosen.tells_apart,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A scorer and its result on the last horizon, which training did not see."""

    learned: Learned | None = None
    auc: float = float("nan")
    reliability: tuple[Reliability, ...] = ()
    tells_apart: bool = False
    levels: tuple[float, ...] = ()  # events that trees expect: those of all past moments, and those of the last horizon


def _judge(learned: Learned, held_score: Floats, truth: NDArray[np.bool_], expected: float) -> _Chosen:
    """The result of a score on a horizon that it did not see, with the level expected for it."""
    auc = area_under_curve(held_score, truth)
    error = 0.5 / np.sqrt(max(int(truth.sum()), 1))
    share = held_score if learned.is_probability else rank_share(held_score) ** 3 * 0.05
    risk = set_level(share, max(expected, 1e-3))
    order = np.argsort(risk, kind="stable")
    bins = np.searchsorted(np.cumsum(risk[order]) / risk.sum(), np.linspace(0.0, 1.0, 11)[1:-1])
    reliability = tuple(
        Reliability(parts=len(part), predicted=float(risk[part].mean()), observed=float(truth[part].mean()))
        for part in np.split(order, bins)
        if len(part)
    )
    return _Chosen(learned=learned, auc=auc, reliability=reliability, tells_apart=bool(auc > 0.5 + 2.0 * error))


def _choose(known: History, at_ns: int, panel: Panel, config: PredictConfig, notes: list[str]) -> _Chosen:
    """The model or a plain rule, whichever was better on the last horizon, which training did not see."""
    moments = list_moments(known, at_ns, config)
    panels, labels = [], []
    for number, moment in enumerate(moments):
        past = describe_parts(known, moment, config.horizon_days)
        label = label_parts(known, past, config.horizon_days)
        if number:  # scorers are judged by the latest moment, so it stays complete
            past, label = thin_out(past, label, config.most_quiet)
        panels.append(past)
        labels.append(label)
    seen = int(sum(label.sum() for label in labels[:1])) if labels else 0
    total = len(np.unique(known.event_part))
    if len(panel.part) < config.least_parts or total < config.least_events or seen == 0:
        notes.append(
            f"too little is known: {total} parts with an event among {len(panel.part)} in place; "
            f"{config.least_events} events and {config.least_parts} parts are needed, so all parts get the mean risk"
        )
        return _Chosen()
    weight = total / (total + config.rule_events) if _knows_surroundings(panel) else 0.0
    held = _hold_out(labels, config)
    events = np.array([int(label.sum()) for label in labels[:held]])
    rules = {name: _pool(rule, panels[:held], labels[:held]) for name, rule in RULES.items()}
    best = max(rules, key=lambda name: rules[name])
    earlier = [i for i, m in enumerate(moments) if m <= moments[held - 1] - config.horizon_days * DAY_NS]
    expected = expect_events(known.before(moments[0]), moments[0], config)
    judged = _Chosen(auc=rules[best])
    if sum(int(labels[i].sum()) for i in earlier) >= config.least_events:
        trees = fit_trees([panels[i] for i in earlier], [labels[i] for i in earlier], _weigh(moments, earlier, config))
        shares = _weigh_rules(panels, labels, earlier)
        # Moments closer than a horizon share their events; the error is that of an AUC near 0.5 with as many.
        apart = events.sum() * max(1.0 / held, min(1.0, config.step_days / config.horizon_days))
        error = float(np.sqrt(1.0 / 12.0 / max(apart, 1.0)))
        mixed = _lean_on_rules(trees, weight, shares)
        judged = _judge(mixed, mixed.score(panels[0]), labels[0], expected)
        pooled = _pool(mixed.score, panels[:held], labels[:held])
        if pooled < rules[best] - config.rule_errors * error:
            notes.append(f"the rule '{best}' did better than the model before: {rules[best]:.2f} against {pooled:.2f}")
            rule = Learned(name=best, score=RULES[best], is_probability=False)
            return _judge(rule, rule.score(panels[0]), labels[0], expected)
    every = list(range(len(moments)))
    trees = fit_trees(panels, labels, _weigh(moments, every, config))
    mixed = _lean_on_rules(trees, weight, _weigh_rules(panels, labels, every))
    if int(labels[0].sum()) < config.level_events:
        return replace(judged, learned=mixed)
    latest = fit_trees(panels[:1], labels[:1], [1.0])
    levels = tuple(max(float(each.score(panel).sum()), 1e-3) for each in (trees, latest))
    return replace(judged, learned=mixed, levels=levels)


def _knows_surroundings(panel: Panel) -> bool:
    """Whether there is more than a part's own events: places or counters, which trees can combine."""
    wanted = ("place_", "rate_within", "rate_level", "counter_")
    return any(np.ptp(panel.column(name)) > 0 for name in panel.names if name.startswith(wanted))


def _hold_out(labels: Sequence[NDArray[np.bool_]], config: PredictConfig) -> int:
    """How many of the latest moments scorers are judged by: as many as are needed for enough events."""
    share = min(1.0, config.step_days / config.horizon_days)  # of events not counted before
    seen, held = float(labels[0].sum()), 1
    while seen < config.judge_events and held < len(labels) // 2:
        seen += share * float(labels[held].sum())
        held += 1
    return held


def _pool(score: Callable[[Panel], Floats], panels: Sequence[Panel], labels: Sequence[NDArray[np.bool_]]) -> float:
    """The AUC of a score over several moments, each counted by its events."""
    found = [(area_under_curve(score(p), y), int(y.sum())) for p, y in zip(panels, labels, strict=True)]
    known = [(auc, count) for auc, count in found if not np.isnan(auc)]
    return float(np.average([a for a, _ in known], weights=[c for _, c in known])) if known else float("nan")


def _weigh_rules(
    panels: Sequence[Panel], labels: Sequence[NDArray[np.bool_]], chosen: Sequence[int]
) -> dict[str, float]:
    """By how much each lasting rule was better than chance; equal weights if none was."""
    past, came = [panels[i] for i in chosen], [labels[i] for i in chosen]
    gains = {name: max(0.0, _pool(RULES[name], past, came) - 0.5) for name in _LASTING_RULES}
    total = sum(gains.values())
    return {name: gain / total if total > 0 else 1.0 / len(gains) for name, gain in gains.items()}


def _lean_on_rules(trees: Learned, weight: float, shares: Mapping[str, float]) -> Learned:
    """Rank parts by the trees and by rules that hold in most fleets; rules weigh more if there are few events."""

    def score(panel: Panel) -> Floats:
        own = trees.score(panel)
        rules = np.sum([share * rank_share(RULES[name](panel)) for name, share in shares.items()], axis=0)
        mixed = weight * rank_share(own) + (1.0 - weight) * rules
        # Parts with equal features get the same risk, independent of their order.
        place = rank_share(mixed) * (len(own) + 1) - 1.0
        ordered: Floats = np.interp(place, np.arange(len(own)), np.sort(own))
        return ordered

    name = "rules" if weight <= 0.0 else trees.name if weight >= 1.0 else f"{trees.name} and rules"
    return Learned(name=name, score=score, is_probability=True)


def _weigh(moments: Sequence[int], chosen: Sequence[int], config: PredictConfig) -> list[float]:
    newest = moments[0]
    return [0.5 ** ((newest - moments[i]) / DAY_NS / config.half_life_days) for i in chosen]


def _explain(panel: Panel, risk: Floats) -> list[tuple[str, ...]]:
    """For every part, how it differs from the fleet, strongest first; only features that correlate with the risk."""
    telling: list[tuple[float, str, NDArray[np.bool_], Floats]] = []
    for name in panel.names:
        values = panel.column(name)
        words = _words(name)
        if words is None or np.ptp(values) == 0:
            continue
        spread = float(np.std(values)) or 1.0
        slope = float(np.corrcoef(values, risk)[0, 1]) if np.std(risk) > 0 else 0.0
        away = (values - np.median(values)) / spread * np.sign(slope)
        shown = np.expm1(values) if name.startswith("counter_") else values
        telling.append((abs(slope), words, away > 0.5, shown))
    telling.sort(key=lambda t: -t[0])
    found: list[tuple[str, ...]] = []
    for i in range(len(risk)):
        own = [words.format(values[i]) for weight, words, apart, values in telling if weight > 0.02 and apart[i]]
        found.append(tuple(own[:3]))
    return found


def _words(feature: str) -> str | None:
    plain = {
        "age_days": "first installed {:.0f} days ago",
        "stay_days": "in its place for {:.0f} days",
        "own_events": "{:.0f} earlier events",
        "days_since_event": "its last event was {:.0f} days ago",
        "events_in_place": "{:.0f} events in its place in a year",
        "rate_cohort": "{:.4f} events per part among those of its age lately",
    }
    if feature in plain:
        return plain[feature] if feature != "days_since_event" else None
    if feature.startswith("counter_"):
        name, days = feature.removeprefix("counter_").rsplit("_", 1)
        return f"{name} rose by {{:.0f}} in {days.removesuffix('d')} days"
    if feature.startswith("rate_within"):
        return f"{{:.4f}} events per part among its neighbours (level {feature.rsplit('_', 1)[1]}) in a year"
    if feature.startswith("rate_level"):
        return f"{{:.4f}} events per part among those with its number at level {feature.rsplit('_', 1)[1]} lately"
    return None
