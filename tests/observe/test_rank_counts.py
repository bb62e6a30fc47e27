"""How many ranks a job has where several may be behind one NIC."""

from __future__ import annotations

from functools import partial

import pytest
from plain_jobs import PlainJob, make_jobs

from prism.observe.diagnose import diagnose, study_jobs

DDP = PlainJob(
    dp=16, gpus_per_host=1, microbatches=1, forward_s=0.1, idle_s=0.05, buckets=3, steps=30, queue_pairs=1, seed=1
)


@pytest.mark.parametrize(
    ("gpus_per_host", "dp", "least", "most", "other"),
    [(None, 128, 0.7, 0.8, [16]), (8, 128, 0.9, 1.0, []), (1, 16, 0.9, 1.0, [])],
)
def test_hosts_with_one_fast_nic_usually_have_eight_gpus_which_is_less_sure_than_what_is_stated(
    gpus_per_host: int | None, dp: int, least: float, most: float, other: list[int]
) -> None:
    made = make_jobs(DDP)
    (job,) = diagnose(made.flows, made.topology, study=partial(study_jobs, gpus_per_host=gpus_per_host)).jobs
    document = job.layout.to_json()
    assert document["dp"] == dp and least < document["confidence"] < most
    unsplit = [a for a in document["alternatives"] if (a["tp"], a["cp"], a["pp"]) == (1, 1, 1)]
    assert [a["dp"] for a in unsplit if a["probability"] > 0.1] == other
