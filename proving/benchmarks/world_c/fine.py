"""Captures with fine records and nothing wrong."""

from __future__ import annotations

from .capture import Capture
from .exporters import Exporter
from .sites import Rng, dgx, job, near, quad, single, span, two_nics


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
