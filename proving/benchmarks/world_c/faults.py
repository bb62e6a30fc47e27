"""Captures with fine records and one fault in a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .capture import Capture
from .exporters import Exporter
from .fabric import Slow
from .sites import Rng, blame_host, dgx, job, near, quad, single, slow_host, slow_nic, span


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
