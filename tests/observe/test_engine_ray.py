"""Jobs spread over Ray come out as they do here."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.errors import BadConfigError
from prism.lab.scenarios import ScenarioRun, load_scenario, make_scenario
from prism.observe import diagnose
from prism.observe.diagnose import study_jobs
from prism.observe.engine_ray import _start, diagnose_on_ray, part_of
from prism.observe.jobs.grouping import recognise_jobs
from prism.observe.traffic.preparation import prepare_traffic


@pytest.fixture(scope="module")
def made() -> ScenarioRun:
    return make_scenario(load_scenario("two-tenants-128"), 0)


def test_a_jobs_part_of_the_traffic_is_all_that_studying_it_needs(made: ScenarioRun) -> None:
    traffic = prepare_traffic(made.flows, made.topology)
    jobs = recognise_jobs(traffic)
    assert len(jobs) == 2
    for job in jobs:
        part = part_of(traffic, job)
        assert part.messages.height < traffic.messages.height
        (alone,), (whole,) = study_jobs(part, [job]), study_jobs(traffic, [job])
        assert alone.to_json() == whole.to_json()


def test_a_part_holds_the_rows_of_its_pairs_in_order(made: ScenarioRun) -> None:
    traffic = prepare_traffic(made.flows, made.topology)
    job = recognise_jobs(traffic)[0]
    part = part_of(traffic, job)
    some = job.pairs[:: max(1, len(job.pairs) // 5)]
    assert part.messages[part.rows_of(some)].equals(traffic.messages[traffic.rows_of(some)])
    for pairs in (some, job.pairs, job.pairs[::-1], job.pairs[:0]):
        assert traffic.messages_of(pairs).equals(traffic.messages[traffic.rows_of(pairs)])
    others = np.setdiff1d(np.arange(traffic.pairs.height), np.union1d(job.pairs, job.storage_pairs))
    assert len(part.rows_of(others)) == 0


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_same_document(made: ScenarioRun) -> None:
    pytest.importorskip("ray")
    here = diagnose(made.flows, made.topology).to_json()
    assert diagnose_on_ray(made.flows, made.topology).to_json() == here
    assert len(here["jobs"]) == 2


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_a_ray_that_is_not_there_is_one_line() -> None:
    pytest.importorskip("ray")
    with pytest.raises(BadConfigError, match="--ray-address"):
        diagnose_on_ray(pl.DataFrame(), address="127.0.0.1:1")


class SlowRay:
    """Stands in for Ray on a machine so busy that its node does not start in time."""

    def __init__(self, slow_starts: int, error: str = "The current node timed out during startup.") -> None:
        self.slow_starts, self.error, self.starts = slow_starts, error, 0

    def init(self, **settings: object) -> None:
        self.starts += 1
        if self.starts <= self.slow_starts:
            raise Exception(self.error)

    def shutdown(self) -> None:
        pass


def test_a_node_that_does_not_start_in_time_is_started_once_more_and_then_told_in_one_line() -> None:
    ray = SlowRay(1)
    _start(ray, {}, "this machine")
    assert ray.starts == 2
    for slow, starts in ((SlowRay(9), 2), (SlowRay(9, "no space left"), 1)):
        with pytest.raises(BadConfigError, match=r"Ray at this machine: (The current node timed out|no space left)"):
            _start(slow, {}, "this machine")
        assert slow.starts == starts
