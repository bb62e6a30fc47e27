"""Captures of jobs that come, go and pause."""

from __future__ import annotations

from dataclasses import replace

from .capture import Capture
from .exporters import Exporter
from .sites import Rng, dgx, job, near, quad, slow_host, span, two_nics


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
