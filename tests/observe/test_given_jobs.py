"""What an operator knows of jobs is taken, and contradictions are told; the ledger of a job's seconds."""

from __future__ import annotations

import polars as pl
import pytest
from test_delays import ring_flows

from prism.observe.delays.ledger import keep_ledger
from prism.observe.diagnose import diagnose
from prism.records.findings import Culprit, Finding
from prism.records.scheduled import ScheduledJob

BEGIN = 10**18
S = 10**9


def two_jobs() -> tuple[pl.DataFrame, pl.DataFrame]:
    """One job on host-0 to host-2, and one after it on the same hosts that sends the same."""
    flows, topology = ring_flows(3)
    later, _ = ring_flows(3, begin_s=float(flows["end_ns"].max() - BEGIN) / S + 1.0)  # type: ignore[operator]
    return pl.concat([flows, later]), topology


def hosts(*numbers: int) -> tuple[str, ...]:
    return tuple(f"host-{n}" for n in numbers)


def test_jobs_that_follow_each_other_are_those_that_were_given():
    flows, topology = two_jobs()
    cut = (flows["start_ns"][0] + flows["end_ns"].max()) // 2
    given = [
        ScheduledJob(name="7 llama", hosts=hosts(0, 1, 2), start_ns=BEGIN, end_ns=cut, gpus=6, running=False),
        ScheduledJob(name="8 llama", hosts=hosts(0, 1, 2), start_ns=cut, gpus=6, running=True),
    ]
    found = diagnose(flows, topology, given=given)
    assert len(diagnose(flows, topology).jobs) == 1
    told = {job.observed.given.name: job for job in found.jobs if job.observed.given is not None}
    assert set(told) == {"7 llama", "8 llama"}
    assert told["7 llama"].life.state == "ended"
    assert told["7 llama"].life.ended_ns == cut
    assert abs(told["7 llama"].steps.height - told["8 llama"].steps.height) <= 1
    assert told["8 llama"].to_json()["given"]["gpus"] == 6


def test_a_declared_layout_is_taken_and_told_where_records_are_sure_of_another():
    flows, topology = ring_flows(4)
    given = ScheduledJob(name="a", hosts=hosts(0, 1, 2, 3), gpus=8, degrees={"pp": 4})
    job = diagnose(flows, topology, given=[given]).jobs[0]
    assert (job.layout.pp.value, job.layout.dp.value, job.layout.confidence) == (4, 2, 1.0)
    assert any("pp=4 is declared, but its traffic looks like" in note for note in job.notes)
    alike = ScheduledJob(name="a", hosts=hosts(0, 1, 2, 3), gpus=8, degrees={"dp": 8})
    assert not any("declared" in note for note in diagnose(flows, topology, given=[alike]).jobs[0].notes)


def test_hosts_without_traffic_strays_and_shared_hosts_are_told():
    flows, topology = ring_flows(4)
    extra = ScheduledJob(name="a", hosts=hosts(0, 1, 2, 3, 7), gpus=8)
    assert any("host-7 of a send nothing" in note for note in diagnose(flows, topology, given=[extra]).notes)
    halves = [ScheduledJob(name="a", hosts=hosts(0, 1)), ScheduledJob(name="b", hosts=hosts(2, 3))]
    assert any("exchange as much with b" in note for note in diagnose(flows, topology, given=halves).notes)
    both = [ScheduledJob(name="a", hosts=hosts(0, 1, 2, 3)), ScheduledJob(name="b", hosts=hosts(3))]
    found = diagnose(flows, topology, given=both)
    assert any("a, b use the same hosts" in note for note in found.notes)
    assert len(found.jobs) == 1
    away = diagnose(flows, topology, given=[ScheduledJob(name="c", hosts=("elsewhere",))])
    assert any("no flow touches the hosts of c" in note for note in away.notes)


@pytest.mark.parametrize(("running", "told"), [(True, ["stall"]), (False, [])])
def test_a_silent_job_is_a_stall_if_its_scheduler_says_that_it_runs(running: bool, told: list[str]):
    flows, topology = ring_flows(3)
    until = int(flows["end_ns"].max()) + 60 * S  # type: ignore[arg-type]
    given = ScheduledJob(name="a", hosts=hosts(0, 1, 2), start_ns=BEGIN, end_ns=None if running else until - 59 * S,
                         running=running)  # fmt: skip
    found = diagnose(flows, topology, given=[given], until_ns=until)
    assert [f.kind for f in found.findings] == told
    assert found.jobs[0].life.state == ("stopped" if running else "ended")
    if told:
        assert found.findings[0].score > 0.9
        assert found.jobs[0].seconds.stall == pytest.approx(60, abs=1)


def test_a_job_that_fell_silent_without_a_scheduler_is_no_finding_of_a_file():
    flows, topology = ring_flows(3)
    other, more = ring_flows(3, first=10, begin_s=40.0)
    found = diagnose(pl.concat([flows, other]), pl.concat([topology, more]))
    assert [f.kind for f in found.findings] == []


def test_seconds_are_step_save_evaluation_pause_and_stall_and_add_up_to_the_life():
    def spans(*parts: tuple[float, float]) -> pl.DataFrame:
        schema = {"start_ns": pl.Int64, "end_ns": pl.Int64}
        return pl.DataFrame([(int(a * S), int(b * S)) for a, b in parts], schema=schema, orient="row")

    steps = spans(*((i, i + 1) for i in range(1, 5)), *((i, i + 1) for i in range(8, 10)), (14, 15), (18, 19))
    messages = spans(*((i / 4, i / 4 + 0.2) for i in range(2, 20)), (5.5, 7.8), (8, 9.9), (14, 14.9), (18, 18.9))
    saves = spans((10, 12.5))
    stall = Finding(kind="stall", job="j", culprit=Culprit(type="job", id="j"), start_ns=15 * S, end_ns=17 * S,
                    lost_gpu_seconds=1, score=1, evidence="")  # fmt: skip
    found = keep_ledger(messages, steps, saves, [stall], (0, 20 * S)).to_json()
    assert sum(found.values()) == pytest.approx(20)
    assert found["stall"] == pytest.approx(2)
    assert found["save"] == pytest.approx(4)
    assert found["evaluation"] == pytest.approx(3)
    assert found["pause"] == pytest.approx(20 - 2 - 4 - 3 - found["step"])
    assert keep_ledger(messages, steps.clear(), saves, [], (0, 20 * S)).to_json()["unknown"] == 20


def test_every_job_of_a_diagnosis_has_seconds_that_add_up_to_its_life():
    found = diagnose(*ring_flows(4, stall=(25, 30.0)))
    job = found.jobs[0].to_json()
    until = found.traffic.messages["end_ns"].max()
    assert sum(job["seconds"].values()) == pytest.approx((until - job["started_ns"]) / S, abs=1e-3)
    assert job["seconds"]["stall"] == pytest.approx(30, abs=1)
