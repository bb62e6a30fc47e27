"""What to do when an attempt has ended."""

from __future__ import annotations

from dataclasses import replace

from prism.records.causes import HANG, PREEMPTED, SLOW, UNKNOWN
from prism.records.verdict import Verdict, unknown_verdict
from prism.recover.supervise import events
from prism.recover.supervise.actions import (
    Action,
    DiscardAfter,
    Examine,
    Explain,
    Kill,
    Notify,
)
from prism.recover.supervise.following import (
    blame,
    can_examine,
    cordon,
    finish,
    launch,
    leave_out,
    note_failure,
    shadow,
    testable,
    wait_or_launch,
)
from prism.recover.supervise.job import Cause, JobRecord, Phase
from prism.recover.supervise.restarts import judge

_UNKNOWN = unknown_verdict()


def on_exit(job: JobRecord, event: events.Exited) -> list[Action]:
    if job.phase not in (Phase.RUNNING, Phase.STOPPING):
        return []
    if job.phase is Phase.STOPPING:
        return _on_stopped(job, event)
    if event.code == 0 and not job.preempted:
        return _on_clean_exit(job)  # processes that the command left behind on purpose stay, as without a supervisor
    # Processes that are left must end before another attempt starts: they hold devices and ports.
    sweep: list[Action] = [Kill(attempt=job.attempt, grace_s=0.0)]
    if job.preempted:
        return sweep + _on_preempted(job, event.now_s)
    job.phase, job.own_code = Phase.EXPLAINING, event.code
    note_failure(job, event.now_s, UNKNOWN, "unknown", event.host, saved=event.saved)
    if event.lost and event.host is not None:
        known = events.Explained(now_s=event.now_s, verdict=_node_failure(event.host))
        return sweep + on_explained(job, known)
    return [*sweep, Explain(attempt=job.attempt, code=event.code)]


def _on_preempted(job: JobRecord, now_s: float) -> list[Action]:
    text = f"attempt {job.attempt} was asked to end (preemption) {job.place}"
    policy = job.config.restarts
    gained, job.told_at_step = job.best_step > job.told_at_step, max(job.best_step, job.told_at_step)
    gained |= not (job.pace.reports and job.best_step >= 0) and now_s - job.launched_s >= policy.useful_s
    job.told_in_vain = 0 if gained else job.told_in_vain + 1
    if job.told_in_vain > policy.max_without_progress:  # the program itself may be the sender
        why = f"asked to end (SIGTERM) {job.told_in_vain} times in a row without progress; find out what sends it"
        return [finish(job, "failed", f"{why} (restarts.max_without_progress: {policy.max_without_progress})")]
    pause_s = policy.pause_s(job.told_in_vain)
    job.due_s = now_s + pause_s
    return wait_or_launch(job, now_s, text)


def _on_clean_exit(job: JobRecord) -> list[Action]:
    tries = f"after {job.attempt} attempt{'s' if job.attempt > 1 else ''}"
    if job.best_step < 0:
        return [finish(job, "done", f"finished {tries}; it reported no steps")]
    return [finish(job, "done", f"finished at step {job.best_step} {tries}")]


def _on_stopped(job: JobRecord, event: events.Exited) -> list[Action]:
    cause, job.cause = job.cause, None
    if cause is Cause.ASKED:
        text = job.outcome_text or f"stopped on request {job.place}"
        return [finish(job, "failed" if job.outcome == "failed" else "stopped", text)]
    if cause is Cause.RISK:
        return launch(job, event.now_s)
    if cause is Cause.SPIKE:
        job.losses.bad_steps, job.losses.bad_batches = [], []
        return _discard(job) + launch(job, event.now_s)
    if cause is Cause.CORRUPTION:
        judged = judge(_UNKNOWN, job.failures, policy=job.config.restarts)
        if not judged.restart:
            return [finish(job, "failed", judged.why)]
        job.due_s = event.now_s + judged.pause_s
        return _discard(job) + wait_or_launch(job, event.now_s, judged.why)
    if cause is Cause.SLOW:
        job.phase = Phase.EXAMINING
        note_failure(job, event.now_s, SLOW, "hang", None)
        return [Examine(hosts=testable(job))]
    job.phase = Phase.EXPLAINING
    note_failure(job, event.now_s, HANG, "hang", event.host)
    return [Explain(attempt=job.attempt, code=event.code)]


