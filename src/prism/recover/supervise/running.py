"""What to do about what an attempt reports."""

from __future__ import annotations

import math

from prism.records.causes import CORRUPTION
from prism.recover.progress import BatchRange
from prism.recover.risks import Risks
from prism.recover.supervise import events
from prism.recover.supervise.actions import (
    Action,
    Kill,
    Notify,
)
from prism.recover.supervise.following import can_examine, leave_out, note_failure, shadow
from prism.recover.supervise.job import Cause, JobRecord, Phase
from prism.recover.supervise.losses import Spike
from prism.recover.supervise.rollbacks import RollbackHistory, answer_spike

_MAX_SAVED = 200


def on_step(job: JobRecord, event: events.StepDone) -> list[Action]:
    if job.phase is Phase.STOPPING and job.cause is Cause.SPIKE:
        _widen_skip(job, event)
    if job.phase is Phase.STOPPING and job.cause is Cause.ASKED:  # it trains until its last save
        job.last_step, job.best_step = event.step, max(job.best_step, event.step)
    if job.phase is not Phase.RUNNING:
        return []
    job.pace.reports = not event.logged
    if event.step != job.last_step:  # a log may hold the loss of a step in a separate line
        job.pace.step_done(event.now_s, event.trainer_s, job.config.pace)
    job.last_step = event.step
    job.best_step = max(job.best_step, event.step)
    job.resume_step = None
    if event.loss is not None and job.config.losses.enabled:
        batch = event.step if event.batch is None else event.batch
        spike = job.losses.add(event.step, batch, event.loss, job.config.losses)
        if spike is not None:
            return _on_spike(job, event.now_s, spike)
    if job.pace.is_slow(job.config.pace):
        return _on_slow(job, event.now_s)
    return []


def _on_spike(job: JobRecord, now_s: float, spike: Spike) -> list[Action]:
    # Without reports there is no Checkpointer, so no checkpoint is known to roll back to.
    saved = job.saved_steps if job.pace.reports and job.folder else []
    if math.isfinite(spike.loss):
        saved = job.losses.better_than(spike.loss, saved)
    answer = answer_spike(spike, saved, job.rollbacks, job.config.losses)
    if "spike" not in job.config.act_on:
        told_of, job.losses.left_alone = job.losses.left_alone, True
        job.losses.accept()
        would = f"go back to step {answer.resume_step}" if answer.kind == "go back" else ""
        return [] if told_of else [shadow(job, now_s, "spike", answer.text, would)]
    if answer.kind == "leave alone":
        told_of, job.losses.left_alone = job.losses.left_alone, True
        job.losses.accept()
        return [] if told_of else [Notify(level="page", text=f"{answer.text} (losses.enabled: false ends this)")]
    job.phase, job.cause = Phase.STOPPING, Cause.SPIKE
    kill = Kill(attempt=job.attempt, grace_s=0.0)
    if answer.kind == "give up":
        job.cause, job.outcome, job.outcome_text = Cause.ASKED, "failed", answer.text
        return [kill]
    job.num_rollbacks += 1
    job.resume_step = answer.resume_step
    job.rollbacks = RollbackHistory(first_step=spike.first_step, resume_step=answer.resume_step, count=answer.tries)
    text = f"{answer.text}: back to step {job.resume_step}"
    if job.config.losses.skip_batches:
        job.skip.append(BatchRange(first=spike.first_batch, last=spike.last_batch))
        text += f", leaving out batches {job.skip[-1]}"
    return [Notify(level="warning", text=text), kill]


def _widen_skip(job: JobRecord, event: events.StepDone) -> None:
    """Skip the batches of bad steps between the decision and the end of the attempt too."""
    limit = job.losses.limit(job.config.losses)
    bad = event.loss is not None and not (limit is not None and event.loss <= limit)
    if bad and event.batch is not None and job.skip and job.config.losses.skip_batches:
        last = job.skip[-1]
        job.skip[-1] = BatchRange(first=last.first, last=max(last.last, event.batch))


def _on_slow(job: JobRecord, now_s: float) -> list[Action]:
    baseline, present = job.pace.baseline_s or 0.0, min(job.pace.recent[-job.config.pace.slow_steps :])
    text = f"steps take {present:.3g} s or more, {baseline:.3g} s is usual"
    if not can_examine(job) or "slow" not in job.config.act_on:
        job.pace.accept(job.config.pace)
        if not can_examine(job):
            return [shadow(job, now_s, "slow", f"{text}; there is no other host to move to", "")]
        return [shadow(job, now_s, "slow", text, "save, test the hosts and move the job")]
    job.phase, job.cause = Phase.STOPPING, Cause.SLOW
    grace = job.config.launch.grace_s
    return [
        Notify(level="warning", text=f"{text}; saving and testing the hosts"),
        Kill(attempt=job.attempt, grace_s=grace),
    ]


