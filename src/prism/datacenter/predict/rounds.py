"""One round of watching: forecast, write the files for other programs, and report what is new."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from prism.datacenter.predict.counters import make_counters
from prism.datacenter.predict.forecast import Forecast, predict
from prism.datacenter.predict.history import DAY_NS, History
from prism.datacenter.predict.level import PredictConfig
from prism.datacenter.predict.nodes import gather_nodes
from prism.datacenter.predict.prometheus import FATAL, READINGS, XID, keep_changes, read_prometheus
from prism.datacenter.predict.watching import Alert, RiskWatch, WatchConfig, write_metrics
from prism.errors import BadFileError
from prism.machine.files import replacing, write_durably

_STALE_H = 7 * 24.0
_STATE = "state.json"
_COUNTERS = "counters.parquet"
_KEPT_DAYS = 400


@dataclass(slots=True)
class RiskRound:
    """Writes `risk.json`, `metrics.prom` and `alerts.jsonl` in a folder; continues where an earlier process stopped."""

    folder: Path
    config: WatchConfig
    predicting: PredictConfig
    _watch: RiskWatch = field(init=False)
    _told: list[tuple[int, float, float]] = field(init=False)  # moment and range of earlier forecasts
    _asked_ns: int = field(init=False, default=0)  # the end of the last query to Prometheus

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._watch, self._told = RiskWatch(config=self.config), []
        path = self.folder / _STATE
        if path.exists():
            try:
                state = json.loads(path.read_bytes())
                self._watch.alerted = {str(node) for node in state["alerted"]}
                self._watch.drifted, self._watch.stale = bool(state["drifted"]), bool(state["stale"])
                self._watch.rising = {str(key) for key in state.get("rising", ())}
                self._told = [(int(a), float(b), float(c)) for a, b, c in state["told"]]
                self._asked_ns = int(state.get("asked_ns", 0))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise BadFileError(
                    f"{path}: not the state of a watch ({error!r:.60}); delete it to start anew"
                ) from None

    def with_prometheus(self, history: History, url: str, at_ns: int) -> History:
        """The history with all stored counters, and newer ones from the server.

        Prometheus deletes data after 15 days by default and training needs months, so readings are stored.
        """
        path = self.folder / _COUNTERS
        kept = _read_kept(path)
        since_s = max(self._asked_ns if kept.height else 0, at_ns - _KEPT_DAYS * DAY_NS) / 1e9
        fresh = read_prometheus(url, since_s, at_ns / 1e9, history.parts)
        readings = keep_changes([kept.filter(pl.col("at") > at_ns - _KEPT_DAYS * DAY_NS), fresh])
        with replacing(path) as part:
            readings.write_parquet(part)
        self._asked_ns = at_ns
        numbers = {name: number for number, name in enumerate(history.parts)}
        return replace(history, counters=make_counters(readings, numbers, codes=(XID,)))

    def score(self, history: History, at_ns: int) -> list[Alert]:
        """Forecast, write, and return what is new."""
        forecast = predict(history, at_ns, self.predicting)
        newest = int(history.event_ns[history.event_ns <= at_ns].max(initial=0))
        quiet_h = (at_ns - newest) / 3.6e12 if newest else 0.0
        expected_h = self.predicting.horizon_days * 24.0 / max(forecast.expected_events, 0.1)
        # After a silence five times as long as usual, a stopped collector is more likely than a healthy fleet.
        stale_h = quiet_h if quiet_h > max(_STALE_H, 5.0 * expected_h) else 0.0
        came, told = self._judge(history, at_ns)
        alerts = self._watch.handle(forecast, came, told, stale_h=stale_h, rising=_find_rising(history, forecast))
        self._told.append((at_ns, *forecast.expected_range))
        self._write(forecast, alerts)
        return alerts

    def _judge(self, history: History, at_ns: int) -> tuple[int, tuple[float, float] | None]:
        """The number of events in the last horizon, and the forecast for it."""
        horizon = round(self.predicting.horizon_days * DAY_NS)
        due = [entry for entry in self._told if entry[0] <= at_ns - horizon]
        self._told = [entry for entry in self._told if entry[0] > at_ns - 2 * horizon]
        if not due:
            return 0, None
        start, low, high = due[-1]
        hit = (history.event_ns > start) & (history.event_ns <= start + horizon)
        return len(np.unique(history.event_part[hit])), (low, high)

    def _write(self, forecast: Forecast, alerts: list[Alert]) -> None:
        nodes = [node.to_json() for node in gather_nodes(forecast)]
        document = {**forecast.to_json(), "schema": "prism.prediction/1", "nodes": nodes}
        write_durably(self.folder / "risk.json", json.dumps(document) + "\n")
        write_durably(self.folder / "metrics.prom", write_metrics(forecast, self._watch))
        state = {
            "alerted": sorted(self._watch.alerted),
            "drifted": self._watch.drifted,
            "stale": self._watch.stale,
            "rising": sorted(self._watch.rising),
            "told": self._told[-5_000:],
            "asked_ns": self._asked_ns,
        }
        with (self.folder / "alerts.jsonl").open("a") as log:
            log.writelines(json.dumps(alert.to_json(forecast.at_ns)) + "\n" for alert in alerts)
        write_durably(self.folder / _STATE, json.dumps(state) + "\n")


def _find_rising(history: History, forecast: Forecast) -> dict[str, str]:
    """Parts with a counter that a healthy part never raises, and by how much it rose in a week, by node and counter."""
    places = {risk.id: risk.place.split("/", 1)[0] or risk.id for risk in forecast.risks}
    found: dict[str, str] = {}
    for counter in history.counters:
        if counter.name not in FATAL:
            continue
        rises = counter.rise(np.arange(len(history.parts)), forecast.at_ns - 7 * DAY_NS, forecast.at_ns)
        for number in np.flatnonzero(rises > 0).tolist():
            part = history.parts[number]
            if part in places:
                text = f"{counter.name} of {part} rose by {rises[number]:.0f} in 7 days"
                found[f"{places[part]} {counter.name} {part}"] = text
    return found


def _read_kept(path: Path) -> pl.DataFrame:
    if not path.exists():
        return pl.DataFrame(schema=READINGS)
    try:
        return pl.read_parquet(path).select(list(READINGS)).cast(dict(READINGS))  # type: ignore[arg-type]
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadFileError(f"{path}: not readings of a watch ({str(error)[:60]}); delete it to start anew") from None