def _discard(job: JobRecord) -> list[Action]:
    """Set checkpoints later than the step to resume from aside."""
    if not job.folder or job.resume_step is None:
        return []
    job.saved_steps = [step for step in job.saved_steps if step <= (job.resume_step or 0)]
    return [DiscardAfter(folder=job.folder, step=job.resume_step)]


def on_explained(job: JobRecord, event: events.Explained) -> list[Action]:
    if job.phase is not Phase.EXPLAINING:
        return []
    verdict, newest = event.verdict, job.failures[-1]
    if verdict.cause.name == PREEMPTED and newest.reason != HANG:
        job.failures.pop()
        return _on_preempted(job, event.now_s)
    if newest.reason != HANG:
        # A lost connection shows that something happened on another host. The host test finds out on which one.
        began_on = None if verdict.reason == "ConnectionError" else newest.host
        named = next((h for h in verdict.hosts if h in job.hosts and len(job.hosts) > 1), began_on)
        job.failures[-1] = replace(newest, reason=verdict.cause.name, category=verdict.category, host=named)
    judged = judge(verdict, job.failures, policy=job.config.restarts)
    if not judged.restart:
        return [finish(job, "failed", judged.why)]
    if judged.bug and "bug" in job.config.act_on:
        return [finish(job, "failed", judged.bug)]
    out_before = job.book.cordoned()
    actions = blame(job, event.now_s, verdict.hosts, verdict.confidence, verdict.cause.name)
    if judged.bug:
        actions.append(shadow(job, event.now_s, "bug", judged.bug, "stop"))
    job.due_s = event.now_s + judged.pause_s
    infrastructure = verdict.category == "infrastructure" or newest.reason == HANG
    if infrastructure and job.book.cordoned() == out_before and can_examine(job):
        job.phase = Phase.EXAMINING
        return [*actions, Examine(hosts=testable(job))]
    return actions + wait_or_launch(job, event.now_s, judged.why)


def on_examined(job: JobRecord, event: events.Examined) -> list[Action]:
    if job.phase is not Phase.EXAMINING:
        return []
    # A slow host is left out only if the run itself was slow.
    was_slow = bool(job.failures) and job.failures[-1].reason == SLOW
    out_before = job.book.cordoned()
    failed = [host for host in event.condemned if host not in event.slow]
    actions = [cordon(job, event.now_s, host, "failed the host test") for host in failed]
    for host in event.slow if was_slow else ():
        actions += leave_out(job, event.now_s, host, "slower than the others in the host test")
    # The link between two good hosts is bad, so one of the two hosts is left out.
    for first, second in event.bad_links:
        if not {first, second} & set(job.book.cordoned()):
            actions += leave_out(job, event.now_s, second, f"bad link to {first}")
    num_out = len(job.book.cordoned()) - len(out_before)
    if not num_out and was_slow:
        job.pace.accept(job.config.pace)
    number = str(num_out) if num_out else "no"
    found = event.error or f"{event.num_tests} tests of the hosts, {number} host{'s' * (num_out != 1)} taken out"
    found += f" ({event.note})" if event.note else ""
    return actions + wait_or_launch(job, event.now_s, found)


def on_stop_asked(job: JobRecord) -> list[Action]:
    if job.phase is Phase.RUNNING:
        job.phase, job.cause = Phase.STOPPING, Cause.ASKED
        return [Kill(attempt=job.attempt, grace_s=job.config.launch.grace_s)]
    if job.phase is Phase.STOPPING:
        job.cause = Cause.ASKED
        return [Kill(attempt=job.attempt, grace_s=0.0)]  # a second request ends it at once
    return [finish(job, "stopped", f"stopped on request {job.place}")]


def on_taken_up(job: JobRecord, now_s: float) -> list[Action]:
    """Continue from the newest checkpoint. Who starts a run again knows why it ended, so all budgets are reset."""
    text = f"started again; it was {job.outcome}: {job.outcome_text}"
    job.outcome = job.outcome_text = ""
    job.failures, job.num_rollbacks, job.told_in_vain = [], 0, 0
    return [Notify(level="info", text=text), *launch(job, now_s)]


def _node_failure(host: str) -> Verdict:
    """The verdict on a host that the scheduler reports as down; no log is read."""
    return Verdict(
        log="scheduler",
        reason="NodeFailure",
        category="infrastructure",
        action="isolate_and_restart",
        confidence=1.0,
        hosts=(host,),
    )
