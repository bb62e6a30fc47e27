"""Runs an evaluation: what the engine reports becomes events, what the scheduler decides becomes jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prism.evaluate.run.assignments import Assignments
from prism.evaluate.run.engines.engine import Outcome
from prism.evaluate.run.jobs import Combined, Inferred, Pulled
from prism.evaluate.run.node_states import Duty
from prism.evaluate.run.outcomes import Findings, Problem
from prism.evaluate.run.run_log import RunLog
from prism.evaluate.run.store import Store
from prism.evaluate.run.workers import WorkerPool
from prism.evaluate.schedule import actions, events
from prism.evaluate.schedule.events import Event, Failure
from prism.evaluate.schedule.scheduler import Scheduler
from prism.evaluate.schedule.trials import Checkpoint, Kept, Part, Trial

_TICK_S = 1.0
GIVE_BACK = "give-back"  # a file with the number of workers that training wants
# Checkpoints that came since it was last asked, each with what an earlier run has kept of it; None: no more will come.
Arrivals = Callable[[], Iterable[tuple[Checkpoint, Kept]] | None]


@dataclass(slots=True)
class _Run:
    """A trial on its worker, and its parts that are still to come."""

    trial: Trial
    waiting: list[Part]


class Coordinator:
    """One evaluation."""

    def __init__(
        self,
        scheduler: Scheduler,
        worker_pool: WorkerPool,
        assignments: Assignments,
        log: RunLog,
        busy_gpus: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self.scheduler = scheduler
        self._busy_gpus = busy_gpus  # those that training uses; none where it does not matter
        self.found = Findings()
        self._worker_pool = worker_pool
        self._jobs = assignments
        self._log = log
        self._num_published = 0
        self._plan_reported = False
        self._folder = assignments.folder
        self._runs: dict[str, _Run] = {}
        self._offers: dict[tuple[str, str], str] = {}  # by node and checkpoint
        self._combining: set[tuple[str, str]] = set()
        self._finished = False
        self._started = time.monotonic()

    @property
    def now_s(self) -> float:
        """The run's clock."""
        return time.monotonic() - self._started

    def run(self, arrivals: Arrivals, publish: Callable[[Findings], None]) -> Findings:
        """Until nothing is left.

        `publish` gets all results whenever there are new ones.
        """
        try:
            self._loop(arrivals, publish)
        except BaseException:
            with contextlib.suppress(OSError):  # a full disk may be what stopped it
                self._log.write_progress(self.scheduler.progress(self.now_s), self.found, state="stopped")
            raise
        self._log.write_progress(self.scheduler.progress(self.now_s), self.found, state="done")
        return self.found

    def _loop(self, arrivals: Arrivals, publish: Callable[[Findings], None]) -> None:
        next_tick = 0.0
        while True:
            self._take(*self._collect())
            if self.now_s >= next_tick:
                next_tick = self.now_s + _TICK_S
                self._make_way_for_training()
                self._take(events.Tick(now_s=self.now_s))
                self._report_progress(publish)
                if (news := arrivals()) is None and self._finished and not self._combining:
                    return
                self._add(news or ())

    def _report_progress(self, publish: Callable[[Findings], None]) -> None:
        """Where the run stands, its plan once there is one, and results as they come."""
        progress = self.scheduler.progress(self.now_s)
        self._log.write_progress(progress, self.found)
        if progress.workers and progress.samples and not self._plan_reported:
            self._plan_reported = True
            self._log.write_plan(progress, self.scheduler.lower_bound_s())
        if len(self.found.metrics) > self._num_published:
            self._num_published = len(self.found.metrics)
            publish(self.found)

    def _make_way_for_training(self) -> None:
        """Stop workers while the file `give-back` or a busy GPU requires it, and start them again afterwards."""
        wanted, busy = read_wanted(self._folder / GIVE_BACK), self._busy_gpus()
        if chosen := self._worker_pool.give_to_training(wanted, busy):
            self._log.say(f"{len(chosen)} workers make way for training")
            self._take(events.Preempted(now_s=self.now_s, workers=chosen))
            for worker in chosen:
                self._runs.pop(worker, None)
                self._worker_pool.dismiss(worker)
        self._worker_pool.take_back(wanted, busy)

    def _add(self, arrivals: Iterable[tuple[Checkpoint, Kept]]) -> None:
        added = [events.CheckpointAdded(now_s=self.now_s, checkpoint=one, kept=kept) for one, kept in arrivals]
        for event in added:
            self._log.steps[event.checkpoint.name] = event.checkpoint.step
            self._finished = False
        self._take(*added)

    def _collect(self) -> list[Event]:
        """Wait a little, and say what happened in the scheduler's words."""
        found: list[Event] = [*self._worker_pool.watch_nodes(self.now_s)]
        for duty, outcome in self._worker_pool.wait(0.0 if found else _TICK_S / 5):
            found += self._translate(duty, outcome)
        found += self._worker_pool.changes(self.now_s)
        if lost := {event.node for event in found if isinstance(event, events.NodeLost)}:
            self._runs = {
                worker: run for worker, run in self._runs.items() if self._worker_pool.worker(worker) is not None
            }
            self._offers = {key: address for key, address in self._offers.items() if key[0] not in lost}
        return found

    def _take(self, *seen: Event) -> None:
        """Pass events that came together to the scheduler, and perform its actions."""
        for action in self.scheduler.handle(*seen) if seen else ():
            self._perform(action)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.LoadCheckpoint():
                offered = self._offers.get((action.source or "", action.checkpoint))
                self._worker_pool.tend(self._jobs.load(action, self._worker_pool.address(action.node), offered))
            case actions.ReleaseCheckpoint():
                self._offers.pop((action.node, action.checkpoint), None)
                self._worker_pool.tend(self._jobs.release(action))
            case actions.StartInference():
                self.found.num_trials += 1
                self._runs[action.worker] = _Run(trial=action.trial, waiting=list(action.trial.parts))
                self._infer_next(action.worker)
            case actions.StartScore():
                self._worker_pool.score(self._jobs.score(action))
            case actions.CombineScores():
                self._combine(action)
            case actions.ReportFailure():
                part, phase, text = action.part, action.phase, action.text
                self.report(
                    Problem(checkpoint=part.checkpoint, dataset=part.dataset, part=part, phase=phase, text=text)
                )
            case actions.Finish():
                self._finished = True

    def _infer_next(self, worker: str) -> None:
        run, spec = self._runs[worker], self._worker_pool.worker(worker)
        if spec is None:
            del self._runs[worker]
            return
        self._worker_pool.assign(worker, self._jobs.infer(run.waiting.pop(0), run.trial, spec))

    def _combine(self, action: actions.CombineScores) -> None:
        key = (action.checkpoint, action.dataset)
        kept = Store(self._folder).read_metrics(*key, self._jobs.fingerprint(*key))
        if kept is not None:
            self.found.metrics[key] = kept
            return
        self._combining.add(key)
        self._worker_pool.score(self._jobs.combine(action))

    def _translate(self, duty: Duty, outcome: Outcome) -> list[Event]:
        """An ended job as events; none if its result is no longer needed."""
        now = self.now_s
        self._log.write_phase(duty, outcome)
        match duty.kind:
            case "load" if isinstance(outcome.value, Pulled):
                self._offers[duty.node, duty.checkpoint] = outcome.value.address
                seconds = outcome.value.seconds
                return [events.CheckpointLoaded(now_s=now, node=duty.node, checkpoint=duty.checkpoint, seconds=seconds)]
            case "load":
                return [events.LoadFailed(now_s=now, node=duty.node, checkpoint=duty.checkpoint, text=outcome.text)]
            case "infer":
                return self._translate_infer(duty, outcome)
            case "score" if duty.part is not None:
                if outcome.failure is None:
                    return [events.ScoreFinished(now_s=now, part=duty.part, seconds=outcome.value)]
                hung = outcome.failure is Failure.HUNG
                return [events.ScoreFailed(now_s=now, part=duty.part, text=outcome.text, hung=hung)]
            case "combine" if duty.part is not None:
                self._end_combining((duty.part.checkpoint, duty.part.dataset), outcome)
        return []

    def _translate_infer(self, duty: Duty, outcome: Outcome) -> list[Event]:
        run = self._runs.get(duty.worker)
        if run is None or duty.part is None:
            return []
        if duty.lost:
            del self._runs[duty.worker]
            return []  # the pool reports the worker itself
        if not isinstance(outcome.value, Inferred):
            del self._runs[duty.worker]
            failure = outcome.failure or Failure.OTHER
            return [events.InferenceFailed(now_s=self.now_s, trial=run.trial.id, failure=failure, text=outcome.text)]
        spent = outcome.value
        total = self.found.usage.setdefault(duty.part.checkpoint, {}) if spent.usage else {}
        for name, value in spent.usage.items():
            total[name] = total.get(name, 0) + value
        part_done = events.PartInferred(
            now_s=self.now_s,
            trial=run.trial.id,
            part=duty.part,
            seconds=spent.seconds,
            setup_s=spent.setup_s,
            start_s=spent.start_s,
        )
        if run.waiting:
            self._infer_next(duty.worker)
            return [part_done]
        del self._runs[duty.worker]
        return [part_done, events.InferenceFinished(now_s=self.now_s, trial=run.trial.id)]

    def _end_combining(self, key: tuple[str, str], outcome: Outcome) -> None:
        self._combining.discard(key)
        text = outcome.text
        samples: tuple[int, ...] = ()
        if isinstance(outcome.value, Combined):
            text, samples = outcome.value.problem, outcome.value.samples
            if outcome.value.metrics:
                self.found.metrics[key] = outcome.value.metrics
        else:
            text = f"its scores cannot be combined: {text}"
        if text:
            self.report(Problem(checkpoint=key[0], dataset=key[1], phase="combine", text=text, samples=samples))

    def report(self, problem: Problem) -> None:
        """Keep why a result is missing, and report it."""
        self.found.problems.append(problem)
        self._log.say(f"{problem.place}: given up ({problem.phase}): {problem.text}")


def read_wanted(path: Path) -> int:
    """How many workers training needs; 0 if the file cannot be read."""
    try:
        return max(0, int(path.read_text().strip() or 0))
    except (OSError, ValueError):
        return 0
