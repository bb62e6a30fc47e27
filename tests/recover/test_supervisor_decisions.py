"""The supervisor's state machine: events in, actions out. No process, no file, no clock."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from prism.records.verdict import CATEGORY_OF_REASON, Verdict
from prism.recover.progress import STORAGE, BatchRange
from prism.recover.supervise import events
from prism.recover.supervise.actions import (
    Action,
    Cordon,
    DiscardAfter,
    Examine,
    Explain,
    Finish,
    Kill,
    Launch,
    LookClosely,
    Notify,
    Shadow,
    TakeStacks,
    Uncordon,
)
from prism.recover.supervise.config import ExamineSettings, SuperviseConfig
from prism.recover.supervise.hosts import HostPolicy
from prism.recover.supervise.losses import LossPolicy
from prism.recover.supervise.pace import PacePolicy
from prism.recover.supervise.restarts import RestartPolicy
from prism.recover.supervise.state import JobState, Phase

BUGS = {"TypeError", "NameError", "ImportError", "KeyError", "SyntaxError", "ArgumentError", "IndexError"}
HANGS = SuperviseConfig(act_on=("hang",), pace=PacePolicy(look_s=0.0))
FLEET = HostPolicy(hosts=("n1", "n2", "n3", "n4"), num_hosts=2)


def verdict(reason: str = "Unknown", action: str = "restart", confidence: float = 0.9, hosts: tuple[str, ...] = ()):
    return Verdict(
        log="x", reason=reason, category=CATEGORY_OF_REASON[reason], action=action, confidence=confidence, hosts=hosts
    )


EVERY = ("spike", "slow", "hang", "corruption", "bug")


def running(
    config: SuperviseConfig | None = None, steps: int = 30, step_s: float = 1.0, act_on: tuple[str, ...] = EVERY
) -> JobState:
    """A run in its first attempt that has done some steps, with every judgement switched on."""
    config = replace(config or SuperviseConfig(), act_on=act_on)
    if "hang" in act_on:
        config = replace(config, pace=replace(config.pace, look_s=0.0))
    job = JobState(config=replace(config, losses=replace(config.losses, skip_batches="spike" in act_on)))
    job.handle(events.Tick(now_s=0.0))
    job.handle(events.FolderOpened(now_s=0.0, folder="/c", memory="/m"))
    if job.config.hosts.hosts:
        job.handle(events.Launched(now_s=0.0, hosts=job.hosts))
    for step in range(1, steps + 1):
        job.handle(events.StepDone(now_s=step * step_s, step=step, loss=1.0, batch=step - 1, trainer_s=step * step_s))
    return job


def kinds(actions: list[Action]) -> list[type[Action]]:
    return [type(action) for action in actions]


def launches(actions: list[Action]) -> list[Launch]:
    return [action for action in actions if isinstance(action, Launch)]


def fail(job: JobState, now_s: float, said: Verdict, host: str | None = None, code: int | None = 1) -> list[Action]:
    first = job.handle(events.Exited(now_s=now_s, code=code, host=host))
    assert Explain(attempt=job.attempt, code=code) in first
    return job.handle(events.Explained(now_s=now_s, verdict=said))


def test_a_new_run_launches_its_first_attempt():
    job = JobState()
    assert job.handle(events.Tick(now_s=0.0)) == [Launch(attempt=1, hosts=(), num_hosts=1)]
    assert job.phase is Phase.RUNNING


def test_a_rank_that_was_killed_is_restarted_from_the_newest_checkpoint_without_a_pause():
    job = running()
    job.handle(events.Saved(now_s=30.0, step=30))
    assert launches(fail(job, 31.0, verdict(), code=None)) == [Launch(attempt=2, hosts=(), num_hosts=1)]


def test_what_is_left_of_an_attempt_is_swept_before_the_logs_are_read():
    job = running()
    assert job.handle(events.Exited(now_s=31.0, code=1)) == [Kill(attempt=1, grace_s=0.0), Explain(attempt=1, code=1)]


@pytest.mark.parametrize("reason", sorted(BUGS))
def test_a_bug_of_the_program_is_never_restarted(reason: str):
    actions = fail(running(steps=50), 60.0, verdict(reason, "stop"))
    assert kinds(actions) == [Finish]
    assert actions[0].outcome == "failed" and reason in actions[0].text


@pytest.mark.parametrize("reason", ["FileNotFoundError", "OSError", "PermissionError", "CalledProcessError"])
def test_a_file_that_is_away_for_a_moment_costs_restarts_and_stops_the_run_when_it_stays_away(reason: str):
    job = running(SuperviseConfig(restarts=RestartPolicy(backoff_s=0.0)), steps=50)
    for _ in range(2):
        assert launches(fail(job, 60.0, verdict(reason, "stop")))
        for step in range(1, 51):
            job.handle(events.StepDone(now_s=70.0, step=step, loss=1.0))
    actions = fail(job, 80.0, verdict(reason, "stop"))
    assert kinds(actions) == [Finish] and "same place" in actions[0].text


@pytest.mark.parametrize(("reason", "tries"), [("Unknown", 5), ("NVLinkError", 20), ("FileNotFoundError", 2)])
def test_a_job_that_ends_before_its_first_step_is_tried_often_unless_its_own_error_comes_back(reason: str, tries: int):
    job = running(replace(SuperviseConfig(), restarts=RestartPolicy(backoff_s=0.0)), steps=0)
    for attempt in range(2, tries + 2):
        assert launches(fail(job, 5.0, verdict(reason)))[0].attempt == attempt
    assert kinds(fail(job, 5.0, verdict(reason))) == [Finish]


def test_a_job_whose_steps_no_one_can_read_is_restarted_as_long_as_its_attempts_last():
    job = JobState()
    job.handle(events.Tick(now_s=0.0))
    for number in range(1, 40):
        assert launches(fail(job, number * 3_600.0, signalled()))
    assert job.handle(events.Exited(now_s=1e6, code=0))[-1].outcome == "done"


def signalled() -> Verdict:
    return Verdict(log="x", reason="SIGKILL", category="unknown", action="restart", confidence=0.5)


def test_kills_that_each_let_the_run_get_further_are_not_counted_against_it():
    job = running()
    for number in range(200):
        now = 100.0 * (number + 1)
        assert launches(fail(job, now, signalled()))
        job.handle(events.StepDone(now_s=now + 1.0, step=40 + number, loss=1.0))


def test_an_exit_code_alone_does_not_prove_a_fault_of_the_program():
    weak = verdict("OutOfMemoryError", "stop", confidence=0.5)
    assert launches(fail(running(), 31.0, weak))


def test_a_framework_error_at_the_same_step_three_times_stops_the_run():
    job = running(SuperviseConfig(restarts=RestartPolicy(backoff_s=0.0)))
    for _ in range(2):
        assert launches(fail(job, 31.0, verdict("RuntimeError")))
        for step in range(1, 31):
            job.handle(events.StepDone(now_s=40.0 + step, step=step, loss=1.0))
    actions = fail(job, 80.0, verdict("RuntimeError"))
    assert kinds(actions) == [Finish] and "same place" in actions[0].text


def test_the_number_of_restarts_that_is_allowed_ends_the_run_also_with_progress():
    job = running(SuperviseConfig(restarts=RestartPolicy(max_restarts=2)))
    for number in range(2):
        assert launches(fail(job, 31.0 + 50 * number, signalled()))
        job.handle(events.StepDone(now_s=60.0 + 50 * number, step=100 * (number + 1), loss=1.0))
    actions = fail(job, 200.0, signalled())
    assert kinds(actions) == [Finish] and "2 restarts are allowed" in actions[0].text


@pytest.mark.parametrize("saved", ["", "out/last.pt"])
def test_a_job_without_steps_makes_progress_if_it_writes_checkpoints(saved: str):
    job = JobState()
    job.handle(events.Tick(now_s=0.0))
    for number in range(40):
        job.handle(events.Exited(now_s=2.0 * number, code=-9, saved=saved))
        job.handle(events.Explained(now_s=2.0 * number, verdict=signalled()))
        job.handle(events.Tick(now_s=job.due_s))
    assert (job.phase is Phase.OVER) is not saved


# -- by default only restarts


def test_by_default_a_bug_is_restarted_and_what_would_have_been_done_is_written_down():
    job = running(act_on=())
    actions = fail(job, 31.0, verdict("TypeError", "stop"))
    assert launches(actions) and actions[0] == Shadow(judgement="bug", text=actions[0].text)
    assert "would stop (--act-on bug)" in actions[0].text and job.shadows[-1].judgement == "bug"


def test_by_default_a_spike_is_only_written_down_with_the_step_it_would_go_back_to():
    job = running(act_on=())
    job.handle(events.Saved(now_s=30.0, step=20))
    (told,) = job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan))
    assert kinds([told]) == [Shadow] and "would go back to step 20 (--act-on spike)" in told.text
    assert job.phase is Phase.RUNNING and job.resume_step is None and job.skip == []


def test_by_default_slowness_and_corruption_end_nothing():
    job = running(SuperviseConfig(hosts=FLEET), act_on=())
    assert kinds(slow_down(job, 3.0)) == [Shadow]
    assert kinds(corrupted(running(SuperviseConfig(hosts=FLEET), act_on=()))) == [Shadow, Notify]


def test_a_rollback_leaves_no_batches_out_unless_that_is_asked_for_too():
    job = JobState(config=SuperviseConfig(act_on=("spike",)))
    job.handle(events.Tick(now_s=0.0))
    job.handle(events.FolderOpened(now_s=0.0, folder="/c", memory="/m"))
    for step in range(1, 31):
        job.handle(events.StepDone(now_s=float(step), step=step, loss=1.0, batch=step))
    job.handle(events.Saved(now_s=30.0, step=20))
    assert kinds(job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, batch=31))) == [Notify, Kill]
    (launch,) = launches(job.handle(events.Exited(now_s=32.0, code=-9)))
    assert launch.resume_step == 20 and launch.skip == ()


@pytest.mark.parametrize("reported_at", [100, 140, 300])
def test_a_loss_that_is_high_again_after_a_restore_is_no_spike(reported_at: int):
    """The losses after the restored step are forgotten, and a checkpoint has the level of its own step."""
    job, now = running(steps=0), 0.0
    for step in range(1, 601):
        now += 1.0
        job.handle(events.StepDone(now_s=now, step=step, loss=3.3 + 7.7 * math.exp(-step / 400), batch=step))
        if step == reported_at:
            job.handle(events.Saved(now_s=now, step=100))
    assert job.losses.levels[0].loss == pytest.approx(3.3 + 7.7 * math.exp(-68.5 / 400), rel=0.01)
    assert launches(fail(job, now, signalled()))
    job.handle(events.Restored(now_s=now, step=100, source="storage"))
    for step in range(101, 300):
        now += 1.0
        loss = 3.3 + 7.7 * math.exp(-step / 400)
        assert job.handle(events.StepDone(now_s=now, step=step, loss=loss, batch=step)) == []


def test_failures_without_progress_wait_longer_each_time_and_then_stop():
    policy = RestartPolicy(backoff_s=10.0, max_without_progress=4)
    job = running(SuperviseConfig(restarts=policy))
    now, pauses = 31.0, []
    while True:
        actions = fail(job, now, verdict("NCCLTimeoutError"))
        if kinds(actions) == [Finish]:
            break
        if job.phase is Phase.WAITING:
            pauses.append(job.due_s - now)
            now = job.due_s
            assert job.handle(events.Tick(now_s=now - 0.1)) == []
            assert launches(job.handle(events.Tick(now_s=now)))
    assert pauses == [10.0, 20.0, 40.0]


def test_silence_far_beyond_the_jobs_own_step_time_is_a_hang():
    job = running(SuperviseConfig(pace=PacePolicy(min_silence_s=5.0, hang_steps=10.0)), steps=30, step_s=2.0)
    assert job.handle(events.Tick(now_s=60.0 + 19.0)) == []
    actions = job.handle(events.Tick(now_s=60.0 + 21.0))
    assert kinds(actions) == [Notify, TakeStacks, Kill]
    assert actions[2].grace_s == 0.0  # a hung process cannot save
    job.handle(events.Exited(now_s=82.0, code=None))
    assert launches(job.handle(events.Explained(now_s=83.0, verdict=verdict())))


def left_out(job: JobState, actions: list[Action]) -> list[str]:
    """Hosts that this run leaves out without a word to the scheduler."""
    assert not any(isinstance(action, Cordon) for action in actions)
    return [host for host in job.book.cordoned() if job.book.record(host).own_choice]


def test_hangs_that_begin_on_the_same_host_twice_have_this_run_leave_it_out():
    job = running(SuperviseConfig(hosts=FLEET, examine=ExamineSettings(enabled=False)), steps=0)
    for number in range(2):
        now = 5_000.0 * (number + 1)
        for late in range(3):
            job.handle(events.StepDone(now_s=now + late, step=100 * (number + 1) + late, loss=1.0))
        job.handle(events.Tick(now_s=now + 900.0))
        job.handle(events.Exited(now_s=now + 901.0, code=None, host="n2"))
        actions = job.handle(events.Explained(now_s=now + 902.0, verdict=verdict()))
    assert left_out(job, actions) == ["n2"]
    assert any("Hang at step 202 on n2" in getattr(a, "text", "") for a in actions)


def test_a_job_that_starts_slowly_is_not_taken_for_a_hang():
    job = running(steps=0)
    assert job.handle(events.Tick(now_s=1_700.0)) == []
    assert TakeStacks(attempt=1) in job.handle(events.Tick(now_s=1_801.0))


def test_silence_means_nothing_where_the_trainer_never_reported_a_step():
    job = JobState()
    job.handle(events.Tick(now_s=0.0))
    assert job.handle(events.Tick(now_s=30 * 86_400.0)) == [LookClosely(attempt=1)]
    seen = events.Looked(now_s=30 * 86_400.0, attempt=1, moved=False, text="1 rank waits at serve.py:9")
    assert job.handle(seen) == []


def test_a_log_that_goes_on_is_a_sign_of_life_where_steps_are_read_from_it():
    job = JobState(config=HANGS)
    job.handle(events.Tick(now_s=0.0))
    for step in (1, 2, 3):
        job.handle(events.StepDone(now_s=float(step), step=step, logged=True))
    for minute in range(1, 300):
        job.handle(events.OutputSeen(now_s=60.0 * minute))
        assert job.handle(events.Tick(now_s=60.0 * minute + 59.0)) == []
    assert TakeStacks(attempt=1) in job.handle(events.Tick(now_s=60.0 * 299 + 1_900.0))


def test_an_evaluation_that_the_trainer_announces_is_no_hang():
    job = running()
    job.handle(events.Paused(now_s=31.0, what="evaluation"))
    assert job.handle(events.Tick(now_s=40_000.0)) == []
    job.handle(events.Resumed(now_s=40_001.0))
    assert job.handle(events.Tick(now_s=40_002.0)) == []


def test_a_save_that_waits_for_storage_is_reported_once_and_never_ended():
    job = running()
    job.handle(events.Paused(now_s=31.0, what=STORAGE))
    assert job.handle(events.Tick(now_s=200.0)) == []
    (told,) = job.handle(events.Tick(now_s=400.0))
    assert told.level == "page" and "the checkpoint storage" in told.text
    assert job.handle(events.Tick(now_s=100_000.0)) == [] and job.phase is Phase.RUNNING


def logging_job(block: range, now_s: float) -> JobState:
    """A run of which only the log is known, which has shown one block of steps so far."""
    job = JobState(config=HANGS)
    job.handle(events.Tick(now_s=0.0))
    for step in block:
        job.handle(events.StepDone(now_s=now_s, step=step, loss=1.0, logged=True))
    return job


def test_a_log_that_is_written_in_blocks_is_silent_for_as_long_as_a_block_takes():
    job = logging_job(range(1, 400), now_s=4_000.0)  # 8 KiB of lines, at 10 s a step
    assert job.handle(events.Tick(now_s=8_000.0)) == []
    assert Kill(attempt=1, grace_s=0.0) in job.handle(events.Tick(now_s=44_001.0))


def test_a_log_that_ends_within_a_line_is_buffered_and_its_silence_says_nothing():
    job = logging_job(range(1, 4), now_s=10.0)
    job.handle(events.OutputSeen(now_s=10.0, in_line=True))
    assert job.handle(events.Tick(now_s=50_000.0)) == []
    job.handle(events.OutputSeen(now_s=50_000.0))
    assert Kill(attempt=1, grace_s=0.0) in job.handle(events.Tick(now_s=1e6))


def look(job: JobState, now_s: float, outside: tuple[int, ...] = (), *, moved: bool = False) -> list[Action]:
    """A look at a silent job is due, and this is what it shows."""
    assert job.handle(events.Tick(now_s=now_s)) == [LookClosely(attempt=job.attempt)]
    text = "" if moved else "rank 1 stands at train.py:9"
    return job.handle(events.Looked(now_s=now_s, attempt=job.attempt, moved=moved, outside=outside, text=text))


def test_a_silent_job_whose_stacks_change_is_left_alone():
    job = running(act_on=())
    now_s, pause_s = 30.0, 11.0
    for _ in range(9):  # an evaluation that reports nothing: it is looked at less and less often
        now_s += pause_s
        assert look(job, now_s, moved=True) == []
        pause_s = 2.0 * pause_s + 1.0
    assert job.phase is Phase.RUNNING


def test_a_rank_that_holds_up_all_others_is_told_within_30_s_and_ended_after_the_limit():
    job = running(act_on=(), step_s=0.05)
    (told,) = look(job, 1.5 + 10.1, outside=(1,))
    assert told.level == "warning" and "rank 1 stands at train.py:9" in told.text and "ended after 300 s" in told.text
    assert look(job, 1.5 + 20.3, outside=(1,)) == []  # told once
    assert kinds(look(job, 1.5 + 301.0, outside=(1,))) == [Notify, TakeStacks, Kill]


def test_a_standstill_without_a_proof_is_judged_in_shadow():
    job = running(act_on=())
    (told,) = look(job, 30.0 + 11.0)
    assert kinds([told]) == [Shadow] and "would" not in told.text
    job.pace.told_of = ""
    (told,) = look(job, 30.0 + 301.0)
    assert "would end it and start again (--act-on hang)" in told.text and job.phase is Phase.RUNNING


def test_a_step_between_a_look_and_its_result_ends_the_suspicion():
    job = running(act_on=())
    job.handle(events.Tick(now_s=30.0 + 301.0))
    job.handle(events.StepDone(now_s=331.5, step=31, loss=1.0))
    assert job.handle(events.Looked(now_s=332.0, attempt=1, moved=False, outside=(1,), text="x")) == []


def test_a_failure_of_unknown_cause_is_named_by_its_exit_code():
    job = JobState()
    job.handle(events.Tick(now_s=0.0))
    told = fail(job, 4.0, verdict("Unknown", confidence=0.0), code=3)
    assert Notify(level="info", text="restarting: exit code 3, cause unknown, after 4 s") in told


def test_a_silence_at_the_same_step_as_before_is_given_more_time():
    job = running()
    assert TakeStacks(attempt=1) in job.handle(events.Tick(now_s=30.0 + 301.0))
    job.handle(events.Exited(now_s=340.0, code=None))
    assert launches(job.handle(events.Explained(now_s=341.0, verdict=verdict())))
    for step in range(1, 31):
        job.handle(events.StepDone(now_s=341.0 + step, step=step, loss=1.0, trainer_s=341.0 + step))
    assert job.handle(events.Tick(now_s=371.0 + 1_100.0)) == []


def test_every_judgement_can_be_switched_off():
    off = SuperviseConfig(pace=PacePolicy(startup_s=0, hang_steps=0, slow_factor=0), losses=LossPolicy(enabled=False))
    job = running(off)
    job.handle(events.Saved(now_s=30.0, step=20))
    assert job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan)) == []
    assert job.handle(events.Tick(now_s=1e9)) == []
    assert slow_down(job, 100.0) == []


def test_waiting_in_a_queue_is_no_hang():
    job = running(steps=0)
    for hour in range(1, 48):
        assert job.handle(events.Queued(now_s=hour * 3_600.0)) == []
        assert job.handle(events.Tick(now_s=hour * 3_600.0 + 1.0)) == []


def test_nan_rolls_back_to_the_last_good_checkpoint_before_it_and_leaves_the_batches_out():
    job = running()
    for step in (10, 20, 30):
        job.handle(events.Saved(now_s=30.0, step=step))
    job.handle(events.FolderOpened(now_s=0.0, folder="/c", memory="/m"))
    actions = job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan, batch=40))
    assert kinds(actions) == [Notify, Kill]
    actions = job.handle(events.Exited(now_s=32.0, code=None))
    skip = (BatchRange(first=39, last=40),)
    assert actions == [
        DiscardAfter(folder="/c", step=30),
        Launch(attempt=2, hosts=(), num_hosts=1, resume_step=30, skip=skip),
    ]


def test_a_checkpoint_taken_inside_the_spike_is_not_used():
    job = running(SuperviseConfig(losses=LossPolicy(patience=5)))
    job.handle(events.Saved(now_s=30.0, step=28))
    for step in range(31, 36):
        job.handle(events.Saved(now_s=30.0, step=step - 1)) if step == 33 else None
        actions = job.handle(events.StepDone(now_s=31.0, step=step, loss=50.0, batch=step))
    assert kinds(actions) == [Notify, Kill]
    assert job.resume_step == 28


def test_a_short_spike_heals_by_itself():
    job = running(SuperviseConfig(losses=LossPolicy(patience=3)))
    assert job.handle(events.StepDone(now_s=31.0, step=31, loss=50.0)) == []
    assert job.handle(events.StepDone(now_s=32.0, step=32, loss=50.0)) == []
    assert job.handle(events.StepDone(now_s=33.0, step=33, loss=1.0)) == []
    assert job.handle(events.StepDone(now_s=34.0, step=34, loss=50.0)) == []


def test_bad_steps_until_the_kill_belong_to_the_same_spike():
    job = running()
    job.handle(events.Saved(now_s=30.0, step=20))
    job.handle(events.StepDone(now_s=31.0, step=31, loss=math.inf, batch=30))
    job.handle(events.StepDone(now_s=31.1, step=32, loss=math.inf, batch=31))
    job.handle(events.StepDone(now_s=31.2, step=33, loss=1.0, batch=32))
    assert job.skip == [BatchRange(first=29, last=31)]


def test_a_rollback_that_did_not_help_goes_further_back_and_ends_the_run_when_none_is_left():
    job = running(SuperviseConfig(losses=LossPolicy(max_rollbacks=5)))
    for step in (10, 20, 30):
        job.handle(events.Saved(now_s=30.0, step=step))
    went_back = []
    for attempt in range(3):
        job.handle(events.StepDone(now_s=40.0 + attempt, step=31, loss=math.nan, batch=31))
        went_back += [launch.resume_step for launch in launches(job.handle(events.Exited(now_s=41.0, code=None)))]
    assert went_back == [30, 20, 10]
    job.handle(events.StepDone(now_s=50.0, step=31, loss=math.nan, batch=31))
    actions = job.handle(events.Exited(now_s=51.0, code=None))
    assert kinds(actions) == [Finish] and actions[0].outcome == "failed"


def shift_loss(job: JobState) -> list[Action]:
    actions = []
    for step in range(31, 60):
        actions += job.handle(events.StepDone(now_s=31.0, step=step, loss=5.0, batch=step))
        if job.phase is not Phase.RUNNING:
            break
    return actions


def test_a_planned_shift_of_the_loss_is_left_alone_where_there_is_no_checkpoint():
    job = running()
    assert kinds(shift_loss(job)) == [Notify] and job.phase is Phase.RUNNING


def test_a_loss_read_from_a_log_never_ends_a_job():
    job = JobState()
    job.handle(events.Tick(now_s=0.0))
    for step in range(1, 60):
        loss = 1.0 if step < 31 else math.nan
        actions = job.handle(events.StepDone(now_s=float(step), step=step, loss=loss, logged=True))
        assert not any(isinstance(action, Kill) for action in actions)


def test_a_planned_shift_of_the_loss_costs_one_rollback_at_most():
    job = running()
    job.handle(events.Saved(now_s=30.0, step=20))
    assert kinds(shift_loss(job)) == [Notify, Kill]
    job.handle(events.Exited(now_s=32.0, code=None))
    job.handle(events.Restored(now_s=33.0, step=20, source="storage"))
    for step in range(21, 31):
        job.handle(events.StepDone(now_s=34.0, step=step, loss=1.0, batch=step))
    assert kinds(shift_loss(job)) == [Notify] and job.phase is Phase.RUNNING


def test_a_rollback_is_remembered_until_the_trainer_has_restored():
    job = running()
    job.handle(events.Saved(now_s=30.0, step=20))
    job.handle(events.StepDone(now_s=31.0, step=31, loss=math.nan))
    job.handle(events.Exited(now_s=32.0, code=None))
    actions = fail(job, 33.0, verdict("ConnectionError"))  # dies before it restored
    assert launches(actions)[0].resume_step == 20
    job.handle(events.Restored(now_s=34.0, step=20, source="storage"))
    assert (
        launches(fail(job, 36.0, verdict("ConnectionError")) + job.handle(events.Tick(now_s=1e6)))[0].resume_step
        is None
    )


def test_a_host_named_for_sure_is_cordoned_and_a_spare_takes_its_place():
    job = running(SuperviseConfig(hosts=FLEET))
    actions = fail(job, 31.0, verdict("NVLinkError", "isolate_and_restart", 0.97, ("n2",)))
    assert actions[0] == Cordon(host="n2", reason="NVLinkError", hours=2.0)
    assert launches(actions)[0].hosts == ("n1", "n3")
    assert launches(actions)[0].excluded == ("n2",)


def test_a_node_that_the_scheduler_lost_is_cordoned_without_reading_logs():
    job = running(SuperviseConfig(hosts=FLEET))
    actions = job.handle(events.Exited(now_s=31.0, code=None, host="n1", lost=True))
    assert Explain(attempt=1) not in actions
    assert launches(actions)[0].hosts == ("n2", "n3")


def test_failures_that_keep_beginning_on_one_host_have_this_run_leave_it_out():
    job = running(SuperviseConfig(hosts=FLEET))
    assert not any(isinstance(a, Cordon) for a in fail(job, 31.0, verdict(), host="n2"))
    for step in range(31, 60):
        job.handle(events.StepDone(now_s=40.0, step=step, loss=1.0))
    actions = fail(job, 70.0, verdict(), host="n2")
    assert left_out(job, actions) == ["n2"]
    assert "n2" not in launches(actions)[0].hosts
    assert not any(isinstance(action, Uncordon) for action in job.handle(events.Tick(now_s=1e6)))


def test_nodes_that_the_launcher_chose_are_left_out_without_a_mark_on_them():
    job = running(SuperviseConfig(hosts=HostPolicy(num_hosts=2)))
    job.handle(events.Launched(now_s=30.5, hosts=("n1", "n2")))
    fail(job, 31.0, verdict(), host="n2")
    job.handle(events.Launched(now_s=35.0, hosts=("n1", "n2")))
    for step in range(31, 60):
        job.handle(events.StepDone(now_s=40.0, step=step, loss=1.0))
    actions = fail(job, 70.0, verdict(), host="n2")
    assert left_out(job, actions) == ["n2"] and launches(actions)[0].excluded == ("n2",)


def test_a_slow_host_is_left_out_only_by_this_run_and_only_where_the_run_was_slow():
    job = running(SuperviseConfig(hosts=FLEET))
    slow_down(job, 3.0)
    job.handle(events.Exited(now_s=200.0, code=0))
    actions = job.handle(events.Examined(now_s=210.0, condemned=("n2",), slow=("n2",)))
    assert left_out(job, actions) == ["n2"] and "n2" not in launches(actions)[0].hosts


def test_a_host_that_comes_back_and_fails_again_is_out_for_longer():
    job = running(SuperviseConfig(hosts=FLEET))
    hours = []
    for number in range(3):
        now = 31.0 + number * 1e6
        actions = fail(job, now, verdict("ECCError", "isolate_and_restart", 0.97, ("n1",)), host="n1")
        hours += [a.hours for a in actions if isinstance(a, Cordon)]
        back = job.handle(events.Tick(now_s=now + 9e5))
        assert Uncordon(host="n1") in back
        job.hosts = ("n1", "n2")
        job.handle(events.StepDone(now_s=now + 9e5, step=100 * (number + 1), loss=1.0))
    assert hours == [2.0, 8.0, 32.0]


def test_an_infrastructure_fault_without_a_name_leads_to_a_test_of_the_hosts():
    job = running(SuperviseConfig(hosts=FLEET))
    actions = fail(job, 31.0, verdict("NCCLTimeoutError"))
    assert actions[-1] == Examine(hosts=("n1", "n2", "n3", "n4"))
    actions = job.handle(events.Examined(now_s=50.0, condemned=("n1",), num_tests=20))
    assert [a.host for a in actions if isinstance(a, Cordon)] == ["n1"]
    assert launches(actions)[0].hosts == ("n2", "n3")


def test_a_bad_link_costs_one_of_its_two_hosts():
    job = running(SuperviseConfig(hosts=FLEET))
    fail(job, 31.0, verdict("NetworkError"))
    actions = job.handle(events.Examined(now_s=50.0, condemned=(), bad_links=(("n1", "n2"),)))
    assert left_out(job, actions) == ["n2"]


def test_without_enough_hosts_the_run_waits_for_one_and_pages():
    job = running(SuperviseConfig(hosts=HostPolicy(hosts=("n1", "n2"), num_hosts=2)))
    actions = fail(job, 31.0, verdict("ECCError", "isolate_and_restart", 0.97, ("n2",)))
    assert actions[-1].level == "page" and job.phase is Phase.WAITING
    actions = job.handle(events.Tick(now_s=job.due_s + 1.0))
    assert Uncordon(host="n2") in actions and launches(actions)[0].hosts == ("n1", "n2")


def test_an_elastic_run_goes_on_with_fewer_hosts():
    job = running(SuperviseConfig(hosts=HostPolicy(hosts=("n1", "n2"), num_hosts=2, min_hosts=1)))
    actions = fail(job, 31.0, verdict("ECCError", "isolate_and_restart", 0.97, ("n2",)))
    assert launches(actions)[0].hosts == ("n1",)


def slow_down(job: JobState, factor: float) -> list[Action]:
    clock = 30.0
    for step in range(31, 80):
        clock += factor
        actions = job.handle(events.StepDone(now_s=clock, step=step, loss=1.0, trainer_s=clock))
        if actions:
            return actions
    return []


def test_a_run_that_becomes_slow_saves_and_has_its_hosts_tested():
    job = running(SuperviseConfig(hosts=FLEET))
    actions = slow_down(job, 3.0)
    assert kinds(actions) == [Notify, Kill] and actions[1].grace_s > 0
    assert kinds(job.handle(events.Exited(now_s=200.0, code=0))) == [Examine]


def test_a_slow_run_that_has_nowhere_to_go_is_left_alone_and_told_once():
    job = running()
    assert kinds(slow_down(job, 3.0)) == [Shadow]
    assert slow_down(job, 3.0) == []


@pytest.mark.parametrize("slow_steps", [30, 5])
def test_a_run_whose_hosts_are_all_good_is_not_stopped_twice_for_the_same_slowness(slow_steps: int):
    job = running(SuperviseConfig(hosts=FLEET, pace=PacePolicy(slow_steps=slow_steps)))
    slow_down(job, 3.0)
    job.handle(events.Exited(now_s=200.0, code=0))
    assert launches(job.handle(events.Examined(now_s=210.0, condemned=())))
    assert job.pace.baseline_s == pytest.approx(3.0)


def test_exit_zero_after_training_is_the_end():
    job = running()
    actions = job.handle(events.Exited(now_s=31.0, code=0))
    assert actions[-1] == Finish(outcome="done", text="finished at step 30 after 1 attempt", memory="/m")
    assert job.handle(events.Tick(now_s=1e9)) == []


def test_exit_zero_is_the_end_also_where_no_step_was_ever_read():
    job = running(steps=0)
    assert job.handle(events.Exited(now_s=3.0, code=0))[-1].outcome == "done"


def verdict_of_a_told_launcher() -> Verdict:
    return Verdict(log="x", reason="Preempted", category="infrastructure", action="restart", confidence=0.5)


def test_a_launcher_that_was_told_to_go_is_started_again_and_costs_no_budget():
    job = running()
    assert launches(fail(job, 31.0, verdict_of_a_told_launcher())) and job.failures == []


def test_a_job_that_is_told_to_go_again_and_again_without_a_new_step_waits_longer_each_time():
    job, now, pauses = running(), 31.0, []
    for _ in range(5):
        job.handle(events.Preempted(now_s=now))
        assert job.phase is Phase.RUNNING
        job.handle(events.Exited(now_s=now, code=0))
        pauses.append(max(0.0, job.due_s - now))
        now = max(now, job.due_s) + 1.0
        job.handle(events.Tick(now_s=now))
    assert pauses == [0.0, 0.0, 1.0, 2.0, 4.0] and job.failures == []


@pytest.mark.parametrize(("lived_s", "ends"), [(2.0, True), (700.0, False)])
def test_a_program_that_ends_itself_by_sigterm_is_not_restarted_for_ever(lived_s: float, ends: bool):
    """Without a new step the sender may be the program itself; long attempts without steps are taken for progress."""
    job, now, told = running(steps=0), 0.0, verdict_of_a_told_launcher()
    for _ in range(40):
        if job.phase is Phase.OVER:
            break
        now += lived_s
        fail(job, now, told)
        now = max(now, job.due_s) + 1.0
        job.handle(events.Tick(now_s=now))
    assert (job.outcome == "failed") is ends and job.attempt == (21 if ends else 41)
    assert "asked to end (SIGTERM) 21 times in a row" in job.outcome_text or not ends


def test_asking_a_second_time_ends_the_job_at_once():
    job = running()
    job.handle(events.StopAsked(now_s=31.0))
    assert job.handle(events.StopAsked(now_s=32.0)) == [Kill(attempt=1, grace_s=0.0)]


def test_a_preempted_job_starts_again_and_costs_no_budget():
    job = running()
    job.handle(events.Preempted(now_s=30.5))
    assert launches(job.handle(events.Exited(now_s=31.0, code=0)))
    assert job.failures == []


def test_a_failed_save_pages_once_and_does_not_stop_training():
    job = running()
    assert kinds(job.handle(events.SaveFailed(now_s=31.0, step=30, why="disk full"))) == [Notify]
    assert job.handle(events.SaveFailed(now_s=32.0, step=40, why="disk full")) == []
    assert kinds(job.handle(events.Saved(now_s=33.0, step=50))) == [Notify]
    assert job.phase is Phase.RUNNING


def test_a_damaged_checkpoint_is_no_longer_counted_on():
    job = running()
    for step in (10, 20):
        job.handle(events.Saved(now_s=30.0, step=step))
    job.handle(events.CheckpointBroken(now_s=31.0, step=20, why="checksum"))
    assert job.saved_steps == [10]


def test_a_stop_that_was_asked_for_lets_the_trainer_save():
    job = running()
    (kill,) = job.handle(events.StopAsked(now_s=31.0))
    assert kill == Kill(attempt=1, grace_s=60.0)
    assert job.handle(events.Exited(now_s=32.0, code=0))[-1].outcome == "stopped"


def test_a_run_that_was_stopped_is_taken_up_from_its_newest_checkpoint_with_new_budgets():
    job = running()
    job.handle(events.Exited(now_s=31.0, code=-9))
    job.handle(events.StopAsked(now_s=31.5))
    assert job.outcome == "stopped" and job.handle(events.Tick(now_s=32.0)) == []
    told, launch = job.handle(events.TakenUp(now_s=40.0))
    assert "stopped on request" in told.text
    assert launch.attempt == 2 and launch.resume_step is None
    assert job.phase is Phase.RUNNING and not job.failures and not job.outcome
    assert job.handle(events.TakenUp(now_s=41.0)) == []  # of a run that is not over


def test_late_events_of_a_finished_attempt_change_nothing():
    job = running()
    job.handle(events.Exited(now_s=31.0, code=1))
    assert job.handle(events.Exited(now_s=31.1, code=1)) == []
    assert job.handle(events.Examined(now_s=31.2, condemned=("n1",))) == []


# -- silent corruption


def corrupted(job: JobState, *, hosts: tuple[str, ...] = ("n2",), proven: bool = True) -> list[Action]:
    for step in (10, 20, 28):
        job.handle(events.Saved(now_s=30.0, step=step))
    found = events.Corrupted(
        now_s=31.0, step=30, last_clean_step=25, hosts=hosts, proven=proven, why="rank 1 computes wrong numbers"
    )
    return job.handle(found)


def test_proven_corruption_goes_back_to_the_last_clean_checkpoint_without_the_host():
    job = running(SuperviseConfig(hosts=FLEET))
    assert kinds(corrupted(job)) == [Notify, Notify, Kill]
    after = job.handle(events.Exited(now_s=32.0, code=None))
    assert DiscardAfter(folder="/c", step=20) in after
    (launch,) = launches(after)
    assert (launch.hosts, launch.resume_step, launch.excluded) == (("n1", "n3"), 20, ("n2",))
    assert job.saved_steps == [10, 20]


def test_corruption_never_tells_the_scheduler_to_cordon_or_to_let_back():
    job = running(SuperviseConfig(hosts=FLEET))
    actions = [*corrupted(job), *job.handle(events.Exited(now_s=32.0, code=None))]
    actions += job.handle(events.Tick(now_s=100 * 3_600.0))
    assert not any(isinstance(action, (Cordon, Uncordon)) for action in actions)
    assert job.book.cordoned() == ()


@pytest.mark.parametrize(
    ("hosts", "proven", "policy"),
    [
        (("n1", "n2"), False, FLEET),  # two replicas that differ: one of them, nobody knows which
        (("n2",), True, HostPolicy(hosts=("n1", "n2"))),  # no other host to move to
        (("elsewhere",), True, FLEET),
    ],
)
def test_without_proof_or_a_spare_the_run_goes_back_on_the_hosts_it_has(hosts, proven, policy):
    job = running(SuperviseConfig(hosts=policy))
    corrupted(job, hosts=hosts, proven=proven)
    (launch,) = launches(job.handle(events.Exited(now_s=32.0, code=None)))
    assert (launch.hosts, launch.resume_step, launch.excluded) == (("n1", "n2"), 20, ())


def test_corruption_that_comes_back_without_progress_ends_the_run():
    job = running(SuperviseConfig(restarts=RestartPolicy(max_without_progress=2, backoff_s=0.0)))
    for attempt in range(4):
        corrupted(job)
        job.handle(events.Exited(now_s=32.0 + attempt, code=None))
        job.handle(events.Tick(now_s=33.0 + attempt))
    assert job.outcome == "failed" and "SilentCorruption" in job.outcome_text


@pytest.mark.parametrize("saved", [True, False])
def test_corruption_with_nothing_to_go_back_to_or_switched_off_only_pages(saved: bool):
    job = running(SuperviseConfig(hosts=FLEET), act_on=() if saved else EVERY)
    if saved:
        actions = corrupted(job)
    else:
        actions = job.handle(
            events.Corrupted(now_s=31.0, step=30, last_clean_step=25, hosts=("n2",), proven=True, why="wrong")
        )
    assert kinds(actions) == [Shadow, Notify] and actions[1].level == "page" and job.phase is Phase.RUNNING


def test_what_the_guard_reports_is_what_the_supervisor_reads(tmp_path):
    torch = pytest.importorskip("torch")
    from prism.recover.checkpoint import CorruptionGuard
    from prism.recover.progress import STEPS_FILE, Progress, RunOrders, attempt_dir
    from prism.recover.supervise.watch import Watch

    progress = Progress(0, RunOrders(run_dir=tmp_path, host="n2"))
    guard = CorruptionGuard(torch.nn.Linear(2, 1), progress=progress)
    told = guard._tell(30, "replica", (0,), "weights differ")
    folder = attempt_dir(tmp_path, 1)
    assert (folder / STEPS_FILE).exists()
    (read,) = Watch(folder).poll(1.0)
    assert isinstance(read, events.Corrupted)
    assert (read.step, read.hosts, read.proven, read.why) == (30, ("n2",), True, str(told))
