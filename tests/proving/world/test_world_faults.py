"""Every planted fault costs its job time, so that there is something to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from proving.benchmarks.world.captures import Capture
from proving.benchmarks.world.life import Job, live
from proving.benchmarks.world.make import CATALOGUE
from proving.benchmarks.world.sharing import run_alone, run_together


def step_seconds(capture: Capture, jobs: list[Job], together: bool) -> list[float]:
    """The median step of each job in its first 15 seconds."""
    for job in jobs:
        job.runs.clear()
    running = [live(job, capture.fabric, np.random.default_rng(0), 15) for job in jobs]
    if together:
        run_together(running)
    else:
        for program in running:
            run_alone(program)
    return [float(np.median([end - begin for begin, end in job.runs[0].steps])) for job in jobs]


def heal(capture: Capture, jobs: list[Job]) -> None:
    """Take every fault out again."""
    for address, share in capture.fabric.slowed.items():
        capture.fabric.speed[address] /= share
    capture.fabric.polarised.clear()
    for job in jobs:
        job.health = replace(job.health, slow={})
        program = job.phases[0].program
        for name in ("heavy", "hot"):
            if hasattr(program, name):
                setattr(program, name, {})


@pytest.mark.slow
@pytest.mark.parametrize("make", CATALOGUE, ids=lambda make: make.__name__)
def test_a_planted_fault_costs_at_least_a_twentieth_of_the_step(make):
    capture = make(np.random.default_rng(5))
    hurt = [job for job in capture.jobs if job.culprit and job.culprit.kind != "hang"]
    slow = step_seconds(capture, hurt, together=capture.fabric.config.shared_uplinks)
    heal(capture, hurt)
    healthy = step_seconds(capture, hurt, together=False)
    for job, before, after in zip(hurt, healthy, slow, strict=True):
        assert after > 1.05 * before, job.name
