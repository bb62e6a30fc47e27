"""The run as the supervisor sees it: events in, actions out, no files, no processes, no clocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from prism.records.verdict import Verdict
from prism.recover.progress import BatchRange
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
    Notify,
    TakeStacks,
    Uncordon,
)
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.explainer import PREEMPTED
from prism.recover.supervise.hosts import HostBook
from prism.recover.supervise.losses import LossWatch, Spike
from prism.recover.supervise.pace import Pace
from prism.recover.supervise.restarts import CORRUPTION, HANG, SLOW, Failure, judge
from prism.recover.supervise.rollbacks import RollbackHistory, answer_spike

_SURE = 0.8  # a verdict this confident may cordon the host it names without a test
_MAX_SAVED = 200
_LONGER_EACH_TIME = 4.0
_UNKNOWN = Verdict(log="", reason="Unknown", category="unknown", action="restart", confidence=0.0)


class Phase(StrEnum):
    """Where the run stands."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"  # we ended it and wait for its processes
    EXPLAINING = "explaining"
    EXAMINING = "examining"
    WAITING = "waiting"  # for a pause to pass or a host to come back
    OVER = "over"


class Cause(StrEnum):
    """Why we ended an attempt ourselves."""

    HANG = "hang"
    SLOW = "slow"
    SPIKE = "spike"
    CORRUPTION = "corruption"
    ASKED = "asked"


