"""The supervisor's decisions on hosts: who is struck, left out, moved to, and when the next attempt may start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_launcher import FakeLauncher
from test_supervisor_decisions import EVERY, FLEET, fail, kinds, launches, running, verdict

from prism.recover.supervise import events
from prism.recover.supervise.actions import Finish, Kill, Launch, Notify, Shadow
from prism.recover.supervise.config import ExamineSettings, SuperviseConfig
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.launchers import Look, first_to_fail
from prism.recover.supervise.restarts import RestartPolicy
from prism.recover.supervise.runner import Supervisor, Tools
from prism.recover.supervise.state import JobState, Phase

UNTESTED = ExamineSettings(enabled=False)
STRICT = replace(SuperviseConfig(), hosts=replace(FLEET, strikes=1), examine=UNTESTED)


def corrupted(config: SuperviseConfig, *, proven: bool = True) -> tuple[JobState, list]:
    """A run with a checkpoint of step 20 in which n2 computed wrong numbers after step 25, and what was answered."""
    job = running(config)
    job.handle(events.Saved(now_s=20.0, step=20))
    job.handle(events.Saved(now_s=30.0, step=30))
    found = events.Corrupted(now_s=31.0, step=30, last_clean_step=25, hosts=("n2",), proven=proven, why="rank 1 lies")
    return job, job.handle(found)


def test_after_wrong_numbers_the_run_goes_back_to_a_checkpoint_before_them_without_the_host() -> None:
    job, answer = corrupted(replace(SuperviseConfig(), hosts=FLEET))
    assert kinds(answer) == [Notify, Notify, Kill] and answer[-1].grace_s == 0.0
    after = job.handle(events.Exited(now_s=32.0, code=-9))
    assert launches(after)[0].resume_step == 20 and "n2" not in launches(after)[0].hosts
    assert job.failures[-1].host == "n2"


def test_without_proof_of_one_rank_no_host_is_left_out() -> None:
    job, answer = corrupted(replace(SuperviseConfig(), hosts=FLEET), proven=False)
    assert kinds(answer) == [Notify, Kill]
    assert job.book.cordoned() == () and job.failures[-1].host is None


def test_wrong_numbers_before_the_first_checkpoint_are_reported_and_left_alone() -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET))
    job.handle(events.Saved(now_s=30.0, step=30))
    early = events.Corrupted(now_s=31.0, step=30, last_clean_step=29, hosts=("n2",), proven=True, why="rank 1 lies")
    told = job.handle(early)
    assert kinds(told) == [Shadow, Notify] and told[1].level == "page" and job.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("act", "words"), [(False, "would go back to step 10 (--act-on corruption)"), (True, "no checkpoint is older")]
)
def test_people_are_told_why_a_run_with_wrong_numbers_goes_on(act: bool, words: str) -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET), act_on=EVERY if act else ())
    job.handle(events.Saved(now_s=30.0, step=10 if not act else 30))
    lies = events.Corrupted(now_s=31.0, step=30, last_clean_step=20, hosts=("n2",), proven=True, why="rank 1 lies")
    judged, told = job.handle(lies)
    assert words in judged.text and "left alone" in told.text


def test_a_run_that_fails_at_step_zero_again_has_gained_nothing_however_long_it_lived() -> None:
    job = running(replace(SuperviseConfig(), restarts=RestartPolicy(backoff_s=0.0)), steps=0)
    for at_s in (50_000.0, 100_000.0):
        job.handle(events.StepDone(now_s=at_s - 1, step=0))
        fail(job, at_s, verdict())
    assert [failure.gained for failure in job.failures] == [True, False]


def test_a_restart_after_wrong_numbers_waits_as_long_as_after_any_other_failure() -> None:
    policy = RestartPolicy(backoff_s=500.0, max_backoff_s=10_000.0)
    job, _ = corrupted(replace(SuperviseConfig(), hosts=FLEET, restarts=policy))
    now_s = 32.0
    while not (answer := job.handle(events.Exited(now_s=now_s, code=-9))) or launches(answer):
        job.handle(events.Saved(now_s=now_s + 1, step=20))
        job.handle(events.StepDone(now_s=now_s + 2, step=21, loss=1.0))
        again = events.Corrupted(now_s=now_s + 3, step=21, last_clean_step=20, hosts=("n3",), proven=False, why="again")
        job.handle(again)
        now_s += 4.0
        assert now_s < 100.0, "restarts without a new step must wait at some time"
    assert job.phase is Phase.WAITING and job.due_s > now_s
    assert launches(job.handle(events.Tick(now_s=job.due_s - 0.1))) == []
    assert len(launches(job.handle(events.Tick(now_s=job.due_s)))) == 1


def test_a_budget_that_is_used_up_ends_a_run_whose_numbers_stay_wrong() -> None:
    policy = RestartPolicy(max_restarts=20)
    job, _ = corrupted(replace(SuperviseConfig(), hosts=FLEET, restarts=policy))
    job.failures[:] = [replace(job.failures[-1], gained=False)] * 50
    ended = job.handle(events.Exited(now_s=32.0, code=-9))
    assert kinds(ended) == [Finish] and ended[0].outcome == "failed"


def test_a_failure_that_began_nowhere_strikes_nobody() -> None:
    job = running(STRICT)
    fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5), host=None)
    assert job.book.records == {}


def test_a_lost_connection_strikes_nobody_since_it_began_elsewhere() -> None:
    job = running(STRICT)
    fail(job, 31.0, verdict("ConnectionError", "restart", 0.5), host="n1")
    assert job.book.records == {} and job.failures[-1].host is None


def test_a_host_whose_command_was_killed_is_the_first_to_fail_whoever_ended_first() -> None:
    moments = {"n1": 10.0, "n2": 11.0, "n3": 12.0}
    for code in (-9, 137, -11, 139):
        assert first_to_fail({"n1": 1, "n2": code, "n3": 0}, moments.__getitem__) == "n2"
    for code in (1, 143, -15, 134):  # asked to end, or a library that ended itself after a peer was lost
        assert first_to_fail({"n1": 1, "n2": code, "n3": 0}, moments.__getitem__) == "n1"
    assert first_to_fail({"n1": 0, "n3": 0}, moments.__getitem__) is None


def ended_on(tmp_path: Path, settle_s: float, *looks: Look) -> list[str | None]:
    """Where each failure began, as an attempt on two hosts shows one look after the other."""
    launcher = FakeLauncher()
    hosts = HostPolicy(hosts=("n1", "n2"), num_hosts=2)
    config = replace(SuperviseConfig(), hosts=hosts, launch=replace(SuperviseConfig().launch, settle_s=settle_s))
    one = Supervisor(tmp_path, ("train",), config, Tools(launcher=launcher, explainer=lambda folder, code: verdict()))
    one.poll()
    for look in looks:
        launcher.looks[launcher.plans[0].folder] = look
        one.poll()
    one.journal.close()
    return [failure.host for failure in one.state.failures]


LOST_ITS_PEER = Look(running=False, codes={"n1": 1}, first_failed="n1")
BOTH = Look(running=False, codes={"n1": 1, "n2": 137}, first_failed="n2")


def test_when_one_host_has_failed_the_others_get_time_to_end_and_show_who_was_killed(tmp_path: Path) -> None:
    assert ended_on(tmp_path / "waits", 1e6, LOST_ITS_PEER) == []
    assert ended_on(tmp_path / "ends", 1e6, LOST_ITS_PEER, BOTH) == ["n2"]
    assert ended_on(tmp_path / "over", 0.0, LOST_ITS_PEER) == ["n1"]


def test_what_is_certain_is_not_waited_for(tmp_path: Path) -> None:
    killed = Look(running=False, codes={"n2": 137}, first_failed="n2")
    lost = Look(running=False, codes={"n2": None}, first_failed="n2", lost=True)
    assert ended_on(tmp_path / "killed", 1e6, killed) == ["n2"]
    assert ended_on(tmp_path / "lost", 1e6, lost) == ["n2"]
    assert ended_on(tmp_path / "ended", 1e6, replace(LOST_ITS_PEER, ended=True)) == ["n1"]


def test_the_only_host_of_a_job_is_not_struck_even_by_name() -> None:
    one = replace(STRICT, hosts=HostPolicy(hosts=("n1", "n2"), num_hosts=1, strikes=1))
    job = running(one)
    fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5, ("n1",)), host="n1")
    assert job.book.cordoned() == ()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (replace(FLEET, strikes=1), "n2 is left out of this run for 2 h"),
        (HostPolicy(hosts=("n1", "n2"), num_hosts=2, strikes=1), "n2 stays, there is no other host to move to"),
    ],
)
def test_people_are_told_whether_a_struck_host_is_left_out_or_must_stay(policy: HostPolicy, words: str) -> None:
    job = running(replace(STRICT, hosts=policy))
    answer = fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5, ("n2",)))
    assert any(isinstance(one, Notify) and words in one.text for one in answer)
    assert job.phase is Phase.RUNNING


def test_a_run_that_is_told_to_go_before_its_first_step_has_gained_nothing_and_one_at_step_zero_has() -> None:
    job = running(steps=0)
    job.handle(events.Preempted(now_s=1.0))
    job.handle(events.Exited(now_s=2.0, code=0))
    assert (job.told_at_step, job.told_in_vain) == (-1, 1)
    job.handle(events.StepDone(now_s=3.0, step=0))
    job.handle(events.Preempted(now_s=4.0))
    job.handle(events.Exited(now_s=5.0, code=0))
    assert (job.told_at_step, job.told_in_vain) == (0, 0)


def test_a_job_told_to_go_again_and_again_without_a_step_waits_longer_each_time() -> None:
    job = running(replace(SuperviseConfig(), restarts=RestartPolicy(backoff_s=10.0, max_backoff_s=50.0)), steps=0)
    now_s, waits = 0.0, []
    for _ in range(5):
        job.handle(events.Preempted(now_s=now_s))
        job.handle(events.Exited(now_s=now_s, code=0))
        waits.append(job.due_s - now_s)
        now_s = max(now_s, job.due_s)
        job.handle(events.Tick(now_s=now_s))
    assert waits == [0.0, 10.0, 20.0, 40.0, 50.0]


def test_the_first_failure_before_any_step_has_gained_nothing_and_one_at_step_zero_has() -> None:
    for steps_done, gained in (((), False), ((0,), True)):
        job = running(steps=0)
        for step in steps_done:
            job.handle(events.StepDone(now_s=1.0, step=step))
        fail(job, 2.0, verdict())
        assert job.failures[-1].gained is gained


def test_the_host_of_a_bad_link_leaves_and_its_partner_stays() -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET))
    fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", confidence=0.5))
    assert job.phase is Phase.EXAMINING
    answer = job.handle(events.Examined(now_s=40.0, condemned=(), bad_links=(("n1", "n2"),), num_tests=9))
    assert job.book.cordoned() == ("n2",)
    assert isinstance(answer[-1], Launch) and answer[-1].hosts == ("n1", "n3")


def test_a_slow_host_stays_where_the_run_itself_was_not_slow() -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET))
    fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", confidence=0.5))
    job.handle(events.Examined(now_s=40.0, condemned=("n2",), slow=("n2",), num_tests=9))
    assert job.book.cordoned() == ()
