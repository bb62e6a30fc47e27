"""The kinds of captures, by name; each takes a random generator and varies with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from .capture import Capture
from .exporters import Exporter
from .fabric import Fabric, Slow
from .jobs import Job

Rng = np.random.Generator
MESSAGES = Exporter()


def span(first: int, count: int) -> tuple[int, ...]:
    """Neighbouring hosts, or rails."""
    return tuple(range(first, first + count))


def dgx(hosts: int, **other: Any) -> Fabric:
    """Hosts of 8 GPUs with a NIC each."""
    return Fabric(num_hosts=hosts, num_nics=8, gpus=8, **other)


def quad(hosts: int, **other: Any) -> Fabric:
    """Hosts of 4 GPUs with a NIC each, addressed rail by rail."""
    named = {"plan": "172.20.{nic}.{host1}", "host_name": "quad-{host:02d}", "gbps": 200.0} | other
    return Fabric(num_hosts=hosts, num_nics=4, gpus=4, **named)


def single(hosts: int, **other: Any) -> Fabric:
    """Hosts with one NIC, by racks of 4."""
    named = {"plan": "192.168.7.{host1}", "host_name": "worker-{host}", "gbps": 100.0, "gpus": 8} | other
    return Fabric(num_hosts=hosts, num_nics=1, rail_leaves=False, pod=4, **named)


def two_nics(hosts: int, **other: Any) -> Fabric:
    """Hosts of 2 GPUs with a NIC each, by racks of 6."""
    named = {"plan": "10.8.{nic}.{host1}", "host_name": "rack-u{host}", "gbps": 200.0} | other
    return Fabric(num_hosts=hosts, num_nics=2, gpus=2, rail_leaves=False, pod=6, **named)


def job(fabric: Fabric, name: str, program: str, hosts: Iterable[int], **other: Any) -> Job:
    """A job on all rails of hosts of a fabric."""
    given = {"rails": span(0, fabric.num_nics), "gpus": fabric.gpus, "gigabytes": 3.0, "compute": 0.6} | other
    return Job(name=name, program=program, hosts=tuple(hosts), **given)


def blame_host(fabric: Fabric, host: int, kind: str = "slow_compute") -> dict[str, Any]:
    """A host as the culprit."""
    endpoints = [fabric.address(e) for e in fabric.endpoints(host)]
    return {"kind": kind, "type": "host|endpoint", "id": fabric.name(host), "endpoints": endpoints}


def blame_nic(fabric: Fabric, endpoint: int) -> dict[str, Any]:
    """A NIC and its cable as the culprit."""
    address = fabric.address(endpoint)
    return {"kind": "slow_link", "type": "endpoint|link", "id": address, "endpoints": [address]}


def slow_host(fabric: Fabric, rng: Rng, victim: Job, **other: Any) -> Job:
    """Make one host of a job slow at computing."""
    host = int(rng.choice(victim.hosts))
    given = {"factor": float(rng.uniform(1.3, 1.6))} | other
    fabric.compute_faults.append(Slow(members=(host,), **given))
    return replace(victim, culprit=blame_host(fabric, host))


def slow_nic(fabric: Fabric, rng: Rng, victim: Job) -> Job:
    """Make one NIC of a job slow."""
    endpoint = int(rng.choice(victim.hosts)) * fabric.num_nics + int(rng.choice(victim.rails))
    fabric.net_faults.append(Slow(members=(endpoint,), factor=float(rng.uniform(2.5, 4.0))))
    return replace(victim, culprit=blame_nic(fabric, endpoint))


def near(rng: Rng, value: float) -> float:
    """A value within a quarter of this one."""
    return float(value * rng.uniform(0.8, 1.25))


# Fine records, nothing wrong.


def fine_ddp_odd(rng: Rng) -> Capture:
    f = dgx(10)
    jobs = [
        job(f, "seven", "ddp", span(0, 7), compute=near(rng, 0.7), jitter=0.01, qps=2),
        job(f, "three", "ddp", span(7, 3), compute=near(rng, 0.4), gigabytes=1.2, buckets=4, accumulate=3, jitter=0.03),
    ]
    return Capture(fabric=f, jobs=jobs, length=50)


def fine_fsdp(rng: Rng) -> Capture:
    f = dgx(11)
    jobs = [
        job(f, "five", "fsdp", span(0, 5), compute=near(rng, 1.0), gigabytes=14, jitter=0.01),
        job(f, "six", "fsdp", span(5, 6), compute=near(rng, 1.6), gigabytes=8, buckets=4, accumulate=2, jitter=0.02),
    ]
    return Capture(fabric=f, jobs=jobs, length=45, exporter=Exporter(idle=0.01))


def fine_hsdp(rng: Rng) -> Capture:
    f = quad(10)
    jobs = [
        job(f, "two-by-three", "hsdp", span(0, 6), shard_hosts=2, compute=near(rng, 1.2), gigabytes=6, jitter=0.01),
        job(f, "in-host", "hsdp", span(6, 4), compute=near(rng, 0.9), gigabytes=4, jitter=0.02),
    ]
    return Capture(fabric=f, jobs=jobs, length=60, exporter=Exporter(idle=0.02))


def fine_zero(rng: Rng) -> Capture:
    f = two_nics(9)
    jobs = [
        job(f, "zero-1", "ddp", span(0, 5), zero1=True, compute=near(rng, 0.5), gigabytes=1.5, buckets=5),
        job(f, "zero-3", "fsdp", span(5, 4), compute=near(rng, 0.8), gigabytes=3, buckets=5, jitter=0.04),
    ]
    return Capture(fabric=f, jobs=jobs, length=60)


def fine_pipe_zero1(rng: Rng) -> Capture:
    f = dgx(12)
    main = job(f, "pipe", "pipeline", span(0, 12), pp=4, zero1=True, tied=True, compute=near(rng, 1.4), gigabytes=4)
    return Capture(fabric=f, jobs=[main], length=60, exporter=Exporter(idle=0.02))


def fine_pipe_interleaved(rng: Rng) -> Capture:
    f = quad(12)
    jobs = [
        job(f, "inter", "pipeline", span(0, 8), pp=4, chunks=2, compute=near(rng, 1.6), activation_mb=24, jitter=0.01),
        job(f, "plain", "pipeline", span(8, 4), pp=2, microbatches=6, eager=False, tied=True, compute=near(rng, 1.0)),
    ]
    return Capture(fabric=f, jobs=jobs, length=60)


def fine_context(rng: Rng) -> Capture:
    f = quad(14)
    jobs = [
        job(f, "cp2-dp3", "context", span(0, 6), cp=2, compute=near(rng, 1.2), activation_mb=60),
        job(f, "cp4-dp2", "context", span(6, 8), cp=4, compute=near(rng, 1.8), activation_mb=40, jitter=0.02),
    ]
    return Capture(fabric=f, jobs=jobs, length=60)


def fine_experts(rng: Rng) -> Capture:
    f = quad(11)
    jobs = [
        job(f, "ep4x2", "experts", span(0, 8), ep=4, compute=near(rng, 0.9), activation_mb=400, gigabytes=2),
        job(f, "ep3", "experts", span(8, 3), ep=3, compute=near(rng, 0.6), activation_mb=300, gigabytes=1),
    ]
    return Capture(fabric=f, jobs=jobs, length=50)


def fine_tree(rng: Rng) -> Capture:
    f = single(17, gpus=1)
    jobs = [
        job(f, "tree-12", "ddp", span(0, 12), tree=True, compute=near(rng, 0.5), gigabytes=0.6, qps=2),
        job(f, "tree-5", "ddp", span(12, 5), tree=True, compute=near(rng, 0.3), gigabytes=0.3, jitter=0.05),
    ]
    return Capture(fabric=f, jobs=jobs, length=60)


def fine_rlhf(rng: Rng) -> Capture:
    f = dgx(10)
    jobs = [
        job(f, "rl", "rlhf", span(0, 6), generate=near(rng, 6), compute=near(rng, 2.5), gigabytes=14, jitter=0.02),
        job(f, "beside", "ddp", span(6, 4), compute=near(rng, 0.9)),
    ]
    return Capture(fabric=f, jobs=jobs, length=110)


def fine_shared_hosts(rng: Rng) -> Capture:
    f = dgx(6)
    jobs = [
        job(f, "low-rails", "ddp", span(0, 6), rails=span(0, 4), gpus=4, compute=near(rng, 0.6), gigabytes=2),
        job(f, "high-rails", "fsdp", span(0, 6), rails=span(4, 4), gpus=4, compute=near(rng, 0.85), gigabytes=6),
    ]
    return Capture(fabric=f, jobs=jobs, length=50)


def fine_serving(rng: Rng) -> Capture:
    f = quad(16)
    main = job(f, "train", "fsdp", span(0, 4), compute=near(rng, 0.9), gigabytes=5)
    return Capture(
        fabric=f, jobs=[main], length=60, serving=span(4, 6), shuffling=span(10, 6), exporter=Exporter(idle=0.05)
    )


def fine_fast_steps(rng: Rng) -> Capture:
    f = two_nics(6)
    jobs = [
        job(f, "fast", "ddp", span(0, 3), compute=0.2, gigabytes=0.4, buckets=3, jitter=0.02),
        job(f, "fast-too", "ddp", span(3, 3), compute=0.23, gigabytes=0.5, buckets=4, jitter=0.02),
    ]
    return Capture(fabric=f, jobs=jobs, length=40, exporter=Exporter(idle=0.01))


def fine_one_nic_pipe(rng: Rng) -> Capture:
    f = single(12, gbps=200.0)
    jobs = [
        job(
            f,
            "pipe-1nic",
            "pipeline",
            span(0, 6),
            pp=3,
            compute=near(rng, 2.0),
            activation_mb=64,
            gigabytes=3,
            tied=True,
        ),
        job(f, "fsdp-1nic", "fsdp", span(6, 6), compute=near(rng, 3.0), gigabytes=5, jitter=0.02),
    ]
    return Capture(fabric=f, jobs=jobs, length=80)


# Fine records, one fault in one job.


def fine_slow_gpu(rng: Rng) -> Capture:
    f = dgx(11)
    slow = slow_host(f, rng, job(f, "slow", "ddp", span(0, 6), compute=near(rng, 0.7)))
    return Capture(
        fabric=f, jobs=[slow, job(f, "well", "fsdp", span(6, 5), compute=near(rng, 1.0), gigabytes=8)], length=50
    )


def fine_slow_gpu_fsdp(rng: Rng) -> Capture:
    f = single(11, gbps=200.0)
    slow = slow_host(f, rng, job(f, "slow", "fsdp", span(0, 7), compute=near(rng, 1.5), gigabytes=4))
    well = job(f, "well", "ddp", span(7, 4), compute=near(rng, 0.8), gigabytes=2)
    return Capture(fabric=f, jobs=[slow, well], length=80, exporter=Exporter(idle=0.02))


def fine_slow_host_pipe(rng: Rng) -> Capture:
    f = dgx(12)
    slow = slow_host(f, rng, job(f, "slow", "pipeline", span(0, 8), pp=4, compute=near(rng, 1.4), gigabytes=3))
    well = job(f, "well", "pipeline", span(8, 4), pp=2, compute=near(rng, 1.1))
    return Capture(fabric=f, jobs=[slow, well], length=60)


def fine_slow_nic_ring(rng: Rng) -> Capture:
    f = quad(9)
    slow = slow_nic(f, rng, job(f, "slow", "ddp", span(0, 6), compute=near(rng, 0.5), gigabytes=8, buckets=4))
    well = job(f, "well", "ddp", span(6, 3), compute=near(rng, 0.6), gigabytes=2, buckets=4)
    return Capture(fabric=f, jobs=[slow, well], length=40, merge_gap=50e-6, note="records per slice of a ring")


def fine_slow_nic_pipe(rng: Rng) -> Capture:
    f = quad(12)
    slow = job(
        f, "slow", "pipeline", span(0, 8), pp=4, compute=near(rng, 1.2), activation_mb=400, gigabytes=3, eager=False
    )
    well = job(f, "well", "fsdp", span(8, 4), compute=near(rng, 1.0), gigabytes=5)
    return Capture(fabric=f, jobs=[slow_nic(f, rng, slow), well], length=60)


def fine_slow_nic_experts(rng: Rng) -> Capture:
    f = quad(10)
    slow = slow_nic(
        f, rng, job(f, "slow", "experts", span(0, 6), ep=6, compute=near(rng, 0.6), activation_mb=600, gigabytes=1)
    )
    well = job(f, "well", "experts", span(6, 4), ep=4, compute=near(rng, 0.5), activation_mb=400, gigabytes=1)
    return Capture(fabric=f, jobs=[slow, well], length=50)


def fine_slow_leaf(rng: Rng) -> Capture:
    f = quad(10)
    leaf = f"pod0-rail{int(rng.integers(4))}"
    f.net_faults.append(Slow(members=tuple(f.below(leaf)), factor=float(rng.uniform(2.5, 3.5))))
    jobs = []
    for each in (
        job(f, "a", "fsdp", span(0, 4), compute=near(rng, 0.8), gigabytes=8),
        job(f, "b", "ddp", span(4, 6), compute=near(rng, 0.6), gigabytes=4),
    ):
        below = [f.address(e) for e in f.below(leaf) if e // f.num_nics in each.hosts]
        jobs.append(replace(each, culprit={"kind": "slow_switch", "type": "switch", "id": leaf, "endpoints": below}))
    return Capture(fabric=f, jobs=jobs, length=50)


def fine_hang(rng: Rng) -> Capture:
    f = dgx(9)
    victim = int(rng.integers(0, 5))
    hung = job(
        f, "hangs", "fsdp", span(0, 5), compute=near(rng, 0.9), gigabytes=8, stops_at=near(rng, 25), stopped_host=victim
    )
    well = job(f, "well", "ddp", span(5, 4), compute=near(rng, 0.7))
    return Capture(fabric=f, jobs=[replace(hung, culprit=blame_host(f, victim, "hang")), well], length=70)


def fine_lost_node(rng: Rng) -> Capture:
    f = dgx(9)
    victim, at = int(rng.integers(1, 5)), near(rng, 30)
    first = job(f, "before", "ddp", span(0, 5), compute=near(rng, 0.8), stops_at=at, stopped_host=victim, stop=at + 15)
    rest = tuple(5 if h == victim else h for h in span(0, 5))
    second = replace(first, name="after", hosts=rest, start=at + 30, stops_at=1e9, stopped_host=-1, stop=1e9)
    lost = replace(first, culprit=blame_host(f, victim, "hang|restart"))
    well = job(f, "well", "fsdp", span(6, 3), compute=near(rng, 1.0), gigabytes=8)
    return Capture(fabric=f, jobs=[lost, second, well], length=110)


def fine_uneven_sequences(rng: Rng) -> Capture:
    f = dgx(10)
    uneven = job(f, "uneven", "ddp", span(0, 6), compute=near(rng, 1.0), uneven=float(rng.uniform(0.12, 0.2)))
    endpoints = [f.address(e) for h in span(0, 6) for e in f.endpoints(h)]
    cause = {"kind": "load_imbalance", "type": "job|group", "id": "uneven", "endpoints": endpoints}
    well = job(f, "even", "ddp", span(6, 4), compute=near(rng, 0.8), jitter=0.02)
    return Capture(fabric=f, jobs=[replace(uneven, culprit=cause), well], length=70)


def fine_heavy_last_stage(rng: Rng) -> Capture:
    f = quad(14)
    weights = (1.0, 1.0, 1.0, float(rng.uniform(1.3, 1.5)))
    heavy = job(
        f, "heavy", "pipeline", span(0, 12), pp=4, stage_weights=weights, compute=near(rng, 1.5), microbatches=12
    )
    last = [f.address(e) for h in span(9, 3) for e in f.endpoints(h)]
    heavy = replace(heavy, culprit={"kind": "stage_imbalance", "type": "stage", "id": "3", "endpoints": last})
    return Capture(fabric=f, jobs=[heavy, job(f, "well", "ddp", span(12, 2), compute=near(rng, 0.7))], length=60)


def fine_contention(rng: Rng) -> Capture:
    f = quad(12, rail_leaves=False, pod=4)
    victim = job(f, "victim", "ddp", span(2, 6), compute=near(rng, 0.35), gigabytes=7, buckets=5)
    edges = [f.address(e) for h in (2, 3, 4, 7) for e in f.endpoints(h)]
    cause = {"kind": "contention|slow_link|slow_switch", "type": "switch|link|job", "id": "tor00", "endpoints": edges}
    return Capture(
        fabric=f, jobs=[replace(victim, culprit=cause)], length=70, shuffling=(0, 1, 8, 9, 10, 11),
        crowded=tuple(f.below("tor00")), crowding=float(rng.uniform(2.0, 3.0)), note="a shuffle shares tor00's uplinks",
    )  # fmt: skip


def fine_throttle(rng: Rng) -> Capture:
    f = dgx(10)
    starts = np.cumsum(rng.uniform(14, 20, 5))
    windows = tuple((float(a), float(a + rng.uniform(5, 8))) for a in starts)
    hot = slow_host(f, rng, job(f, "hot", "ddp", span(0, 6), compute=near(rng, 0.7)), factor=1.5, windows=windows)
    well = job(f, "well", "fsdp", span(6, 4), compute=near(rng, 0.9), gigabytes=8)
    return Capture(fabric=f, jobs=[hot, well], length=100)


# Jobs that come, go and pause.


def churn_starts_ends(rng: Rng) -> Capture:
    f = dgx(13)
    jobs = [
        job(f, "steady", "pipeline", span(0, 4), pp=2, compute=near(rng, 1.2)),
        job(f, "ends", "ddp", span(4, 3), compute=near(rng, 0.7), stop=near(rng, 45)),
        job(f, "starts", "fsdp", span(7, 6), compute=near(rng, 1.0), gigabytes=8, start=near(rng, 40)),
    ]
    return Capture(fabric=f, jobs=jobs, length=90)


def churn_evaluations(rng: Rng) -> Capture:
    f = quad(11)
    jobs = [
        job(f, "often", "ddp", span(0, 5), compute=near(rng, 0.6), eval_every=20, eval_seconds=near(rng, 5)),
        job(
            f,
            "seldom",
            "fsdp",
            span(5, 6),
            compute=near(rng, 1.0),
            gigabytes=4,
            eval_every=35,
            eval_seconds=near(rng, 9),
        ),
    ]
    return Capture(fabric=f, jobs=jobs, length=100)


def churn_saves(rng: Rng) -> Capture:
    f = quad(12)
    jobs = [
        job(
            f,
            "blocking",
            "fsdp",
            span(0, 4),
            compute=near(rng, 0.9),
            gigabytes=5,
            save_every=25,
            save_seconds=near(rng, 4),
        ),
        job(f, "beside", "ddp", span(4, 4), compute=near(rng, 0.7), save_every=30),
        job(f, "pipe", "pipeline", span(8, 4), pp=4, compute=near(rng, 1.0), save_every=20, save_seconds=near(rng, 6)),
    ]
    return Capture(fabric=f, jobs=jobs, length=90)


def churn_moves(rng: Rng) -> Capture:
    f = dgx(14)
    leaves, back = near(rng, 40), near(rng, 60)
    first = job(f, "before-move", "fsdp", span(0, 5), compute=near(rng, 0.9), gigabytes=8, stop=leaves)
    second = replace(first, name="after-move", hosts=span(5, 5), start=back, stop=1e9)
    well = job(f, "stays", "ddp", span(10, 4), compute=near(rng, 0.8))
    return Capture(fabric=f, jobs=[first, second, well], length=110)


def churn_grows_shrinks(rng: Rng) -> Capture:
    f = dgx(9)
    first = job(f, "four", "ddp", span(0, 4), compute=near(rng, 0.8), stop=40)
    jobs = [
        first,
        replace(first, name="six", hosts=span(0, 6), start=52, stop=90),
        replace(first, name="five", hosts=span(1, 5), start=100, stop=1e9),
        job(f, "beside", "fsdp", span(6, 3), compute=near(rng, 1.0), gigabytes=6),
    ]
    return Capture(fabric=f, jobs=jobs, length=140)


def churn_in_a_row(rng: Rng) -> Capture:
    f = quad(8)
    jobs = [
        job(f, "first", "ddp", span(0, 4), compute=near(rng, 0.7), stop=near(rng, 40)),
        job(f, "second", "pipeline", span(0, 4), pp=2, compute=near(rng, 1.0), start=near(rng, 65)),
        job(f, "other", "ddp", span(4, 4), compute=near(rng, 0.6), stop=near(rng, 45)),
        job(f, "other-again", "ddp", span(4, 4), compute=near(rng, 0.9), gigabytes=2, start=near(rng, 70)),
    ]
    return Capture(fabric=f, jobs=jobs, length=120, exporter=Exporter(idle=0.05))


def churn_long_steps(rng: Rng) -> Capture:
    f = dgx(7)
    slow = job(f, "long", "pipeline", span(0, 4), pp=4, microbatches=32, compute=near(rng, 13), gigabytes=8)
    wide = job(
        f, "wide", "ddp", span(4, 3), accumulate=16, compute=near(rng, 10), gigabytes=6, eval_every=6, eval_seconds=8
    )
    return Capture(fabric=f, jobs=[slow, wide], length=180)


def churn_joined_midway(rng: Rng) -> Capture:
    f = two_nics(12)
    jobs = [
        job(f, "old", "fsdp", span(0, 7), compute=near(rng, 1.3), gigabytes=3, start=-7.3),
        job(f, "older", "ddp", span(7, 5), compute=near(rng, 0.6), gigabytes=1, start=-3.1, stop=near(rng, 50)),
    ]
    return Capture(fabric=f, jobs=jobs, length=75)


def churn_slow_host_stays(rng: Rng) -> Capture:
    f = dgx(9)
    first = slow_host(f, rng, job(f, "before", "ddp", span(0, 5), compute=near(rng, 0.7), stop=45))
    again = replace(first, name="again", start=near(rng, 62), stop=1e9)
    return Capture(fabric=f, jobs=[first, again, job(f, "well", "ddp", span(5, 4), compute=near(rng, 0.9))], length=115)


# Coarse records.


def trio(rng: Rng, scale: float = 1.0) -> tuple[Fabric, list[Job]]:
    """Three healthy jobs, whose steps are `scale` times longer than usual."""
    f = dgx(13)
    jobs = [
        job(f, "ddp", "ddp", span(0, 4), compute=near(rng, 0.8 * scale), gigabytes=3 * scale),
        job(f, "fsdp", "fsdp", span(4, 3), compute=near(rng, 1.1 * scale), gigabytes=8 * min(scale, 2)),
        job(f, "pipe", "pipeline", span(7, 6), pp=3, compute=near(rng, 1.3 * scale), gigabytes=3 * scale),
    ]
    return f, jobs


def coarse_sampled_100(rng: Rng) -> Capture:
    f, jobs = trio(rng)
    return Capture(fabric=f, jobs=jobs, length=45, exporter=Exporter(one_in=100, idle=0.1, active=1))


def coarse_sampled_1000(rng: Rng) -> Capture:
    f, jobs = trio(rng, 3)
    return Capture(fabric=f, jobs=jobs, length=90, exporter=Exporter(one_in=1000, idle=0.1, active=1, qp=False))


def coarse_sampled_4000(rng: Rng) -> Capture:
    f, jobs = trio(rng, 2)
    return Capture(
        fabric=f, jobs=jobs, length=180, exporter=Exporter(one_in=4000, idle=15, active=60, round_to=1e-3, qp=False)
    )


def coarse_15s_60s(rng: Rng) -> Capture:
    f, jobs = trio(rng)
    return Capture(fabric=f, jobs=jobs, length=170, exporter=Exporter(idle=15, active=60, round_to=1e-3))


def coarse_seconds(rng: Rng) -> Capture:
    f, jobs = trio(rng, 8)
    return Capture(fabric=f, jobs=jobs, length=180, exporter=Exporter(idle=1, active=5, round_to=1))


def coarse_minute(rng: Rng) -> Capture:
    f, jobs = trio(rng)
    return Capture(fabric=f, jobs=jobs, length=180, exporter=Exporter(sums=60))


def coarse_double(rng: Rng) -> Capture:
    f = single(11, gbps=200.0)
    jobs = [
        job(f, "ddp", "ddp", span(0, 6), compute=near(rng, 0.8), gigabytes=2),
        job(f, "fsdp", "fsdp", span(6, 5), compute=near(rng, 2.0), gigabytes=4),
    ]
    return Capture(fabric=f, jobs=jobs, length=80, exporter=Exporter(idle=0.05, double=True, lost=0.01, clocks=1e-3))


def coarse_lost(rng: Rng) -> Capture:
    f, jobs = trio(rng)
    return Capture(fabric=f, jobs=jobs, length=50, exporter=Exporter(lost=0.05, clocks=2e-3))


def coarse_slow_gpu_lost(rng: Rng) -> Capture:
    f, jobs = trio(rng)
    jobs[0] = slow_host(f, rng, jobs[0], factor=1.6)
    return Capture(fabric=f, jobs=jobs, length=60, exporter=Exporter(idle=0.05, active=1, lost=0.03, clocks=1e-3))


def coarse_slow_host_sampled(rng: Rng) -> Capture:
    f, jobs = trio(rng, 3)
    jobs[0] = slow_host(f, rng, jobs[0], factor=1.8)
    note = "a slow host may be beyond what sampled records show"
    return Capture(fabric=f, jobs=jobs, length=100, exporter=Exporter(one_in=200, idle=0.1, active=1), note=note)


KINDS: dict[str, Callable[[Rng], Capture]] = {
    name: function for name, function in globals().items() if name.startswith(("fine_", "churn_", "coarse_"))
}
