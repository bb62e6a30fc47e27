"""Who answers late is who computes late: those who wait for it answer as ever once it has come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from made_jobs import Fault, MadeJob, write_job

from prism.observe.diagnose import open_case, study_jobs
from prism.observe.findings.case import Case
from prism.observe.findings.response_times import measure_answers
from prism.observe.jobs.grouping import recognise_jobs
from prism.observe.traffic.preparation import prepare_traffic

RING = MadeJob(dp=16, pp=1, tp=1, gpus_per_host=1, steps=30, meets=False)


def open_only_case(job: MadeJob) -> Case:
    traffic = prepare_traffic(*write_job(job))
    (found,) = study_jobs(traffic, recognise_jobs(traffic))
    return open_case(traffic, found, int(traffic.messages["end_ns"].to_numpy().max()))


def test_only_the_late_host_of_a_ring_answers_late() -> None:
    case = open_only_case(replace(RING, fault=Fault(kind="late_host", place=8, factor=1.5, first=12, last=18)))
    answers = measure_answers(case)
    late = {case.host(int(e)) for e, row in zip(answers.endpoints, answers.out, strict=True) if row[13:17].min() > 0.2}
    assert late == {"h8"}
    seconds = np.nanmedian(answers.extra_s[answers.endpoints.tolist().index(case.addresses.index("10.9.8.1")), 13:17])
    longer = float(np.median(case.length_s[13:17]) - np.median(case.length_s[:10]))
    assert abs(seconds / longer - 1) < 0.2


def test_nobody_answers_late_in_a_healthy_ring() -> None:
    answers = measure_answers(open_only_case(RING))
    known = answers.out[~np.isnan(answers.out)]
    assert len(known) and np.quantile(known, 0.99) < 0.1


def test_shifting_time_changes_no_answer() -> None:
    flows, topology = write_job(RING)
    later = flows.with_columns(pl.col("start_ns", "end_ns") + 7_654_321_000)
    tables = []
    for each in (flows, later):
        traffic = prepare_traffic(each, topology)
        (found,) = study_jobs(traffic, recognise_jobs(traffic))
        tables.append(measure_answers(open_case(traffic, found, int(traffic.messages["end_ns"].to_numpy().max()))).out)
    assert np.allclose(*tables, equal_nan=True)
