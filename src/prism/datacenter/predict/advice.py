"""What to do with risks: where the next job goes, how often to save, what to drain, how many spares to hold."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prism.datacenter.predict.forecast import Forecast
from prism.datacenter.predict.history import History
from prism.datacenter.predict.nodes import NodeRisk, blame_places, gather_nodes, total_per_day
from prism.recover.interval import choose_interval_s

TAINT = "prism.dev/risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceConfig:
    """The next job and what things cost; every default is to be replaced by your own figure."""

    job_nodes: int = 0  # of the next job; 0: all nodes that are not drained
    gpus_per_node: int = 8
    save_s: float = 60.0  # by which a save holds up the training
    restart_s: float = 600.0
    run_days: float = 14.0  # how long the job will hold its nodes
    drain_h: float = 24.0  # that a drained node is out for
    repair_days: float = 3.0  # until a failed node is back or replaced
    spare_confidence: float = 0.95  # with which the spares suffice until the next repair


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAdvice:
    """How often a job should save on the nodes it has."""

    job: str
    nodes: int
    failures_per_day: float
    interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A node to take out before a long run, with what that costs and what it is expected to save, in GPU hours."""

    node: str
    risk: float  # within the run
    cost_gpu_h: float
    gain_gpu_h: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node with more events than its time in place explains."""

    node: str
    events: int
    expected: float
    chance: float  # of so many on any node, if all are alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Everything that follows from the risks; nothing of it has been done."""

    forecast: Forecast
    nodes: tuple[NodeRisk, ...]
    jobs: tuple[JobAdvice, ...]
    drains: tuple[Drain, ...]
    spares: int
    avoid: tuple[str, ...]  # nodes that the next job should not get, riskiest first
    test: tuple[Suspect, ...]  # nodes to take out and test: more events than their time explains
    break_even: float  # probability of failing within the run above which a drain pays
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism predict advise --json` prints and `--risk` reads."""
        return {
            "schema": "prism.advice/1",
            "at_ns": self.forecast.at_ns,
            "horizon_days": self.forecast.horizon_days,
            "nodes": [node.to_json() for node in self.nodes],
            "jobs": [
                {
                    "job": j.job,
                    "nodes": j.nodes,
                    "failures_per_day": j.failures_per_day,
                    "checkpoint_interval_s": j.interval_s,
                }
                for j in self.jobs
            ],
            "drains": [
                {
                    "node": d.node,
                    "risk": d.risk,
                    "cost_gpu_h": d.cost_gpu_h,
                    "gain_gpu_h": d.gain_gpu_h,
                    "reasons": list(d.reasons),
                }
                for d in self.drains
            ],
            "spares": self.spares,
            "avoid": list(self.avoid),
            "test": [asdict(suspect) for suspect in self.test],
            "break_even": self.break_even,
            "reliability": self.forecast.reliability_json(),
            "slurm": slurm_commands(self),
            "kubernetes": kubernetes_commands(self),
            "notes": list(self.notes),
        }


def advise(
    forecast: Forecast, jobs: Mapping[str, Sequence[str]], config: AdviceConfig, history: History | None = None
) -> Advice:
    """Advice for jobs that run (their nodes by name) and for the next one; `history` tells which nodes to test."""
    nodes = gather_nodes(forecast)
    by_id = {node.id: node for node in nodes}
    notes = list(forecast.notes)
    days = forecast.horizon_days
    told = []
    for job, names in jobs.items():
        known = [by_id[name] for name in names if name in by_id]
        if len(known) < len(names):
            notes.append(f"job '{job}': {len(names) - len(known)} of {len(names)} nodes are not in the history")
        rate = total_per_day(known, days) * len(names) / max(len(known), 1)
        told.append(_advise_job(job, len(names), rate, config))
    wanted = config.job_nodes or len(nodes)
    chosen = nodes[max(0, len(nodes) - wanted) :]
    told.append(_advise_job("next", len(chosen), total_per_day(chosen, days), config))
    loss_gpu_h = len(chosen) * config.gpus_per_node * (told[-1].interval_s / 2.0 + config.restart_s) / 3_600.0
    break_even = config.drain_h * config.gpus_per_node / loss_gpu_h if loss_gpu_h else math.inf
    drains: list[Drain] = []
    if not forecast.tells_apart:
        notes.append("the risks do not tell nodes apart, so no node is drained or avoided")
    else:
        drains = _find_drains(chosen, days, loss_gpu_h, config)
    spare_nodes = nodes[: len(nodes) - len(chosen)]
    rate = told[-1].failures_per_day
    named = blame_places(history, forecast.at_ns).iter_rows() if history is not None else ()
    return Advice(
        forecast=forecast,
        nodes=nodes,
        jobs=tuple(told),
        drains=tuple(drains),
        spares=count_spares(rate * config.repair_days, config.spare_confidence),
        avoid=tuple(node.id for node in spare_nodes) if forecast.tells_apart else (),
        test=tuple(Suspect(node=n, events=k, expected=e, chance=p) for n, k, e, p in named),
        break_even=min(break_even, 1.0),
        notes=tuple(notes),
    )


def _advise_job(job: str, nodes: int, rate: float, config: AdviceConfig) -> JobAdvice:
    mtbf_s = 86_400.0 / max(rate, 1e-9)
    return JobAdvice(
        job=job,
        nodes=nodes,
        failures_per_day=rate,
        interval_s=choose_interval_s(config.save_s, mtbf_s),
    )


def _find_drains(nodes: Sequence[NodeRisk], days: float, loss_gpu_h: float, config: AdviceConfig) -> list[Drain]:
    cost = config.drain_h * config.gpus_per_node
    found = []
    for node in nodes:
        within = 1.0 - math.exp(-node.per_day(days) * config.run_days)
        if within * loss_gpu_h > cost:
            found.append(
                Drain(node=node.id, risk=within, cost_gpu_h=cost, gain_gpu_h=within * loss_gpu_h, reasons=node.reasons)
            )
    return found


def count_spares(expected: float, confidence: float) -> int:
    """The fewest spares that suffice with this probability while failures come as a Poisson stream."""
    if expected > 500.0:  # far from zero the normal law is as good
        return math.ceil(expected + 1.645 * math.sqrt(expected))
    term = below = math.exp(-expected)
    count = 0
    while below < confidence:
        count += 1
        term *= expected / count
        below += term
    return count


def slurm_commands(advice: Advice) -> list[str]:
    """What an administrator or a user of Slurm would type; nothing is run."""
    lines = []
    if advice.avoid:
        lines.append(f"sbatch --exclude={','.join(advice.avoid)} JOB")
        lines += [f"scontrol update NodeName={shlex.quote(node)} Weight=1000" for node in advice.avoid]
    for drain in advice.drains:
        reason = f"prism: {drain.risk:.0%} risk of failure"
        lines.append(f"scontrol update NodeName={shlex.quote(drain.node)} State=DRAIN Reason={shlex.quote(reason)}")
    return lines


def kubernetes_commands(advice: Advice) -> list[str]:
    """Labels and taints that keep new pods off risky nodes; nothing is run."""
    lines = []
    for node in advice.avoid:
        lines.append(f"kubectl label node {shlex.quote(node)} {TAINT}=high --overwrite --dry-run=server")
        lines.append(
            f"kubectl taint node {shlex.quote(node)} {TAINT}=high:PreferNoSchedule --overwrite --dry-run=server"
        )
    drains = [shlex.quote(drain.node) for drain in advice.drains]
    return [*lines, *(f"kubectl drain {node} --ignore-daemonsets --dry-run=server" for node in drains)]