@dataclass(slots=True, kw_only=True)
class JobState:
    """Everything that must survive the supervisor's own death, but for the settings."""

    config: SuperviseConfig = field(default_factory=SuperviseConfig)
    phase: Phase = Phase.NEW
    cause: Cause | None = None
    attempt: int = 0
    hosts: tuple[str, ...] = ()
    last_step: int = -1  # of this attempt
    best_step: int = -1  # of the run
    saved_steps: list[int] = field(default_factory=list)  # committed and healthy, in use
    folder: str = ""
    memory: str = ""
    resume_step: int | None = None
    skip: list[BatchRange] = field(default_factory=list)
    num_rollbacks: int = 0
    rollbacks: RollbackHistory = field(default_factory=RollbackHistory)
    failed_at_step: int = -1  # the furthest that any failed attempt had come
    told_at_step: int = -1  # the furthest that any attempt had come that was told to go
    told_in_vain: int = 0  # such attempts in a row that got no further
    launched_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    preempted: bool = False
    save_trouble: bool = False
    due_s: float = 0.0
    outcome: str = ""
    outcome_text: str = ""
    losses: LossWatch = field(default_factory=LossWatch)
    pace: Pace = field(default_factory=Pace)
    book: HostBook = field(default_factory=HostBook)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.phase is Phase.OVER

    def handle(self, event: events.Event) -> list[Action]:
        """Take an event, change, and say what to do."""
        if self.over:
            return []
        match event:
            case events.Tick():
                return self._on_tick(event.now_s)
            case events.Launched():
                self.hosts = event.hosts
                return []
            case events.Queued():
                self.pace.last_seen_s = event.now_s
                return []
            case events.StepDone():
                return self._on_step(event)
            case events.Heard():
                # A trainer that reports may be stuck while a helper writes; one that does not has only its log.
                self.pace.last_seen_s = self.pace.last_seen_s if self.pace.reports else event.now_s
                return []
            case events.Paused() | events.Resumed():
                self.pace.paused, self.pace.last_seen_s = isinstance(event, events.Paused), event.now_s
                return []
            case events.Corrupted():
                return self._on_corruption(event)
            case events.Exited():
                return self._on_exit(event)
            case events.Explained():
                return self._on_explained(event)
            case events.Examined():
                return self._on_examined(event)
            case events.StopAsked():
                return self._on_stop_asked()
            case _:
                return self._on_checkpoint(event)

    # -- while it runs

    def _on_tick(self, now_s: float) -> list[Action]:
        actions: list[Action] = [Uncordon(host=host) for host in self.book.expire(now_s)]
        if self.phase is Phase.NEW or (self.phase is Phase.WAITING and now_s >= self.due_s):
            return actions + self._launch(now_s)
        limit_s = self._silence_limit_s() if self.phase is Phase.RUNNING else None
        silent_s = now_s - self.pace.last_seen_s
        if limit_s is not None and silent_s > limit_s:
            return actions + self._on_silence(silent_s)
        return actions

    def _silence_limit_s(self) -> float | None:
        """The pace's limit, longer after every hang at this very step: what is silent there again may be at work."""
        limit_s = self.pace.silence_limit_s(self.config.pace)
        before = 0
        for failure in reversed(self.failures):
            if (failure.reason, failure.step) != (HANG, self.last_step):
                break
            before += 1
        return None if limit_s is None else limit_s * _LONGER_EACH_TIME**before

    def _on_silence(self, silent_s: float) -> list[Action]:
        self.phase, self.cause = Phase.STOPPING, Cause.HANG
        what = f"no step for {silent_s:.0f} s after step {self.last_step}" if self.pace.stepped else "never stepped"
        setting = "pace.hang_steps: 0" if self.pace.stepped else "pace.startup_s: 0"
        text = f"attempt {self.attempt} hangs: {what}; stacks are taken, then it is ended"
        return [
            Notify(level="warning", text=f"{text} (if it was at work: progress.pause() around it, or {setting})"),
            TakeStacks(attempt=self.attempt),
            Kill(attempt=self.attempt, grace_s=0.0),
        ]

    def _on_step(self, event: events.StepDone) -> list[Action]:
        if self.phase is Phase.STOPPING and self.cause is Cause.SPIKE:
            self._widen_skip(event)
        if self.phase is not Phase.RUNNING:
            return []
        self.pace.reports = not event.logged
        if event.step != self.last_step:  # a log may tell the loss of a step in a line of its own
            self.pace.step_done(event.now_s, event.trainer_s, self.config.pace)
        self.last_step = event.step
        self.best_step = max(self.best_step, event.step)
        self.resume_step = None
        if event.loss is not None and self.config.losses.enabled:
            batch = event.step if event.batch is None else event.batch
            spike = self.losses.add(event.step, batch, event.loss, self.config.losses)
            if spike is not None:
                return self._on_spike(spike)
        if self.pace.is_slow(self.config.pace):
            return self._on_slow()
        return []

    def _on_spike(self, spike: Spike) -> list[Action]:
        # Without reports there is no checkpointer of ours, and so nothing that a restart could be sent back to.
        saved = self.saved_steps if self.pace.reports and self.folder else []
        answer = answer_spike(spike, saved, self.rollbacks, self.config.losses)
        if answer.kind == "leave alone":
            told_of, self.losses.left_alone = self.losses.left_alone, True
            self.losses.accept()
            return [] if told_of else [Notify(level="page", text=f"{answer.text} (losses.enabled: false ends this)")]
        self.phase, self.cause = Phase.STOPPING, Cause.SPIKE
        kill = Kill(attempt=self.attempt, grace_s=0.0)
        if answer.kind == "give up":
            self.cause, self.outcome, self.outcome_text = Cause.ASKED, "failed", answer.text
            return [kill]
        self.num_rollbacks += 1
        self.resume_step = answer.resume_step
        self.rollbacks = RollbackHistory(
            first_step=spike.first_step, resume_step=answer.resume_step, count=answer.tries
        )
        self.skip.append(BatchRange(first=spike.first_batch, last=spike.last_batch))
        text = f"{answer.text}: back to step {self.resume_step}, leaving out batches {self.skip[-1]}"
        return [Notify(level="warning", text=f"{text} (losses.enabled: false would have let it run)"), kill]

    def _widen_skip(self, event: events.StepDone) -> None:
        """Bad steps between the decision and the end of the attempt belong to the same spike."""
        limit = self.losses.limit(self.config.losses)
        bad = event.loss is not None and not (limit is not None and event.loss <= limit)
        if bad and event.batch is not None and self.skip:
            last = self.skip[-1]
            self.skip[-1] = BatchRange(first=last.first, last=max(last.last, event.batch))

    def _on_slow(self) -> list[Action]:
        baseline, present = self.pace.baseline_s or 0.0, min(self.pace.recent[-self.config.pace.slow_steps :])
        text = f"steps take {present:.3g} s or more, {baseline:.3g} s is usual"
        if not self._can_examine():
            self.pace.accept()
            return [Notify(level="warning", text=f"{text}; there is no other host to move to")]
        self.phase, self.cause = Phase.STOPPING, Cause.SLOW
        grace = self.config.launch.grace_s
        return [
            Notify(level="warning", text=f"{text}; saving and testing the hosts"),
            Kill(attempt=self.attempt, grace_s=grace),
        ]

    def _on_corruption(self, event: events.Corrupted) -> list[Action]:
        """Back to what can be trusted; a host is left out only with proof, and where others can take its place."""
        if self.phase is not Phase.RUNNING:
            return []
        good = [step for step in self.saved_steps if step <= event.last_clean_step] if self.folder else []
        if not good or not self.config.act_on_corruption:
            reason = "act_on_corruption is off" if good else "no checkpoint is older than that"
            return [Notify(level="page", text=f"{event.why}; {reason}, so the job is left alone")]
        self.phase, self.cause, self.resume_step = Phase.STOPPING, Cause.CORRUPTION, max(good)
        self._note_failure(event.now_s, CORRUPTION, "infrastructure", event.hosts[0] if event.proven else None)
        known = event.proven and event.hosts[0] in self.config.hosts.hosts
        out = self._leave_out(event.now_s, event.hosts[0], "it computes wrong numbers") if known else []
        return [
            Notify(level="page", text=f"{event.why}; back to step {self.resume_step}"),
            *out,
            Kill(attempt=self.attempt, grace_s=0.0),
        ]

    def _on_checkpoint(self, event: events.Event) -> list[Action]:
        match event:
            case events.FolderOpened():
                self.folder, self.memory = event.folder, event.memory
                self.pace.reports, self.pace.last_seen_s = True, event.now_s
            case events.Restored():
                self.resume_step = None
                self.saved_steps = [step for step in self.saved_steps if step <= event.step]
            case events.Saved():
                recovered, self.save_trouble = self.save_trouble, False
                if event.healthy:
                    self.saved_steps = [*(s for s in self.saved_steps if s != event.step), event.step][-_MAX_SAVED:]
                if recovered:
                    return [Notify(level="info", text=f"saves work again: step {event.step} is committed")]
            case events.SaveFailed():
                first, self.save_trouble = not self.save_trouble, True
                if first:
                    text = f"the save of step {event.step} failed ({event.why}); training goes on, the last good stays"
                    return [Notify(level="page", text=text)]
            case events.CheckpointBroken():
                self.saved_steps = [step for step in self.saved_steps if step != event.step]
                return [Notify(level="warning", text=f"checkpoint {event.step} is damaged and set aside: {event.why}")]
            case events.Preempted():
                self.preempted = True
        return []

    # -- when it ended

    def _on_exit(self, event: events.Exited) -> list[Action]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return []
        if self.phase is Phase.STOPPING:
            return self._on_stopped(event)
        # What is left of the attempt must go before anything else starts.
        sweep: list[Action] = [Kill(attempt=self.attempt, grace_s=0.0)]
        if self.preempted:
            return sweep + self._on_preempted(event.now_s)
        if event.code == 0:
            return sweep + self._on_clean_exit()
        self.phase = Phase.EXPLAINING
        self._note_failure(event.now_s, "Unknown", "unknown", event.host)
        if event.lost and event.host is not None:
            known = events.Explained(now_s=event.now_s, verdict=_node_failure(event.host))
            return sweep + self._on_explained(known)
        return [*sweep, Explain(attempt=self.attempt, code=event.code)]

    def _on_preempted(self, now_s: float) -> list[Action]:
        text = f"attempt {self.attempt} was told to go at step {self.last_step}"
        gained, self.told_at_step = self.best_step > self.told_at_step, max(self.best_step, self.told_at_step)
        self.told_in_vain = 0 if gained else self.told_in_vain + 1
        policy = self.config.restarts
        # Something that ends it again and again must not make it start again and again without a pause.
        pause_s = min(policy.max_backoff_s, policy.backoff_s * 2.0**self.told_in_vain) if self.told_in_vain > 1 else 0.0
        self.due_s = now_s + pause_s
        return self._wait_or_launch(now_s, text)

    def _on_clean_exit(self) -> list[Action]:
        tries = f"after {self.attempt} attempt{'s' if self.attempt > 1 else ''}"
        if self.best_step < 0:
            return [self._finish("done", f"finished {tries}; it reported no steps")]
        return [self._finish("done", f"finished at step {self.best_step} {tries}")]

    def _on_stopped(self, event: events.Exited) -> list[Action]:
        cause, self.cause = self.cause, None
        if cause is Cause.ASKED:
            text = self.outcome_text or f"stopped on request at step {self.last_step}"
            return [self._finish("failed" if self.outcome == "failed" else "stopped", text)]
        if cause is Cause.SPIKE:
            self.losses.bad_steps, self.losses.bad_batches = [], []
            return self._discard() + self._launch(event.now_s)
        if cause is Cause.CORRUPTION:
            judged = judge(_UNKNOWN, self.failures, policy=self.config.restarts)
            if not judged.restart:
                return [self._finish("failed", judged.why)]
            self.due_s = event.now_s + judged.pause_s
            return self._discard() + self._wait_or_launch(event.now_s, judged.why)
        if cause is Cause.SLOW:
            self.phase = Phase.EXAMINING
            self._note_failure(event.now_s, SLOW, "hang", None)
            return [Examine(hosts=self._testable())]
        self.phase = Phase.EXPLAINING
        self._note_failure(event.now_s, HANG, "hang", event.host)
        return [Explain(attempt=self.attempt, code=event.code)]

    def _discard(self) -> list[Action]:
        """Take what was saved after the place to go back to out of use."""
        if not self.folder or self.resume_step is None:
            return []
        self.saved_steps = [step for step in self.saved_steps if step <= (self.resume_step or 0)]
        return [DiscardAfter(folder=self.folder, step=self.resume_step)]

    def _on_explained(self, event: events.Explained) -> list[Action]:
        if self.phase is not Phase.EXPLAINING:
            return []
        verdict, newest = event.verdict, self.failures[-1]
        if verdict.reason == PREEMPTED and newest.reason != HANG:
            self.failures.pop()
            return self._on_preempted(event.now_s)
        if newest.reason != HANG:
            named = next((h for h in verdict.hosts if h in self.hosts and len(self.hosts) > 1), newest.host)
            self.failures[-1] = replace(newest, reason=verdict.reason, category=verdict.category, host=named)
        judged = judge(verdict, self.failures, policy=self.config.restarts)
        if not judged.restart:
            return [self._finish("failed", judged.why)]
        out_before = self.book.cordoned()
        actions = self._blame(event.now_s, verdict.hosts, verdict.confidence, verdict.reason)
        self.due_s = event.now_s + judged.pause_s
        infrastructure = verdict.category == "infrastructure" or newest.reason == HANG
        if infrastructure and self.book.cordoned() == out_before and self._can_examine():
            self.phase = Phase.EXAMINING
            return [*actions, Examine(hosts=self._testable())]
        return actions + self._wait_or_launch(event.now_s, judged.why)

    def _on_examined(self, event: events.Examined) -> list[Action]:
        if self.phase is not Phase.EXAMINING:
            return []
        # Slow is reason enough to leave a host only where the run itself was slow.
        was_slow = bool(self.failures) and self.failures[-1].reason == SLOW
        out_before = self.book.cordoned()
        failed = [host for host in event.condemned if host not in event.slow]
        actions = [self._cordon(event.now_s, host, "failed the host test") for host in failed]
        for host in event.slow if was_slow else ():
            actions += self._leave_out(event.now_s, host, "slower than the others in the host test")
        # Between two good hosts only the link is bad: one of the two leaves, the other stays.
        for first, second in event.bad_links:
            if not {first, second} & set(self.book.cordoned()):
                actions += self._leave_out(event.now_s, second, f"bad link to {first}")
        num_out = len(self.book.cordoned()) - len(out_before)
        if not num_out and was_slow:
            self.pace.accept()
        found = f"{num_out} hosts left in {event.num_tests} tests" if not event.error else event.error
        return actions + self._wait_or_launch(event.now_s, found)

    def _on_stop_asked(self) -> list[Action]:
        if self.phase is Phase.RUNNING:
            self.phase, self.cause = Phase.STOPPING, Cause.ASKED
            return [Kill(attempt=self.attempt, grace_s=self.config.launch.grace_s)]
        if self.phase is Phase.STOPPING:
            self.cause = Cause.ASKED
            return [Kill(attempt=self.attempt, grace_s=0.0)]  # asked a second time: now
        return [self._finish("stopped", f"stopped on request at step {self.best_step}")]

    # -- what follows

    def _wait_or_launch(self, now_s: float, why: str) -> list[Action]:
        if now_s >= self.due_s:
            return [Notify(level="info", text=f"restarting: {why}"), *self._launch(now_s)]
        self.phase = Phase.WAITING
        return [Notify(level="info", text=f"restarting in {self.due_s - now_s:.0f} s: {why}")]

    def _launch(self, now_s: float) -> list[Action]:
        chosen: tuple[str, ...] | None = ()
        if self.config.hosts.hosts:
            chosen = self.book.choose(self.hosts, self.config.hosts)
        if chosen is None:
            self.phase = Phase.WAITING
            self.due_s = self.book.next_expiry_s() or now_s
            text = f"too few hosts are left ({', '.join(self.book.cordoned())} are out); waiting for one to come back"
            return [Notify(level="page", text=text)]
        self.attempt += 1
        self.phase, self.cause, self.preempted, self.last_step = Phase.RUNNING, None, False, -1
        self.launched_s, self.losses.left_alone = now_s, False
        self.hosts = chosen
        self.pace.restart(now_s)
        launch = Launch(
            attempt=self.attempt,
            hosts=chosen,
            num_hosts=len(chosen) or self.config.hosts.num_hosts or 1,
            excluded=self.book.cordoned(),
            resume_step=self.resume_step,
            skip=tuple(self.skip),
        )
        return [launch]

    def _blame(self, now_s: float, named: tuple[str, ...], confidence: float, reason: str) -> list[Action]:
        """Strike the host where the failure began; cordon it when it is named for sure, or struck too often."""
        known = [host for host in named if host in self.hosts]
        if known and confidence >= _SURE:
            return [self._cordon(now_s, host, reason) for host in known]
        began_on = known[0] if known else self.failures[-1].host
        if began_on is None or len(self.hosts) < 2:
            return []
        if self.book.strike(began_on, now_s, self.config.hosts):
            return self._leave_out(now_s, began_on, f"failures keep beginning here ({reason})")
        return []

    def _leave_out(self, now_s: float, host: str, reason: str) -> list[Action]:
        """Without proof a host is left out of this run alone, where others can take its place; no scheduler is told."""
        hours = self.book.exclude(host, now_s, reason, self.config.hosts)
        what = f"is left out of this run for {hours:g} h" if hours else "stays, there is no other host to move to"
        return [Notify(level="warning", text=f"{host} {what}: {reason}")]

    def _cordon(self, now_s: float, host: str, reason: str) -> Action:
        return Cordon(host=host, reason=reason, hours=self.book.cordon(host, now_s, reason, self.config.hosts))

    def _can_examine(self) -> bool:
        return self.config.examine.enabled and len(self._testable()) > 2

    def _testable(self) -> tuple[str, ...]:
        """The job's hosts, and the spares, which serve as witnesses."""
        out = set(self.book.cordoned())
        return tuple(dict.fromkeys(h for h in (*self.hosts, *self.config.hosts.hosts) if h not in out))

    def _note_failure(self, now_s: float, reason: str, category: str, host: str | None) -> None:
        lived_s = now_s - self.launched_s
        silent = self.best_step < 0 and lived_s >= self.config.restarts.useful_s
        failure = Failure(
            at_s=now_s,
            reason=reason,
            category=category,
            step=self.last_step,
            host=host if len(self.hosts) > 1 else None,  # with one host there is no choice, so no blame
            lived_s=lived_s,
            gained=self.best_step > self.failed_at_step or silent,
        )
        self.failed_at_step = max(self.failed_at_step, self.best_step)
        self.failures.append(failure)

    def _finish(self, outcome: str, text: str) -> Action:
        self.phase, self.outcome, self.outcome_text = Phase.OVER, outcome, text
        assert outcome in ("done", "stopped", "failed")
        return Finish(outcome=outcome, text=text, memory=self.memory)  # type: ignore[arg-type]


def _node_failure(host: str) -> Verdict:
    """What the scheduler knows for sure needs no reading of logs."""
    return Verdict(
        log="scheduler",
        reason="NodeFailure",
        category="infrastructure",
        action="isolate_and_restart",
        confidence=1.0,
        hosts=(host,),
    )
