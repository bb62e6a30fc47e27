"""The supervisor's decisions exactly at their limits, and what each event answers besides what it changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from test_supervisor_decisions import FLEET, fail, kinds, launches, running, verdict

from prism.recover.progress import BatchRange
from prism.recover.supervise import events
from prism.recover.supervise.actions import (
    Cordon,
    DiscardAfter,
    Examine,
    Explain,
    Finish,
    Kill,
    Notify,
    Shadow,
    TakeStacks,
)
from prism.recover.supervise.config import ExamineSettings, SuperviseConfig
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.losses import LossPolicy
from prism.recover.supervise.pace import PacePolicy
from prism.recover.supervise.restarts import RestartPolicy
from prism.recover.supervise.state import JobState, Phase

PACE = PacePolicy(startup_s=100.0, hang_steps=10.0, min_silence_s=20.0, log_silence_s=50.0, slow_steps=5)
QUICK = replace(SuperviseConfig(), pace=PACE)


@pytest.mark.parametrize(
    "event",
    [
        events.Launched(now_s=40.0, hosts=()),
        events.Queued(now_s=40.0),
        events.OutputSeen(now_s=40.0),
        events.Paused(now_s=40.0),
        events.Resumed(now_s=40.0),
        events.Saved(now_s=40.0, step=30),
        events.Preempted(now_s=40.0),
        events.StepDone(now_s=40.0, step=31, loss=1.0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_needs_no_action_is_answered_by_an_empty_list(event: events.Event) -> None:
    assert running().handle(event) == []


def test_a_restore_is_reported_with_the_steps_that_it_costs() -> None:
    (told,) = running().handle(events.Restored(now_s=40.0, step=10, source="storage"))
    assert told.text == "continued from step 10 (storage), 20 steps to do again"
    (told,) = running().handle(events.Restored(now_s=40.0, step=30, source="memory"))
    assert told.text == "continued from step 30 (memory)"


def test_a_run_that_is_over_answers_nothing_and_says_that_it_is_over() -> None:
    job = running()
    assert job.over is False
    job.handle(events.Exited(now_s=31.0, code=0))
    assert job.over is True
    assert job.handle(events.Tick(now_s=1e9)) == []


def test_events_that_come_too_late_for_their_phase_are_answered_by_nothing() -> None:
    job = running()
    assert job.handle(events.Explained(now_s=31.0, verdict=verdict())) == []
    assert job.handle(events.Examined(now_s=31.0, condemned=("n1",))) == []
    job.handle(events.Exited(now_s=31.0, code=1))
    assert job.handle(events.Exited(now_s=32.0, code=1)) == []
    assert job.handle(events.StepDone(now_s=33.0, step=99)) == []
    assert job.last_step == 30


def test_silence_of_exactly_the_limit_is_no_hang() -> None:
    job = running(QUICK)
    assert job.handle(events.Tick(now_s=30.0 + 20.0)) == []
    assert kinds(job.handle(events.Tick(now_s=30.0 + 20.1))) == [Notify, TakeStacks, Kill]


def test_steps_of_an_attempt_that_is_being_ended_as_hung_are_not_counted() -> None:
    job = running(QUICK)
    job.handle(events.Tick(now_s=60.0))
    assert job.handle(events.StepDone(now_s=61.0, step=31)) == [] and job.last_step == job.best_step == 30


def test_a_first_attempt_that_continues_from_step_zero_repeats_nothing() -> None:
    (told,) = running(steps=0).handle(events.Restored(now_s=1.0, step=0, source="storage"))
    assert told.text == "continued from step 0 (storage)"


def test_a_run_stands_at_step_zero_only_after_that_step() -> None:
    job = running(steps=0)
    assert job.place == "before the first step of attempt 1"
    job.handle(events.StepDone(now_s=1.0, step=0))
    assert job.place == "at step 0"


def hang(job: JobState, at_s: float) -> None:
    assert Kill in kinds(job.handle(events.Tick(now_s=at_s)))
    job.handle(events.Exited(now_s=at_s, code=-9))
    job.handle(events.Explained(now_s=at_s, verdict=verdict()))


def test_only_hangs_at_this_very_step_without_another_failure_between_them_lengthen_the_limit() -> None:
    config = replace(QUICK, restarts=RestartPolicy(backoff_s=0.0))
    job = running(config)
    hang(job, 60.0)
    job.handle(events.StepDone(now_s=61.0, step=30, trainer_s=61.0))
    assert job.handle(events.Tick(now_s=61.0 + 4 * 20.0)) == []  # four times as long after one hang here
    assert Kill in kinds(job.handle(events.Tick(now_s=61.0 + 4 * 20.0 + 1)))


def test_a_failure_of_another_kind_ends_the_count_of_hangs() -> None:
    job = running(replace(QUICK, restarts=RestartPolicy(backoff_s=0.0)))
    hang(job, 60.0)
    job.handle(events.StepDone(now_s=61.0, step=30, trainer_s=61.0))
    fail(job, 62.0, verdict())
    job.handle(events.StepDone(now_s=63.0, step=30, trainer_s=63.0))
    assert Kill in kinds(job.handle(events.Tick(now_s=63.0 + 21.0)))


def test_the_message_of_a_hang_says_whether_the_attempt_ever_stepped_and_which_setting_is_in_charge() -> None:
    stepped, *_ = running(QUICK).handle(events.Tick(now_s=60.0))
    assert "after step 30" in stepped.text and "pace.hang_steps" in stepped.text
    never, *_ = running(QUICK, steps=0).handle(events.Tick(now_s=101.0))
    assert "never stepped" in never.text and "pace.startup_s" in never.text


def spiking(**changes: object) -> JobState:
    """A run with a checkpoint of step 20 whose loss is no number from step 31 on."""
    job = running(replace(SuperviseConfig(), losses=LossPolicy(**changes)))
    job.handle(events.Saved(now_s=20.0, step=20))
    return job


def test_a_spike_rolls_back_once_and_counts_it() -> None:
    job = spiking()
    actions = job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, batch=30))
    assert kinds(actions) == [Notify, Kill] and job.num_rollbacks == 1
    after = job.handle(events.Exited(now_s=32.0, code=-9))
    assert after[0] == DiscardAfter(folder="/c", step=20)
    assert launches(after)[0].resume_step == 20 and launches(after)[0].skip == (BatchRange(first=29, last=30),)


def test_checkpoints_after_the_one_gone_back_to_are_forgotten_and_that_one_is_kept() -> None:
    job = spiking()
    job.handle(events.Saved(now_s=30.5, step=31))
    job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, batch=30))
    job.handle(events.Exited(now_s=32.0, code=-9))
    assert job.saved_steps == [20]
    job.handle(events.Saved(now_s=40.0, step=25))
    job.handle(events.Restored(now_s=41.0, step=20, source="storage"))
    assert job.saved_steps == [20]


def test_without_a_checkpoint_a_spike_is_reported_once_and_the_level_is_taken_as_usual() -> None:
    job = running()
    told = job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan))
    assert kinds(told) == [Notify] and told[0].level == "page"
    assert job.losses.recent == [] and job.losses.left_alone
    assert job.handle(events.StepDone(now_s=32.0, step=32, loss=math.nan)) == []
    assert job.phase is Phase.RUNNING


def test_a_raised_loss_is_never_left_for_a_checkpoint_with_a_higher_one() -> None:
    job = running(steps=0)
    for step, loss in [*((i, 9.0) for i in range(1, 31)), *((i, 1.0) for i in range(31, 131))]:
        job.handle(events.StepDone(now_s=float(step), step=step, loss=loss, batch=step))
        if step == 20:
            job.handle(events.Saved(now_s=20.0, step=20))
    raised = [job.handle(events.StepDone(now_s=s, step=int(s), loss=5.0, batch=int(s))) for s in (131.0, 132.0, 133.0)]
    assert [kinds(actions) for actions in raised] == [[], [], [Notify]] and job.phase is Phase.RUNNING
    assert "no better checkpoint" in raised[2][0].text
    job.handle(events.StepDone(now_s=134.0, step=134, loss=math.nan, batch=134))
    assert job.resume_step == 20  # from no number at all, any is better


def test_a_run_whose_steps_come_from_its_log_is_never_rolled_back() -> None:
    job = spiking()
    told = job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, logged=True))
    assert kinds(told) == [Notify] and job.phase is Phase.RUNNING


def test_rollbacks_that_do_not_help_end_the_run_as_failed() -> None:
    job = spiking(max_rollbacks=1)
    job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, batch=30))
    job.handle(events.Exited(now_s=32.0, code=-9))
    again = job.handle(events.StepDone(now_s=33.0, step=31, loss=math.nan, batch=30))
    assert again == [Kill(attempt=2, grace_s=0.0)]
    ended = job.handle(events.Exited(now_s=34.0, code=-9))
    assert kinds(ended) == [Finish] and ended[0].outcome == "failed" and "did not help" in ended[0].text


def test_steps_after_the_decision_widen_the_batches_left_out_only_where_their_loss_is_bad() -> None:
    job = spiking()
    job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, batch=30))
    limit = job.losses.limit(job.config.losses)
    assert limit is not None
    job.handle(events.StepDone(now_s=31.5, step=32, loss=limit, batch=31))  # as high as is usual, not higher
    assert job.skip == [BatchRange(first=29, last=30)]
    job.handle(events.StepDone(now_s=31.6, step=33, loss=limit * 1.01, batch=32))
    assert job.skip == [BatchRange(first=29, last=32)]


def test_steps_of_an_attempt_that_is_ended_for_another_reason_widen_nothing() -> None:
    job = spiking()
    job.skip = [BatchRange(first=1, last=2)]
    job.handle(events.StopAsked(now_s=31.0))
    job.handle(events.StepDone(now_s=31.5, step=32, loss=math.nan, batch=31))
    assert job.skip == [BatchRange(first=1, last=2)]


def slow(hosts: tuple[str, ...], **changes: object) -> tuple[JobState, list]:
    """A run that became ten times as slow, and what was answered."""
    pace = replace(PACE, baseline_steps=5)
    policy = HostPolicy(hosts=hosts, num_hosts=2) if hosts else HostPolicy()
    job = running(replace(SuperviseConfig(), pace=pace, hosts=policy, **changes))
    for number in range(1, 10):
        at_s = 30.0 + 10 * number
        answer = job.handle(events.StepDone(now_s=at_s, step=30 + number, loss=1.0, trainer_s=at_s))
        if answer:
            return job, answer
    return job, []


def test_a_slow_run_names_both_speeds_and_tests_its_hosts_where_a_third_one_is_a_witness() -> None:
    job, answer = slow(("n1", "n2", "n3"))
    assert kinds(answer) == [Notify, Kill] and "10 s or more, 1 s is usual" in answer[0].text
    assert job.handle(events.Exited(now_s=200.0, code=0)) == [Examine(hosts=("n1", "n2", "n3"))]


def test_two_hosts_alone_cannot_be_told_apart_so_a_slow_run_goes_on() -> None:
    job, answer = slow(("n1", "n2"))
    assert kinds(answer) == [Shadow] and job.phase is Phase.RUNNING
    assert job.pace.baseline_s == 10.0


def test_after_a_clean_test_a_slow_run_takes_its_speed_as_usual_and_other_runs_keep_theirs() -> None:
    job, _ = slow(("n1", "n2", "n3"))
    job.handle(events.Exited(now_s=200.0, code=0))
    done = job.handle(events.Examined(now_s=210.0, condemned=(), num_tests=7))
    assert "7 tests of the hosts, no hosts taken out" in done[0].text and job.pace.baseline_s == 10.0
    other = running(replace(SuperviseConfig(), hosts=FLEET))
    fail(other, 31.0, verdict("NVLinkError", "isolate_and_restart", confidence=0.5))
    assert other.phase is Phase.EXAMINING
    before = other.pace.baseline_s
    other.pace.recent = [50.0]
    other.handle(events.Examined(now_s=40.0, condemned=(), num_tests=7))
    assert other.pace.baseline_s == before


def test_an_error_of_the_host_test_is_reported_to_people() -> None:
    job, _ = slow(("n1", "n2", "n3"))
    job.handle(events.Exited(now_s=200.0, code=0))
    done = job.handle(events.Examined(now_s=210.0, condemned=(), num_tests=7, error="no agent answers"))
    assert "no agent answers" in done[0].text and "condemned" not in done[0].text


def test_a_host_test_that_could_not_judge_busy_hosts_says_so() -> None:
    job, _ = slow(("n1", "n2", "n3"))
    job.handle(events.Exited(now_s=200.0, code=0))
    done = job.handle(events.Examined(now_s=210.0, condemned=(), num_tests=7, note="at other work: n1, n2"))
    assert "7 tests of the hosts, no hosts taken out (at other work: n1, n2)" in done[0].text


def test_a_save_that_works_again_is_told_only_after_one_that_failed() -> None:
    job = running()
    assert job.handle(events.Saved(now_s=31.0, step=31)) == []
    assert job.handle(events.SaveFailed(now_s=32.0, step=32, why="full"))[0].level == "page"
    assert job.handle(events.SaveFailed(now_s=33.0, step=33, why="full")) == []
    assert "step 34" in job.handle(events.Saved(now_s=34.0, step=34))[0].text
    assert job.handle(events.Saved(now_s=35.0, step=35)) == []


def test_a_damaged_checkpoint_is_reported_and_forgotten() -> None:
    job = running()
    job.handle(events.Saved(now_s=31.0, step=31))
    told = job.handle(events.CheckpointBroken(now_s=32.0, step=31, why="checksum"))
    assert kinds(told) == [Notify] and "31" in told[0].text and job.saved_steps == []


@pytest.mark.parametrize(("steps", "words"), [(0, "reported no steps"), (1, "finished at step 1 after 1 attempt")])
def test_a_clean_exit_tells_its_last_step_where_there_was_one(steps: int, words: str) -> None:
    ended = running(steps=steps).handle(events.Exited(now_s=9.0, code=0))[-1]
    assert words in ended.text and not ended.text.endswith("attempts")


def test_a_step_zero_is_a_step() -> None:
    job = running(steps=0)
    job.handle(events.StepDone(now_s=1.0, step=0, loss=1.0))
    assert "finished at step 0" in job.handle(events.Exited(now_s=2.0, code=0))[-1].text


def test_a_stop_says_where_the_run_stood_and_a_waiting_run_ends_at_once() -> None:
    job = running()
    job.handle(events.StopAsked(now_s=31.0))
    job.handle(events.StepDone(now_s=31.5, step=32))  # on its way to the last save
    assert "stopped on request at step 32" in job.handle(events.Exited(now_s=32.0, code=0))[-1].text
    waiting = running(replace(SuperviseConfig(), restarts=RestartPolicy(backoff_s=500.0)))
    for at_s in (31.0, 32.0, 33.0):
        if waiting.phase is Phase.RUNNING:
            fail(waiting, at_s, verdict())
    assert waiting.phase is Phase.WAITING
    assert kinds(waiting.handle(events.StopAsked(now_s=40.0))) == [Finish] and waiting.outcome == "stopped"


@pytest.mark.parametrize(("confidence", "cordoned"), [(0.8, True), (0.79, False)])
def test_a_verdict_cordons_the_host_it_names_from_a_confidence_of_four_fifths(
    confidence: float, cordoned: bool
) -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET, examine=ExamineSettings(enabled=False)))
    actions = fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", confidence, ("n2",)))
    assert (Cordon in kinds(actions)) is cordoned


def test_a_failure_is_put_down_to_the_host_that_the_log_names_and_only_to_one_of_the_job() -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET))
    fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5, ("elsewhere", "n2")), host="n1")
    assert job.failures[-1].host == "n2"
    other = running(replace(SuperviseConfig(), hosts=FLEET))
    fail(other, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5, ("elsewhere",)), host="n1")
    assert other.failures[-1].host == "n1"


def test_with_a_single_host_nothing_is_put_down_to_it() -> None:
    one = HostPolicy(hosts=("n1", "n2"), num_hosts=1, strikes=1)
    job = running(replace(SuperviseConfig(), hosts=one, examine=ExamineSettings(enabled=False)))
    actions = fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5, ("n1",)), host="n1")
    assert Cordon not in kinds(actions) and job.failures[-1].host is None


def test_strikes_fall_on_the_first_host_that_the_log_names() -> None:
    job = running(replace(SuperviseConfig(), hosts=replace(FLEET, strikes=1), examine=ExamineSettings(enabled=False)))
    actions = fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.5, ("n2", "n1")))
    assert job.book.cordoned() == ("n2",) and Cordon not in kinds(actions)


def test_an_attempt_without_steps_counts_as_useful_from_the_time_that_is_set() -> None:
    for lived_s, gained in ((99.0, False), (100.0, True)):
        job = running(replace(SuperviseConfig(), restarts=RestartPolicy(useful_s=100.0)), steps=0)
        job.launched_s = 50.0
        job.handle(events.Exited(now_s=50.0 + lived_s, code=1))
        assert (job.failures[-1].lived_s, job.failures[-1].gained) == (lived_s, gained)


def test_a_host_that_the_scheduler_lost_is_cordoned_without_reading_logs() -> None:
    job = running(replace(SuperviseConfig(), hosts=FLEET))
    actions = job.handle(events.Exited(now_s=31.0, code=None, host="n2", lost=True))
    assert Cordon in kinds(actions) and Explain not in kinds(actions) and "n2" not in launches(actions)[0].hosts
