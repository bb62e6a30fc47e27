"""Two jobs on the same hosts keep names, steps and findings of their own from look to look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from simultaneous_jobs import MS, clock, ring
from watch_parts import FrameSource, ScriptedAnalyst, make_finding, make_flows, make_report

from prism.observe.watch.analysis import look_at
from prism.observe.watch.memory import JobMemory
from prism.observe.watch.state import SeenJob, WatchState, WindowReport, load_state
from prism.observe.watch.stream import Watch, WatchConfig

HOSTS = ["10.0.0.1", "10.0.0.2"]
LONG = ring(clock(400, 120, 0), 6000, 8_000_000, 1)
SHORT = ring(clock(310, 155, 2), 5000, 3_000_000, 3)


def see(until_s: float, **ports: list[str]) -> WindowReport:
    """A look that sees jobs on the same hosts, each with its ports, in this order."""
    report = make_report(until_s, jobs={f"job-{i + 1}": HOSTS for i in range(len(ports))})
    jobs = [
        replace(job, ports=tuple(own), step_s=float(len(name)))
        for job, (name, own) in zip(report.jobs, ports.items(), strict=True)
    ]
    return replace(report, jobs=tuple(jobs))


def test_jobs_on_the_same_hosts_keep_their_names_when_their_order_changes() -> None:
    state = WatchState(warm_up_ns=0)
    state.handle(see(1, a=["5000", "5001"], bb=["6000", "6001"]))
    swapped = see(2, bb=["6000", "6001"], a=["5000", "5002"])
    state.handle(replace(swapped, findings=(make_finding(job="job-1"),)), final=True)
    assert {name: job.step_s for name, job in state.jobs.items()} == {"job-1": 1.0, "job-2": 2.0}
    assert [finding.job for finding in state.findings] == ["job-2"]


def test_a_job_keeps_its_name_when_another_joins_its_hosts_and_sends_more(tmp_path: Path) -> None:
    state = WatchState(warm_up_ns=0)
    state.handle(see(1, a=["5000"]))
    state.save(tmp_path / "state.json")
    state = load_state(tmp_path / "state.json")
    state.handle(see(2, mixed=["5000", "6000", "6001"]))
    state.handle(see(3, bb=["6000", "6001"], a=["5000"]))
    assert {name: job.step_s for name, job in state.jobs.items()} == {"job-1": 1.0, "job-2": 2.0}


def test_metrics_tell_two_jobs_on_the_same_hosts() -> None:
    report = see(30, a=["5000"], bb=["6000"])
    watch = Watch(
        FrameSource(make_flows([1.0, 30.0])), None, WatchConfig(), [].append,
        analyst=ScriptedAnalyst(lambda *_: report),
    )  # fmt: skip
    watch.run(lambda: False)
    assert watch.status().jobs == {"job-1": (2, 1.0), "job-2": (2, 2.0)}


def lengths(jobs: tuple[SeenJob, ...]) -> list[float]:
    return [round(job.step_s or 0.0, 3) for job in jobs]


def test_a_memory_remembers_each_of_two_jobs_on_the_same_hosts() -> None:
    flows, memory = pl.concat([LONG, SHORT]).sort("start_ns"), JobMemory()
    until = int(flows["end_ns"].to_numpy().max())
    fresh = look_at(flows, None, until)
    assert len(fresh.jobs) == 2 and len({job.ports for job in fresh.jobs}) == 2
    for _ in range(3):
        assert lengths(look_at(flows, None, until, memory).jobs) == lengths(fresh.jobs)
    assert len(memory._jobs) == 2


def test_a_replayed_job_keeps_its_name_when_another_joins_it() -> None:
    joined = LONG.filter(pl.col("start_ns") >= int(LONG["start_ns"].to_numpy().min()) + 16_000 * MS)
    flows = pl.concat([SHORT, joined]).sort("start_ns")
    begin, end = (int(flows["start_ns"].to_numpy()[i]) for i in (0, -1))
    state, memory, seen = WatchState(), JobMemory(), []
    for until in range(begin + 14_000 * MS, end, 6_000 * MS):
        shown = flows.filter((pl.col("end_ns") <= until) & (pl.col("start_ns") > until - 20_000 * MS))
        state.handle(look_at(shown, None, until, memory))
        seen.append({name: job.step_s for name, job in state.jobs.items()})
    assert list(seen[0]) == ["job-1"] and list(seen[-1]) == ["job-1", "job-2"]
    assert np.isclose(seen[-1]["job-1"], seen[0]["job-1"], rtol=0.1)
    assert {round(s, 1) for s in seen[-1].values()} == {0.3, 0.4}
