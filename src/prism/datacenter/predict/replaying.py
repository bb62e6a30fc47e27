"""The benefit of acting on the risks: a history replayed under several policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.datacenter.predict.forecast import Forecast, predict
from prism.datacenter.predict.history import DAY_NS, History
from prism.datacenter.predict.level import PredictConfig
from prism.datacenter.predict.nodes import gather_nodes, total_per_day
from prism.errors import BadConfigError
from prism.recover.supervise.replay import Fault, Forecasted, Losses, ReplayConfig, ReplayPolicy, replay

FIXED_S = (900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 57_600.0)
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """The part of a history that is replayed, and the job that runs in it."""

    start_ns: int
    end_ns: int
    job_nodes: int
    most_nodes: int = 2_048  # drawn from the fleet, to limit the size of a supercomputer
    refresh_days: float = 90.0  # between forecasts
    gpus_per_node: int = 8
    save_s: float = 60.0
    restart_s: float = 600.0
    repair_h: float = 24.0
    swap_above_per_day: float = 0.02  # failures of a node; a restart of the whole job must be worth it
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Losses under every policy, with the same faults and the same nodes."""

    losses: tuple[Losses, ...]
    best_fixed: str  # chosen with hindsight
    nodes: int
    faults: int
    break_even: float  # share of swaps that must be right for a swap to pay

    def saving(self, policy: str) -> float:
        """Share of the best fixed interval's lost GPU hours that a policy saves."""
        lost = {loss.policy: loss.lost_gpu_h for loss in self.losses}
        return 1.0 - lost[policy] / lost[self.best_fixed] if lost[self.best_fixed] else 0.0

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism predict replay --json` prints."""
        return {
            "schema": "prism.replay/1",
            "nodes": self.nodes,
            "faults": self.faults,
            "best_fixed": self.best_fixed,
            "break_even_precision": self.break_even,
            "policies": [{**loss.to_json(), "saved": self.saving(loss.policy)} for loss in self.losses],
        }


def forecast_often(history: History, config: TraceConfig, predicting: PredictConfig) -> list[Forecast]:
    """Forecasts at the start and after every refresh, each from its own past."""
    step = round(config.refresh_days * DAY_NS)
    return [predict(history, at_ns, predicting) for at_ns in range(config.start_ns, config.end_ns, step)]


def replay_history(history: History, config: TraceConfig, forecasts: Sequence[Forecast]) -> Replayed:
    """A job that holds its nodes from start to end, under fixed intervals, Young-Daly, and risks."""
    fleet = _draw_fleet(history, config)
    if config.job_nodes < 1 or config.job_nodes > len(fleet):
        raise BadConfigError(f"the job wants {config.job_nodes} nodes, {len(fleet)} are in place at the start")
    faults = _find_faults(history, config, set(fleet))
    beliefs = [_believe(f, history, config, set(fleet)) for f in forecasts]
    world = ReplayConfig(
        hosts=tuple(fleet),
        num_hosts=config.job_nodes,
        end_s=(config.end_ns - config.start_ns) / 1e9,
        gpus_per_host=config.gpus_per_node,
        save_s=config.save_s,
        restart_s=config.restart_s,
    )
    fixed = [ReplayPolicy(name=f"fixed {s / 60:.0f} min", interval_s=s) for s in FIXED_S]
    others = [
        ReplayPolicy(name="Young-Daly"),
        ReplayPolicy(name="risk: place and interval", place=True),
        ReplayPolicy(name="risk: and swap", place=True, most_risk_per_day=config.swap_above_per_day),
    ]
    losses = [replay(faults, beliefs, world, policy) for policy in (*fixed, *others)]
    best = min(losses[: len(fixed)], key=lambda loss: loss.lost_gpu_h)
    interval_s = next(p.interval_s or 0.0 for p in fixed if p.name == best.policy)
    return Replayed(
        losses=tuple(losses),
        best_fixed=best.policy,
        nodes=len(fleet),
        faults=len(faults),
        break_even=break_even_precision(world, interval_s, drain_h=2.0),
    )


def break_even_precision(world: ReplayConfig, interval_s: float, drain_h: float) -> float:
    """How often a swap must be right: it costs a restart and the node's absence, and saves a failure if it is right."""
    gpus = world.num_hosts * world.gpus_per_host
    cost = world.restart_s * gpus + drain_h * 3_600.0 * world.gpus_per_host
    gain = (world.restart_s + interval_s / 2.0) * gpus
    return min(1.0, cost / gain)


def _node_of(place: str, part: str) -> str:
    return place.split("/", 1)[0] or part


def _draw_fleet(history: History, config: TraceConfig) -> list[str]:
    """Nodes in place at the start, in an order independent of their risk."""
    known = history.before(config.start_ns)
    here = known.removed_ns == np.iinfo(np.int64).max
    pairs = zip(known.stay_place[here].tolist(), known.stay_part[here].tolist(), strict=True)
    names = sorted({_node_of(known.place_names[place], known.parts[part]) for place, part in pairs})
    order = np.random.default_rng(config.seed).permutation(len(names))[: config.most_nodes]
    return [names[i] for i in order]


def _find_faults(history: History, config: TraceConfig, fleet: set[str]) -> list[Fault]:
    within = np.flatnonzero((history.event_ns > config.start_ns) & (history.event_ns < config.end_ns))
    found = []
    for row in within.tolist():
        node = _node_of(history.place_names[history.event_place[row]], history.parts[history.event_part[row]])
        if node in fleet:
            at_s = (int(history.event_ns[row]) - config.start_ns) / 1e9
            found.append(Fault(at_s=at_s, host=node, repair_s=config.repair_h * 3_600.0))
    return found


def _believe(forecast: Forecast, history: History, config: TraceConfig, fleet: set[str]) -> Forecasted:
    """Risks of the fleet as failures per day, and the plain mean of the last year."""
    nodes = [node for node in gather_nodes(forecast) if node.id in fleet]
    last = (history.event_ns <= forecast.at_ns) & (history.event_ns > forecast.at_ns - 365 * DAY_NS)
    begun = max(int(history.event_ns[0]) if len(history.event_ns) else 0, forecast.at_ns - 365 * DAY_NS)
    days = max((forecast.at_ns - begun) / DAY_NS, 1.0)
    total = max(len(gather_nodes(forecast)), 1)
    days_ahead = forecast.horizon_days
    mean = float(last.sum()) / days / total
    rate = total_per_day(nodes, days_ahead) / max(len(nodes), 1)
    return Forecasted(
        at_s=(forecast.at_ns - config.start_ns) / 1e9,
        per_day={node.id: node.per_day(days_ahead) for node in nodes} if rate > 0 else {},
        mean_per_day=mean,
    )
