"""Random scenarios from a seed: any layout, any number of tenants, with or without a fault, measured well or badly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from prism.lab.scenarios.fault import Fault, FaultKind
from prism.lab.scenarios.measurement import Measurement
from prism.lab.scenarios.scenario import Scenario, place_jobs
from prism.lab.scenarios.timeline import plan_job
from prism.records.settings import Checked, number
from prism.simulate.cluster import Cluster, Fabric, Nics
from prism.simulate.cluster_file import load_cluster
from prism.simulate.costs import ClusterCosts
from prism.simulate.plans.job import Checkpoint, Job
from prism.simulate.plans.model import MODELS, ModelShape
from prism.simulate.plans.program import build_step
from prism.simulate.plans.sizes import size_up
from prism.simulate.solving.solver import solve

T = TypeVar("T")
_MOST_STEPS_APART = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomConfig(Checked):
    """The range of random scenarios."""

    min_gpus: int = number(16, 16, 1024)
    max_gpus: int = number(1024, 16, 4096)
    max_tenants: int = number(10, 1, 12)
    steps: int = number(12, 2, 1000)  # of the slowest job, about
    fault_share: float = number(0.5, 0, 1)  # scenarios with one planted fault
    degraded_share: float = number(0.5, 0, 1)  # scenarios that are measured badly
    with_experts: bool = True


def random_scenario(seed: int, config: RandomConfig | None = None) -> Scenario:
    """The scenario of a seed; the same seed and config give the same one."""
    config = config or RandomConfig()
    rng = np.random.default_rng([seed, 41])
    sizes = _draw_sizes(rng, config)
    jobs = tuple(_draw_job(rng, f"job-{i + 1}", gpus, config) for i, gpus in enumerate(sizes))
    draft = Scenario(
        name=f"random-{seed}", about="Drawn at random.", cluster=_draw_cluster(rng, sum(sizes) // 8), jobs=jobs
    )
    steps_s = _time_steps(draft)
    slowest = max(steps_s)
    # Short steps get more micro-batches, so that no job runs a thousand steps while another runs ten.
    more = [max(1, int(slowest / step_s / _MOST_STEPS_APART)) for step_s in steps_s]
    jobs = tuple(replace(job, microbatches=job.microbatches * times) for job, times in zip(jobs, more, strict=True))
    steps_s = [step_s * times for step_s, times in zip(steps_s, more, strict=True)]
    measurement = _draw_measurement(rng) if rng.random() < config.degraded_share else Measurement()
    scenario = replace(
        draft,
        jobs=tuple(replace(job, start_s=round(float(rng.uniform(0, 0.5 * slowest)), 3)) for job in jobs),
        duration_s=round(config.steps * slowest, 3),
        measurement=measurement,
    )
    if rng.random() < config.fault_share:
        scenario = replace(scenario, faults=(_draw_fault(rng, scenario, steps_s),))
    return scenario


def _time_steps(scenario: Scenario) -> list[float]:
    """Seconds of an undisturbed step of every job."""
    costs = ClusterCosts(scenario.cluster)
    graphs = (build_step(layout, size_up(layout.job, scenario.cluster.gpu)) for layout in place_jobs(scenario))
    return [solve(graph, costs).total_ns / 1e9 for graph in graphs]


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _draw_sizes(rng: np.random.Generator, config: RandomConfig) -> list[int]:
    """GPUs of each tenant: powers of two, together at most the configured number."""
    low, high = int(np.log2(config.min_gpus)), int(np.log2(config.max_gpus))
    left = 2 ** int(rng.integers(low, high + 1))
    tenants = int(rng.integers(1, min(config.max_tenants, left // 16) + 1))
    sizes = []
    for others in reversed(range(tenants)):
        most = int(np.log2(left - 16 * others))
        sizes.append(2 ** (int(rng.integers(4, most + 1)) if others else most))
        left -= sizes[-1]
    return sizes


def _draw_cluster(rng: np.random.Generator, num_hosts: int) -> Cluster:
    """Hosts of eight GPUs with eight NICs, with four, or with one."""
    base = load_cluster(_pick(rng, ("dgx-h100", "dgx-h100", "dgx-h200", "dgx-a100")), num_hosts=num_hosts)
    count = _pick(rng, (8, 8, 8, 4, 4, 1))
    fabric = Fabric(
        hosts_per_leaf=_pick(rng, (4, 8, 16, 32)),
        num_spines=_pick(rng, (2, 4, 8)),
        rail_optimized=bool(rng.random() < 0.7),
    )
    return replace(base, nics=Nics(count=count, gbps=400.0), fabric=fabric)


def _draw_job(rng: np.random.Generator, name: str, gpus: int, config: RandomConfig) -> Job:
    """One of the layouts that such a number of GPUs allows."""
    families = ["dense", "dense", "dense", "sharded", "context", "experts" if config.with_experts else "dense"]
    family = _pick(rng, families)
    draw = {"dense": _dense, "sharded": _sharded, "context": _context, "experts": _experts}[family]
    settings: dict[str, Any] = {"id": name, **draw(rng, gpus)}
    settings.setdefault("overlap", bool(rng.random() < 0.6))
    if rng.random() < 0.2:
        settings["data_loading"] = True
    if rng.random() < 0.15:
        settings["checkpoint"] = Checkpoint(every_steps=int(rng.integers(3, 8)), blocking=bool(rng.random() < 0.5))
    return Job(**settings)


def _dense(rng: np.random.Generator, gpus: int) -> dict[str, Any]:
    tp = _pick(rng, (1, 2, 4, 8, 8))
    pp = _pick(rng, [p for p in (1, 2, 4, 8) if gpus // tp // p >= 2 or gpus // tp == p])
    schedule = _pick(rng, ("1f1b", "1f1b", "gpipe", "interleaved", "zero_bubble"))
    model = MODELS[_pick(rng, ("llama-7b", "llama-8b", "gpt-1.3b") if tp * pp < 16 else ("llama-13b", "llama-70b"))]
    if model.layers % (2 * pp):
        schedule = "1f1b"
    return {
        "model": _fit_layers(replace(model, tied=bool(pp > 1 and rng.random() < 0.3)), pp),
        "tp": tp,
        "pp": pp,
        "dp": gpus // tp // pp,
        "schedule": schedule,
        "microbatches": pp * _pick(rng, (1, 2, 4)) if pp > 1 else _pick(rng, (1, 2, 4, 8)),
        "sharding": _pick(rng, ("none", "none", "zero1", "zero2")) if gpus // tp // pp > 1 else "none",
        "order": _pick(rng, ("tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp")),
    }


def _fit_layers(model: ModelShape, pp: int) -> ModelShape:
    return replace(model, layers=-(-model.layers // (2 * pp)) * 2 * pp)


def _sharded(rng: np.random.Generator, gpus: int) -> dict[str, Any]:
    hybrid = gpus >= 32 and rng.random() < 0.4
    return {
        "model": MODELS[_pick(rng, ("llama-7b", "llama-8b"))],
        "dp": gpus,
        "microbatches": 1,
        "sharding": "hsdp" if hybrid else "fsdp",
        "shard_ranks": _pick(rng, (8, 16)) if hybrid else 8,
    }


def _context(rng: np.random.Generator, gpus: int) -> dict[str, Any]:
    cp = _pick(rng, (2, 4))
    tp = _pick(rng, [t for t in (2, 4, 8) if t * cp <= gpus])
    pp = 2 if gpus // (tp * cp) >= 4 and rng.random() < 0.5 else 1
    return {
        "model": replace(MODELS["llama-8b"], seq=_pick(rng, (16_384, 32_768))),
        "cp": cp,
        "tp": tp,
        "pp": pp,
        "dp": gpus // (tp * cp * pp),
        "microbatches": 2 * pp,
    }


def _experts(rng: np.random.Generator, gpus: int) -> dict[str, Any]:
    pp = 2 if gpus >= 64 and rng.random() < 0.5 else 1
    dp = gpus // pp
    wide = rng.random() < 0.5 and dp % 16 == 0
    model = replace(MODELS["moe-16b"], layers=8) if wide else replace(MODELS["mixtral-8x7b"], layers=16)
    return {"model": model, "dp": dp, "pp": pp, "ep": 16 if wide else 8, "microbatches": 2 * pp, "sharding": "zero1"}


def _draw_measurement(rng: np.random.Generator) -> Measurement:
    """One to three errors of an exporter."""
    failings: list[dict[str, Any]] = [
        {"lost": float(rng.uniform(0.002, 0.05))},
        {"sampling_rate": _pick(rng, (10, 100, 1000))},
        {"clock_offset_ms": float(rng.uniform(0.1, 5)), "clock_drift_ppm": float(rng.uniform(1, 30))},
        {"idle_timeout_ms": float(rng.uniform(1, 20)), "active_timeout_ms": float(rng.uniform(100, 2000))},
        {"resolution_ms": _pick(rng, (1.0, 10.0, 100.0))},
        {"shared_addresses": True},
        {"renamed": True},
    ]
    chosen = rng.permutation(len(failings))[: int(rng.integers(1, 4))]
    settings: dict[str, Any] = {"with_path": bool(rng.random() < 0.7), "with_ports": bool(rng.random() < 0.7)}
    for i in sorted(chosen.tolist()):
        settings |= failings[i]
    return Measurement(**settings)


def _draw_fault(rng: np.random.Generator, scenario: Scenario, steps_s: Sequence[float]) -> Fault:
    """One fault in the second half of the scenario, strong enough to have an effect."""
    index = int(rng.integers(len(scenario.jobs)))
    job, step_s = scenario.jobs[index], steps_s[index]
    host = int(_pick(rng, place_jobs(scenario)[index].host.tolist()))
    start = round(float(rng.uniform(0.35, 0.55)) * scenario.duration_s, 3)
    kinds: list[FaultKind] = ["slow_gpu", "slow_host", "thermal", "slow_link", "hang", "gc_pauses", "node_loss"]
    if job.pp > 1:
        kinds.append("stage_imbalance")
    if job.dp > 1:
        kinds.append("load_imbalance")
    kind = _pick(rng, kinds)
    speed = float(rng.uniform(0.03, 0.1) if kind == "slow_link" else rng.uniform(0.4, 0.7))
    places: dict[str, dict[str, Any]] = {
        "slow_gpu": {"job": job.id, "rank": int(rng.integers(job.num_gpus))},
        "hang": {"job": job.id, "rank": int(rng.integers(job.num_gpus))},
        "slow_host": {"host": host},
        "thermal": {"host": host},
        "slow_link": {"host": host, "nic": int(rng.integers(scenario.cluster.nics.count))},
        "node_loss": {"host": host, "down_s": round(scenario.duration_s * 0.2, 3)},
        "gc_pauses": {"job": job.id, "pause_ms": round(400 * step_s, 3), "period_s": round(1.5 * step_s, 3)},
        "stage_imbalance": {"job": job.id, "stage": job.pp - 1},
        "load_imbalance": {"job": job.id, "spread": 0.4},
    }
    if kind == "slow_link":
        places[kind]["nic"] = _next_busy(scenario, index, host, places[kind]["nic"])
    return Fault(kind=kind, start_s=start, speed=round(speed, 2), **places[kind])


def _next_busy(scenario: Scenario, index: int, host: int, nic: int) -> int:
    """The first NIC of a host, from this one on, that its job uses."""
    num = scenario.cluster.nics.count
    plan = plan_job(place_jobs(scenario)[index], scenario.cluster, index, split_replicas=False)
    busy = set(plan.connections["src"]) | set(plan.connections["dst"])
    return next((n % num for n in range(nic, nic + num) if host * num + n % num in busy), nic)
