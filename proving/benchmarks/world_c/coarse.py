"""Captures with coarse records."""

from __future__ import annotations

from .capture import Capture
from .exporters import Exporter
from .fabric import Fabric
from .jobs import Job
from .sites import Rng, dgx, job, near, single, slow_host, span


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
