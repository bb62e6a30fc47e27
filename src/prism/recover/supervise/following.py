"""Steps that several decisions share: launch again, take a host out of use, note a failure, finish."""

from __future__ import annotations

from prism.recover.risks import Risks
from prism.recover.supervise.actions import (
    Action,
    Cordon,
    Finish,
    Launch,
    Notify,
    Shadow,
)
from prism.recover.supervise.job import JobRecord, Judged, Phase
from prism.recover.supervise.restarts import Failure

_MAX_SHADOWS = 20
_SURE = 0.8  # a verdict with this confidence cordons the host that it names without a test


def wait_or_launch(job: JobRecord, now_s: float, why: str) -> list[Action]:
    if now_s >= job.due_s:
        return [Notify(level="info", text=f"restarting: {why}"), *launch(job, now_s)]
    job.phase = Phase.WAITING
    return [Notify(level="info", text=f"restarting in {job.due_s - now_s:.0f} s: {why}")]


def launch(job: JobRecord, now_s: float) -> list[Action]:
    chosen: tuple[str, ...] | None = ()
    if job.config.hosts.hosts:
        chosen = job.book.choose(job.hosts, job.config.hosts, Risks(per_day=job.per_day))
    if chosen is None:
        job.phase = Phase.WAITING
        job.due_s = job.book.next_expiry_s() or now_s
        text = f"too few hosts are left ({', '.join(job.book.cordoned())} are out); waiting for one to come back"
        return [Notify(level="page", text=text)]
    job.attempt += 1
    job.phase, job.cause, job.preempted, job.last_step = Phase.RUNNING, None, False, -1
    job.launched_s, job.losses.left_alone, job.own_code = now_s, False, None
    job.hosts = chosen
    job.pace.restart(now_s)
    launch = Launch(
        attempt=job.attempt,
        hosts=chosen,
        num_hosts=len(chosen) or job.config.hosts.num_hosts or 1,
        excluded=job.book.cordoned(),
        resume_step=job.resume_step,
        skip=tuple(job.skip),
    )
    return [launch]


def shadow(job: JobRecord, now_s: float, judgement: str, seen: str, would: str) -> Action:
    """Write a judgement down without acting on it."""
    text = f"{seen}; would {would} (--act-on {judgement})" if would else seen
    judged = Judged(at_s=now_s, attempt=job.attempt, judgement=judgement, text=text)
    job.shadows = [*job.shadows, judged][-_MAX_SHADOWS:]
    return Shadow(judgement=judgement, text=text)


def blame(job: JobRecord, now_s: float, named: tuple[str, ...], confidence: float, reason: str) -> list[Action]:
    """Count the failure against the host where it began; cordon a host that is named with certainty."""
    known = [host for host in named if host in job.hosts]
    if known and confidence >= _SURE:
        return [cordon(job, now_s, host, reason) for host in known]
    began_on = known[0] if known else job.failures[-1].host
    if began_on is None or len(job.hosts) < 2:
        return []
    if job.book.strike(began_on, now_s, job.config.hosts):
        return leave_out(job, now_s, began_on, f"repeated failures began here ({reason})")
    return []


def leave_out(job: JobRecord, now_s: float, host: str, reason: str) -> list[Action]:
    """Leave a host out of this run only, without notifying the scheduler: there is no proof against it."""
    hours = job.book.exclude(host, now_s, reason, job.config.hosts)
    what = f"is left out of this run for {hours:g} h" if hours else "stays, there is no other host to move to"
    return [Notify(level="warning", text=f"{host} {what}: {reason}")]


def cordon(job: JobRecord, now_s: float, host: str, reason: str) -> Action:
    return Cordon(host=host, reason=reason, hours=job.book.cordon(host, now_s, reason, job.config.hosts))


def can_examine(job: JobRecord) -> bool:
    return job.config.examine.enabled and len(testable(job)) > 2


def testable(job: JobRecord) -> tuple[str, ...]:
    """The hosts to test: the job's own, and the spares for comparison."""
    out = set(job.book.cordoned())
    return tuple(dict.fromkeys(h for h in (*job.hosts, *job.config.hosts.hosts) if h not in out))


def note_failure(
    job: JobRecord, now_s: float, reason: str, category: str, host: str | None, *, saved: str = ""
) -> None:
    lived_s = now_s - job.launched_s
    # Steps that the trainer reports are facts. Without them, or if they come from a log, other signs count as well.
    counted = job.pace.reports and job.best_step >= 0
    other = not counted and (bool(saved) or lived_s >= job.config.restarts.useful_s)
    failure = Failure(
        at_s=now_s,
        reason=reason,
        category=category,
        step=job.last_step,
        host=host if len(job.hosts) > 1 else None,  # with one host there is no other to use instead
        lived_s=lived_s,
        gained=job.best_step > job.failed_at_step or other,
        code=job.own_code,
    )
    job.failed_at_step = max(job.failed_at_step, job.best_step)
    job.failures.append(failure)


def finish(job: JobRecord, outcome: str, text: str) -> Action:
    job.phase, job.outcome, job.outcome_text = Phase.OVER, outcome, text
    assert outcome in ("done", "stopped", "failed")
    return Finish(outcome=outcome, text=text, memory=job.memory)  # type: ignore[arg-type]
