"""What to do while an attempt is silent: look at its stacks, tell which rank stands still, end what cannot go on."""

from __future__ import annotations

from prism.records.causes import HANG
from prism.recover.supervise import events
from prism.recover.supervise.actions import Action, Kill, LookClosely, Notify, TakeStacks, Uncordon
from prism.recover.supervise.following import launch, shadow
from prism.recover.supervise.job import Cause, JobRecord, Phase

_LONGER_EACH_TIME = 4.0


def on_tick(job: JobRecord, now_s: float) -> list[Action]:
    actions: list[Action] = [Uncordon(host=host) for host in job.book.expire(now_s)]
    if job.phase is Phase.NEW or (job.phase is Phase.WAITING and now_s >= job.due_s):
        return actions + launch(job, now_s)
    if job.phase is not Phase.RUNNING:
        return actions
    limit_s = _silence_limit_s(job)
    silent_s = now_s - job.pace.last_seen_s
    if limit_s is not None and silent_s > limit_s and "hang" in job.config.act_on:
        return actions + _end_hung(job, silent_s)
    if job.pace.is_look_due(silent_s, limit_s, job.config.pace):
        job.pace.looked_after_s = silent_s
        return [*actions, LookClosely(attempt=job.attempt)]
    if job.pace.paused and job.pace.waits_for and silent_s > job.config.pace.min_silence_s:
        text = f"no step for {silent_s:.0f} s after step {job.last_step}: saves wait for {job.pace.waits_for}"
        job.pace.waits_for = ""  # reported once
        return [*actions, Notify(level="page", text=f"{text}; the job is left alone")]
    return actions


def on_looked(job: JobRecord, event: events.Looked) -> list[Action]:
    """A change of stacks is a sign of life. A rank that holds up all others is told at once, and ends in time."""
    if job.phase is not Phase.RUNNING or event.attempt != job.attempt or not job.pace.looked_after_s:
        return []  # it has stepped meanwhile
    silent_s = event.now_s - job.pace.last_seen_s
    if event.moved:
        if not event.text:  # that the stacks cannot be read says nothing
            job.pace.last_seen_s = event.now_s
        return []
    limit_s = _silence_limit_s(job)
    too_long = limit_s is not None and silent_s > limit_s
    if event.outside and too_long:
        return _end_hung(job, silent_s, event.text)
    what = str(event.outside) if event.outside else event.text
    told_of, job.pace.told_of = job.pace.told_of, what
    if told_of == what or not (event.outside or job.pace.stepped):
        return []
    seen = f"attempt {job.attempt} stands still for {silent_s:.0f} s {job.place}: {event.text}"
    if event.outside:
        after = "" if limit_s is None else f"; it is ended after {limit_s:.0f} s of silence"
        return [Notify(level="warning", text=f"{seen}{after}")]
    return [shadow(job, event.now_s, "hang", seen, "end it and start again" if too_long else "")]


def _silence_limit_s(job: JobRecord) -> float | None:
    """The limit of silence. It grows with every hang at the same step: the job may be working there."""
    limit_s = job.pace.silence_limit_s(job.config.pace)
    before = 0
    for failure in reversed(job.failures):
        if (failure.reason, failure.step) != (HANG, job.last_step):
            break
        before += 1
    return None if limit_s is None else limit_s * _LONGER_EACH_TIME**before


def _end_hung(job: JobRecord, silent_s: float, seen: str = "") -> list[Action]:
    job.phase, job.cause = Phase.STOPPING, Cause.HANG
    what = f"no step for {silent_s:.0f} s after step {job.last_step}" if job.pace.stepped else "never stepped"
    setting = "pace.hang_steps: 0" if job.pace.stepped else "pace.startup_s: 0"
    found = f"; {seen}" if seen else ""
    text = f"attempt {job.attempt} hangs: {what}{found}; stacks are taken, then it is ended"
    return [
        Notify(level="warning", text=f"{text} (if it was at work: progress.pause() around it, or {setting})"),
        TakeStacks(attempt=job.attempt),
        Kill(attempt=job.attempt, grace_s=0.0),
    ]
