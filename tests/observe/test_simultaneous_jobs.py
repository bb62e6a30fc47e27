"""Jobs on the same hosts at the same time, told apart by the connections that each of them makes."""

from __future__ import annotations

import numpy as np
import polars as pl
from simultaneous_jobs import HOSTS, MS, clock, ring

from prism.observe.diagnose import MIXED, diagnose
from prism.observe.jobs.tenants import part_simultaneous_jobs
from prism.observe.traffic.preparation import prepare_traffic


def test_two_jobs_on_the_same_hosts_are_told_apart_by_their_connections() -> None:
    flows = pl.concat([ring(clock(310, 60, 0), 5000, 8_000_000, 1), ring(clock(400, 50, 2), 6000, 3_000_000, 3)])
    found = diagnose(flows.sort("start_ns"))
    assert [len(job.endpoints) for job in found.jobs] == [HOSTS, HOSTS]


def test_two_jobs_that_send_as_much_in_a_step_are_told_apart_as_well() -> None:
    flows = pl.concat([ring(clock(310, 60, 0), 5000, 8_000_000, 1), ring(clock(400, 50, 2), 6000, 8_000_000, 3)])
    assert len(diagnose(flows.sort("start_ns")).jobs) == 2


def test_groups_of_one_job_are_not_told_apart() -> None:
    steps = clock(400, 50, 0)
    of_model = np.concatenate([steps - 200 * MS, steps - 100 * MS])  # twice in each step
    flows = pl.concat([ring(steps, 5000, 8_000_000, 1), ring(np.sort(of_model), 6000, 3_000_000, 2)]).sort("start_ns")
    traffic = prepare_traffic(flows)
    assert part_simultaneous_jobs(traffic) is traffic


def test_one_job_with_a_second_ring_the_other_way_stays_one() -> None:
    steps = clock(400, 50, 0)
    flows = pl.concat([ring(steps, 5000, 8_000_000, 1), ring(steps + 150 * MS, 6000, 3_000_000, 2, way=-1)])
    assert len(diagnose(flows.sort("start_ns")).jobs) == 1


def test_of_too_few_steps_it_is_said_that_they_may_be_several_jobs() -> None:
    short = clock(40, 60, 2) + 5 * 400 * MS
    flows = pl.concat([ring(clock(400, 50, 0), 5000, 8_000_000, 1), ring(short, 6000, 3_000_000, 3)])
    (job,) = diagnose(flows.sort("start_ns")).jobs
    assert MIXED in job.notes
    assert job.layout.confidence <= 0.5