def on_corruption(job: JobRecord, event: events.Corrupted) -> list[Action]:
    """Roll back to the last clean checkpoint. A host is left out only if it is proven wrong and can be replaced."""
    if job.phase is not Phase.RUNNING:
        return []
    good = [step for step in job.saved_steps if step <= event.last_clean_step] if job.folder else []
    if not good or "corruption" not in job.config.act_on:
        would = f"go back to step {max(good)}" if good else ""
        seen = event.why if good else f"{event.why}; no checkpoint is older than that"
        told = shadow(job, event.now_s, "corruption", seen, would)
        return [told, Notify(level="page", text=f"{seen}; the job is left alone")]
    job.phase, job.cause, job.resume_step = Phase.STOPPING, Cause.CORRUPTION, max(good)
    note_failure(job, event.now_s, CORRUPTION, "infrastructure", event.hosts[0] if event.proven else None)
    known = event.proven and event.hosts[0] in job.config.hosts.hosts
    out = leave_out(job, event.now_s, event.hosts[0], "it computes wrong numbers") if known else []
    return [
        Notify(level="page", text=f"{event.why}; back to step {job.resume_step}"),
        *out,
        Kill(attempt=job.attempt, grace_s=0.0),
    ]


def on_checkpoint(job: JobRecord, event: events.Event) -> list[Action]:
    match event:
        case events.FolderOpened():
            job.folder, job.memory = event.folder, event.memory
            job.pace.reports, job.pace.last_seen_s = True, event.now_s
        case events.Restored():
            job.resume_step = None
            job.losses.restored(event.step)
            job.saved_steps = [step for step in job.saved_steps if step <= event.step]
            again = f", {job.best_step - event.step} steps to do again" if job.best_step > event.step else ""
            return [Notify(level="info", text=f"continued from step {event.step} ({event.source}){again}")]
        case events.Saved():
            recovered, job.save_trouble = job.save_trouble, False
            if event.healthy:
                job.saved_steps = [*(s for s in job.saved_steps if s != event.step), event.step][-_MAX_SAVED:]
                job.losses.saved(event.step, job.saved_steps, job.config.losses)
            if recovered:
                return [Notify(level="info", text=f"saves work again: step {event.step} is committed")]
            return _leave_risky(job, event) if event.healthy else []
        case events.SaveFailed():
            first, job.save_trouble = not job.save_trouble, True
            if first:
                text = f"the save of step {event.step} failed ({event.why}); training goes on, the last good stays"
                return [Notify(level="page", text=text)]
        case events.Degraded():
            return [Notify(level="page", text=f"{event.why}; training goes on")]
        case events.CheckpointBroken():
            job.saved_steps = [step for step in job.saved_steps if step != event.step]
            return [Notify(level="warning", text=f"checkpoint {event.step} is damaged and set aside: {event.why}")]
        case events.Preempted():
            job.preempted = True
    return []


def _leave_risky(job: JobRecord, event: events.Saved) -> list[Action]:
    """Replace the host that is most likely to fail by a safer spare; right after a save this costs only a restart."""
    limit = job.config.hosts.most_risk_per_day
    if not limit or not job.per_day or job.phase is not Phase.RUNNING:
        return []
    risks, out = Risks(per_day=job.per_day), {*job.book.cordoned(), *job.hosts}
    spares = [host for host in job.config.hosts.hosts if host not in out]
    worst = max(job.hosts, key=risks.of, default="")
    if not worst or not spares or not risks.of(worst) > max(limit, 2.0 * min(map(risks.of, spares))):
        return []
    why = f"{risks.of(worst):.2g} failures a day are predicted"
    hours = job.book.exclude(worst, event.now_s, why, job.config.hosts)
    if not hours:
        return []
    job.phase, job.cause = Phase.STOPPING, Cause.RISK
    text = f"step {event.step} is saved; leaving {worst} for {hours:g} h: {why} (hosts.most_risk_per_day {limit:g})"
    return [
        Notify(level="warning", text=text),
        Kill(attempt=job.attempt, grace_s=job.config.launch.grace_s),
    ]
