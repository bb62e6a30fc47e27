"""Jobs end, pause, stop and follow each other on the same hosts, and each is told as what it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from plain_jobs import Made, PlainJob, make_jobs

from prism.observe import Diagnosis, diagnose
from prism.observe.jobs.lives import SuccessionConfig, _is_same, _Job, _keeps_members

SECOND = 10**9
DDP = PlainJob(
    dp=16, gpus_per_host=1, microbatches=1, forward_s=0.1, idle_s=0.05, buckets=3, steps=30, queue_pairs=1, seed=1
)
PIPE = PlainJob(dp=2, pp=4, microbatches=6, steps=30, queue_pairs=1, seed=2)
FSDP = PlainJob(dp=16, fsdp=True, layers=6, steps=30, queue_pairs=1, seed=3)
# Runs on when the others are over, so that their silence shows.
NEIGHBOUR = PlainJob(
    dp=8, gpus_per_host=1, microbatches=1, forward_s=0.1, steps=140, first_host=60, queue_pairs=1, seed=9
)


def look(made: Made) -> Diagnosis:
    return diagnose(made.flows, made.topology)


def of_hosts(found: Diagnosis, job: PlainJob) -> list[int]:
    """The jobs found on the hosts of a made one, the earliest first."""
    hosts = {
        f"10.{h // 200}.{h % 200}." for h in range(job.first_host, job.first_host + -(-job.ranks // job.gpus_per_host))
    }
    own = [i for i, j in enumerate(found.jobs) if any(j.endpoints[0].startswith(h) for h in hosts)]
    return sorted(own, key=lambda i: found.jobs[i].life.started_ns)


@pytest.mark.parametrize("job", [DDP, PIPE, FSDP], ids=["ddp", "pipe", "fsdp"])
def test_a_job_that_ends_before_the_capture_does_is_no_finding(job: PlainJob) -> None:
    found = look(make_jobs(job, NEIGHBOUR))
    (ended,) = of_hosts(found, job)
    assert found.jobs[ended].life.state == "ended"
    assert found.jobs[ended].life.ended_ns == found.jobs[ended].observed.last_ns
    assert found.findings == ()
    document = found.to_json()["jobs"][ended]
    assert document["state"] == "ended" and document["started_ns"] < document["ended_ns"]


def test_a_job_that_runs_until_the_capture_ends_is_running() -> None:
    found = look(make_jobs(NEIGHBOUR))
    assert found.jobs[0].life.state == "running" and found.jobs[0].life.ended_ns is None


def test_a_pipeline_that_breaks_off_in_the_middle_of_a_step_has_stopped() -> None:
    made = make_jobs(PIPE, NEIGHBOUR)
    own = made.flows.filter(pl.col("src").str.contains(r"^10\.0\.[0-3]\."))
    # Stage 2 stops after two of six forwards of step 20: what depends on it never comes.
    step = sorted(own.filter(pl.col("src") == "10.0.1.1")["start_ns"].to_list())
    moment = step[2 * len(step) // 3] + 30_000_000
    late = pl.col("src").str.contains(r"^10\.0\.[0-3]\.") & (pl.col("start_ns") > moment)
    found = diagnose(made.flows.filter(~late), made.topology)
    (stopped,) = of_hosts(found, PIPE)
    assert found.jobs[stopped].life.state == "stopped"
    assert {f.kind for f in found.findings if f.job == found.jobs[stopped].id} == {"hang"}


@pytest.mark.parametrize("change", [{"forward_s": 0.12}, {"size": 1.6}], ids=["slower", "larger"])
def test_two_jobs_one_after_the_other_on_the_same_hosts_are_two(change: dict[str, float]) -> None:
    first, second = DDP, replace(DDP, start_s=20.0, seed=5, **change)  # type: ignore[arg-type]
    made = make_jobs(first, second, NEIGHBOUR)
    found = look(made)
    own = [found.jobs[i] for i in of_hosts(found, first)]
    assert len(own) == 2
    assert [len(job.endpoints) for job in own] == [first.ranks, second.ranks]
    assert all(abs(job.steps.height - 30) <= 1 for job in own)
    assert own[0].life.state == "ended"
    assert own[0].observed.last_ns < own[1].observed.first_ns
    assert found.findings == ()


def test_a_job_that_pauses_and_goes_on_as_before_is_one() -> None:
    again = replace(DDP, start_s=20.0, seed=5)
    found = look(make_jobs(DDP, again, NEIGHBOUR))
    own = [found.jobs[i] for i in of_hosts(found, DDP)]
    assert len(own) == 1
    assert abs(own[0].steps.height - 60) <= 2


@pytest.mark.parametrize("ranks", [8, 12, 24])
def test_a_job_that_goes_on_with_other_hosts_keeps_its_steps(ranks: int) -> None:
    found = look(make_jobs(DDP, replace(DDP, dp=ranks, start_s=14.0, seed=5), NEIGHBOUR))
    own = [found.jobs[i] for i in of_hosts(found, DDP)]
    assert len(own) == 1
    assert own[0].steps.height >= 57
    assert len(own[0].endpoints) == max(ranks, 16)
    early, late = own[0].to_json()["phases"]
    assert (len(early["endpoints"]), len(late["endpoints"])) == (16, ranks)
    assert early["layout"]["dp"] * ranks == late["layout"]["dp"] * 16  # ranks that share a NIC count, too
    assert own[0].life.started_ns == early["started_ns"] < early["ended_ns"] < late["started_ns"] < late["ended_ns"]
    after_s = (late["started_ns"] - early["started_ns"]) / 1e9
    assert own[0].notes[0] == f"it went on with other hosts: from 16 endpoints to {ranks} after {after_s:.1f} s"
    assert "phases" not in next(j for j in found.jobs if j is not own[0]).to_json()
    assert found.findings == ()


def test_jobs_that_share_only_some_hosts_in_turn_are_told_apart() -> None:
    moved = replace(DDP, first_host=8, start_s=20.0, seed=5, size=1.4)
    found = look(make_jobs(DDP, moved, NEIGHBOUR))
    assert sorted(len(job.endpoints) for job in found.jobs) == [8, 16, 16]
    assert found.findings == ()


@pytest.mark.parametrize(("ends", "repeats", "same"), [(4, False, True), (4, True, False), (12, False, False)])
def test_a_few_transfers_that_do_not_repeat_belong_to_the_job_of_their_endpoints(
    ends: int, repeats: bool, same: bool
) -> None:
    def make_job(number: int, endpoints: range, sizes: dict[int, int], repeats: bool) -> _Job:
        return _Job(
            number=number, begin_ns=number * SECOND, endpoints=np.array(endpoints), rests={}, sizes=sizes,
            length_ns=SECOND, repeats=repeats,
        )  # fmt: skip

    before = make_job(0, range(64), {190: 1000}, True)
    after = make_job(1, range(60, 60 + ends), {160: 2}, repeats)
    config = SuccessionConfig()
    assert (_is_same(before, after, config) and _keeps_members(before, after, config)) == same
