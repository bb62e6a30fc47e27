"""Runs an evaluation: what the engine reports becomes events, what the scheduler decides becomes jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prism.evaluate import actions, events
from prism.evaluate.crew import Crew, Duty
from prism.evaluate.engines.engine import Outcome
from prism.evaluate.events import Event, Failure
from prism.evaluate.jobs import CombineJob, InferJob, Inferred, Pulled, PullJob, ReleaseJob, ScoreJob
from prism.evaluate.loading.source import SourceFile
from prism.evaluate.run_log import RunLog
from prism.evaluate.scheduler import Scheduler
from prism.evaluate.store import Store
from prism.evaluate.trials import Checkpoint, Dataset, Part, Trial

_PATIENCE = 20.0  # times the expected seconds, after which an inference counts as hung
_LEAST_PATIENCE_S = 600.0
GIVE_BACK = "give-back"  # a file with the number of workers that training wants


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint as workers get it: where it lies, which files, and the key of its copies."""

    name: str
    address: str
    key: str
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A checkpoint that came while the evaluation ran."""

    checkpoint: Checkpoint
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """What jobs need to know of the run."""

    folder: Path
    roots: tuple[Path, ...] = ()  # of the shelf; empty: its own choice
    threads: int = 1  # of a worker; more make sums in another order, and scores that differ in their last digits
    tick_s: float = 1.0
    score_timeout_s: float = 600.0


@dataclass(slots=True)
class Findings:
    """What the run gave."""

    metrics: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    failures: list[actions.ReportFailure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_trials: int = 0


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
        crew: Crew,
        config: CoordinatorConfig,
        *,
        models: Mapping[str, Model],
        datasets: Sequence[Dataset],
        fingerprint: Callable[[str, str], str],
        log: RunLog,
    ) -> None:
        self.scheduler = scheduler
        self.found = Findings()
        self._crew = crew
        self._config = config
        self._models = dict(models)
        self._datasets = {dataset.name: dataset for dataset in datasets}
        self._fingerprint = fingerprint
        self._log = log
        self._store = Store(config.folder)
        self._runs: dict[str, _Run] = {}
        self._offers: dict[tuple[str, str], str] = {}  # by node and checkpoint
        self._combining: dict[tuple[str, str], tuple[Part, ...]] = {}
        self._finished = False
        self._started = time.monotonic()

    @property
    def now_s(self) -> float:
        """The run's clock."""
        return time.monotonic() - self._started

    def run(self, arrivals: Callable[[], Iterable[Arrival] | None] = lambda: None) -> Findings:
        """Until nothing is left; `arrivals` gives checkpoints that came since, or None when no more will come."""
        try:
            self._loop(arrivals)
        except BaseException:
            with contextlib.suppress(OSError):  # a full disk may be what stopped it
                self._log.write_progress(self.scheduler.progress(self.now_s), self.found, state="stopped")
            raise
        self._log.write_progress(self.scheduler.progress(self.now_s), self.found, state="done")
        return self.found

    def _loop(self, arrivals: Callable[[], Iterable[Arrival] | None]) -> None:
        next_tick = 0.0
        while True:
            self._take(*self._collect())
            if self.now_s >= next_tick:
                next_tick = self.now_s + self._config.tick_s
                self._heed_training()
                self._take(events.Tick(now_s=self.now_s))
                self._log.write_progress(self.scheduler.progress(self.now_s), self.found)
                if (news := arrivals()) is None and self._finished and not self._combining:
                    return
                self._add(news or ())

    def _heed_training(self) -> None:
        """Give workers up while the file `give-back` asks for it, and take them again afterwards."""
        wanted = read_wanted(self._config.folder / GIVE_BACK)
        if chosen := self._crew.lend(wanted):
            self._log.say(f"{len(chosen)} workers make way for training")
            self._take(events.Preempted(now_s=self.now_s, workers=chosen))
            for worker in chosen:
                self._runs.pop(worker, None)
                self._crew.dismiss(worker)
        self._crew.take_back(wanted)

    def _add(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self._models[arrival.model.name] = arrival.model
            self._log.steps[arrival.checkpoint.name] = arrival.checkpoint.step
            self._finished = False
            self._take(events.CheckpointAdded(now_s=self.now_s, checkpoint=arrival.checkpoint))

    def _collect(self) -> list[Event]:
        """Wait a little, and say what happened in the scheduler's words."""
        found: list[Event] = [*self._crew.watch_nodes(self.now_s)]
        for duty, outcome in self._crew.wait(0.0 if found else self._config.tick_s / 5):
            found += self._translate(duty, outcome)
        return [*found, *self._crew.changes(self.now_s)]

    def _take(self, *seen: Event) -> None:
        """Tell the scheduler what came together, and do what it says."""
        for action in self.scheduler.handle(*seen) if seen else ():
            self._perform(action)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.LoadCheckpoint():
                self._load(action)
            case actions.ReleaseCheckpoint():
                self._offers.pop((action.node, action.checkpoint), None)
                self._crew.tend(action.node, ReleaseJob(key=self._models[action.checkpoint].key), Duty(kind="release"))
            case actions.StartInference():
                self.found.num_trials += 1
                self._runs[action.worker] = _Run(trial=action.trial, waiting=list(action.trial.parts))
                self._infer_next(action.worker)
            case actions.CancelInference():
                self._runs.pop(action.worker, None)
                self._crew.dismiss(action.worker)
            case actions.StartScore():
                self._score(action)
            case actions.CombineScores():
                self._combine(action)
            case actions.ReportFailure():
                self.found.failures.append(action)
                self._log.say(f"{action.part}: given up ({action.phase}): {action.text}")
            case actions.Finish():
                self._finished = True

    def _load(self, action: actions.LoadCheckpoint) -> None:
        model = self._models[action.checkpoint]
        offered = self._offers.get((action.source or "", action.checkpoint))
        job = PullJob(
            key=model.key,
            addresses=(*([offered] if offered else []), model.address),
            files=model.files,
            roots=self._config.roots,
            host=self._crew.address(action.node),
        )
        self._crew.tend(action.node, job, Duty(kind="load", checkpoint=action.checkpoint, node=action.node))

    def _infer_next(self, worker: str) -> None:
        run, spec = self._runs[worker], self._crew.worker(worker)
        if spec is None:
            del self._runs[worker]
            return
        part = run.waiting.pop(0)
        dataset, model = self._datasets[part.dataset], self._models[part.checkpoint]
        job = InferJob(
            part=part,
            dataset=dataset,
            key=model.key,
            roots=self._config.roots,
            folder=self._config.folder,
            fingerprint=self._fingerprint(part.checkpoint, part.dataset),
            device="cuda:0" if spec.gpus else "cpu",
            threads=self._config.threads,
            shrink=run.trial.shrink,
        )
        limit_s = max(_LEAST_PATIENCE_S, _PATIENCE * run.trial.expected_s)
        self._crew.assign(worker, job, Duty(kind="infer", part=part, node=spec.node, limit_s=limit_s))

    def _score(self, action: actions.StartScore) -> None:
        dataset = self._datasets[action.part.dataset]
        job = ScoreJob(
            part=action.part,
            dataset=dataset,
            folder=self._config.folder,
            fingerprint=self._fingerprint(action.part.checkpoint, action.part.dataset),
        )
        limit_s = float(dataset.settings.get("score_timeout_s", self._config.score_timeout_s))
        duty = Duty(kind="score", part=action.part, node=action.node, limit_s=limit_s, attempt=action.attempt)
        self._crew.score(action.node, job, duty)

    def _combine(self, action: actions.CombineScores) -> None:
        key = (action.checkpoint, action.dataset)
        word = self._fingerprint(*key)
        if (kept := self._store.read_metrics(*key, word)) is not None:
            self.found.metrics[key] = kept
            return
        self._combining[key] = action.parts
        job = CombineJob(
            dataset=self._datasets[action.dataset], parts=action.parts, folder=self._config.folder, fingerprint=word
        )
        limit_s = self._config.score_timeout_s
        self._crew.score(None, job, Duty(kind="combine", part=action.parts[0], limit_s=limit_s))

    def _translate(self, duty: Duty, outcome: Outcome) -> list[Event]:
        """An ended job as events; what nobody waits for any more is none."""
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
                return [events.ScoreFailed(now_s=now, part=duty.part, text=outcome.text)]
            case "combine" if duty.part is not None:
                self._end_combining((duty.part.checkpoint, duty.part.dataset), outcome)
        return []

    def _translate_infer(self, duty: Duty, outcome: Outcome) -> list[Event]:
        run = self._runs.get(duty.worker)
        if run is None or duty.part is None:
            return []
        if duty.lost:
            del self._runs[duty.worker]
            return []  # the crew tells of the worker itself
        if not isinstance(outcome.value, Inferred):
            del self._runs[duty.worker]
            failure = outcome.failure or Failure.OTHER
            return [events.InferenceFailed(now_s=self.now_s, trial=run.trial.id, failure=failure, text=outcome.text)]
        spent = outcome.value
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
        self._combining.pop(key, None)
        if outcome.failure is None:
            self.found.metrics[key] = outcome.value
        else:
            self.found.problems.append(f"{key[0]}/{key[1]}: its scores cannot be combined: {outcome.text}")
            self._log.say(self.found.problems[-1])


def read_wanted(path: Path) -> int:
    """How many workers training asks for; what cannot be read asks for none."""
    try:
        return max(0, int(path.read_text().strip() or 0))
    except (OSError, ValueError):
        return 0
