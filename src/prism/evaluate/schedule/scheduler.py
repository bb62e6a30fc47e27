"""The evaluation as the coordinator sees it: events in, actions out, no files, no processes, no clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from prism.errors import BadConfigError
from prism.evaluate.schedule import events
from prism.evaluate.schedule.actions import Action, Finish, StartScore
from prism.evaluate.schedule.cluster import Cluster, WorkerState
from prism.evaluate.schedule.cutting import CuttingConfig
from prism.evaluate.schedule.dispatch import Dispatcher
from prism.evaluate.schedule.ledger import Ledger, Retry
from prism.evaluate.schedule.planner import Planner
from prism.evaluate.schedule.pools import Pool
from prism.evaluate.schedule.priors import Priors, Took
from prism.evaluate.schedule.score_queue import ScoreQueue
from prism.evaluate.schedule.standing import Progress, find_bound_s, measure_progress
from prism.evaluate.schedule.transfers import TransferPolicy
from prism.evaluate.schedule.trials import KEPT_DATASETS, NOTHING_KEPT, Checkpoint, Dataset, Kept, Part, Trial

if TYPE_CHECKING:
    from prism.evaluate.schedule.hardware import Hardware  # reads YAML, which deciding does not need

_UNKNOWN_BYTES_PER_S = 1e9  # of storage whose speed is neither configured nor measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How the scheduler cuts, retries and loads."""

    cutting: CuttingConfig = field(default_factory=CuttingConfig)
    transfers: TransferPolicy = field(default_factory=TransferPolicy)
    storage_bytes_per_s: float | None = None  # into one node
    kept_datasets: int = KEPT_DATASETS  # that a worker keeps ready beside its model
    max_attempts: int = 3  # of a part's inference, of a node's load
    max_score_attempts: int = 3
    max_hangs: int = 2  # of one part's score, each as long as its limit; then its dataset is stopped
    max_failed_parts: int = 5  # of one dataset in a row, over all checkpoints; then it is stopped
    max_losses: int = 5  # workers in a row that die over one dataset
    max_strikes: int = 4  # trials in a row that fail on one worker before it gets no more

    @classmethod
    def from_hardware(cls, hardware: Hardware) -> SchedulerConfig:
        """What follows from how fast models travel: on a narrow link nodes take turns."""
        node, total = hardware.storage_gbps, hardware.storage_total_gbps
        readers = 0 if total is None else max(1, int(total / (node or total)))
        speeds = [gbps for gbps in (node, total) if gbps is not None]
        return cls(
            transfers=TransferPolicy(storage_readers=readers, pass_on=hardware.peer_gbps is not None),
            storage_bytes_per_s=min(speeds) * 1e9 / 8 if speeds else None,
        )


class Scheduler:
    """Takes events, changes, and says what to do."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        datasets: Sequence[Dataset],
        priors: Priors,
        config: SchedulerConfig | None = None,
        *,
        kept: Mapping[str, Kept] = MappingProxyType({}),
    ) -> None:
        """`kept` is what an earlier run has finished of each checkpoint."""
        for dataset in datasets:
            if dataset.samples < 1:
                raise BadConfigError(f"dataset '{dataset.name}' has no samples; count them before planning")
        self.config = config or SchedulerConfig()
        self.priors = priors
        self._ledger = Ledger(datasets=tuple(datasets), priors=priors)
        self._cluster = Cluster()
        self._scores = ScoreQueue()
        self._planner = Planner(
            cluster=self._cluster,
            ledger=self._ledger,
            priors=priors,
            min_part_s=self.config.cutting.min_part_s,
            load_s=self._load_s,
            max_load_attempts=self.config.max_attempts,
            kept_datasets=self.config.kept_datasets,
        )
        self._dispatcher = Dispatcher(
            ledger=self._ledger,
            cluster=self._cluster,
            planner=self._planner,
            cutting=self.config.cutting,
            transfers=self.config.transfers,
        )
        self._num_done = 0
        self._load_speed = self.config.storage_bytes_per_s or _UNKNOWN_BYTES_PER_S
        self._loads_s: dict[str, float] = {}  # the shortest load of each checkpoint
        self._load_errors: dict[str, str] = {}  # by checkpoint
        self._finished = False
        self._hangs: dict[Part, int] = {}
        self._failed_parts: dict[str, int] = {}  # in a row, by dataset
        self._stopped: dict[str, str] = {}  # datasets, and why
        for checkpoint in checkpoints:
            self._add_checkpoint(checkpoint, kept.get(checkpoint.name, NOTHING_KEPT))

    @property
    def over(self) -> bool:
        """Whether every part is scored or given up."""
        return self._ledger.num_open == 0

    def handle(self, *happened: events.Event) -> list[Action]:
        """Take what happened at once, change, and say what to do; a plan is made once for all of it."""
        for event in happened:
            self._take(event)
        now_s = max(event.now_s for event in happened)
        self._drop_unloadable()
        actions = [*self._dispatcher.start_retries(now_s)]
        actions += self._dispatcher.start_trials(now_s)
        actions += self._dispatcher.start_loads(now_s)
        actions += [
            StartScore(part=part, node=scoring.node, attempt=scoring.attempt) for part, scoring in self._scores.start()
        ]
        actions += self._ledger.take_reports()
        if self.over and not self._finished:
            self._finished = True
            actions += [*self._dispatcher.release(), Finish()]
        return actions

    def lower_bound_s(self) -> float:
        """No schedule of this run on its hardware could end earlier, by what is known of run times so far."""
        return find_bound_s(self._planner, self.config.transfers, self._loads_s.values())

    def progress(self, now_s: float) -> Progress:
        """Where the evaluation stands."""
        left_s = self._planner.end_s - now_s
        return measure_progress(self._ledger, self._cluster, self._scores, trials_done=self._num_done, left_s=left_s)

    # -- what happened

    def _take(self, event: events.Event) -> None:
        match event:
            case events.Tick():
                self._planner.change()
            case events.NodeJoined():
                self._cluster.add_node(event.node)
                self._scores.cpus[event.node.id] = event.node.cpus
            case events.WorkerJoined():
                self._lose(event.worker.id)  # regroups, too
                self._cluster.add_worker(event.worker)
            case events.WorkerLost():
                self._lose(event.worker)
            case events.NodeLost():
                for state in self._cluster.on_node(event.node):
                    self._lose(state.worker.id, blame=False)
                self._cluster.memories.pop(event.node, None)
                self._scores.lose_node(event.node)
            case events.Preempted():
                for worker in event.workers:
                    self._lose(worker, blame=False)
            case events.CheckpointAdded():
                self._add_checkpoint(event.checkpoint, event.kept)
            case events.CheckpointLoaded() | events.LoadFailed():
                self._on_load(event)
            case events.PartInferred():
                self._on_part(event)
            case events.InferenceFinished() | events.InferenceFailed():
                self._on_trial_over(event)
            case events.ScoreFinished() | events.ScoreFailed():
                self._on_score(event)

    def _add_checkpoint(self, checkpoint: Checkpoint, kept: Kept) -> None:
        for pool in self._ledger.add(checkpoint, kept):
            for part in sorted(pool.outputs):
                self._queue_score(pool, part, None)
            if (reason := self._stopped.get(pool.dataset.name)) is not None:
                self._give_up_pool(pool, reason)
        self._finished = self._finished and self.over
        self._planner.regroup()

    def _lose(self, worker: str, *, blame: bool = True) -> None:
        """A worker is gone; what it had not written waits again."""
        running = self._cluster.remove(worker)
        if not self._cluster.usable:
            self._cluster.resume()  # those that are left are all there is
        for i, part in enumerate(running.left if running is not None else ()):
            pool = self._ledger.pool(part)
            pool.losses += i == 0 and blame
            if i == 0 and pool.losses > self.config.max_losses:
                self._ledger.give_up(pool, part, "infer", f"{pool.losses} workers in a row died over it")
            else:
                pool.give_back(part)
        self._planner.regroup()

    def _on_load(self, event: events.CheckpointLoaded | events.LoadFailed) -> None:
        memory = self._cluster.memories.get(event.node)
        if memory is None or event.checkpoint not in memory.loading:
            return
        source = memory.loading.pop(event.checkpoint)
        self._planner.moved = True
        memory.began_s.pop(event.checkpoint, None)
        checkpoint = self._ledger.checkpoints[event.checkpoint]
        if isinstance(event, events.CheckpointLoaded):
            memory.loaded[event.checkpoint] = checkpoint.bytes
            self._loads_s[event.checkpoint] = min(event.seconds, self._loads_s.get(event.checkpoint, event.seconds))
            if source is None and checkpoint.bytes and event.seconds > 0:
                self._load_speed = checkpoint.bytes / event.seconds
            return
        memory.failures[event.checkpoint] = memory.failures.get(event.checkpoint, 0) + 1
        self._load_errors[event.checkpoint] = event.text
        self._planner.regroup()

    def _drop_unloadable(self) -> None:
        """Give up checkpoints that no node with a worker can load."""
        states = self._cluster.states.values()
        for name, text in self._load_errors.items() if states else ():
            if not any(self._planner.can_run(state, self._ledger.checkpoints[name]) for state in states):
                for pool in self._ledger.pools[name].values():
                    self._ledger.give_up_waiting(pool, "load", text)

    def _on_part(self, event: events.PartInferred) -> None:
        state = self._cluster.trials.get(event.trial)
        if state is None or state.running is None or event.part not in state.running.left:
            return
        state.running.left.remove(event.part)
        pool = self._ledger.pool(event.part)
        pool.running.discard(event.part)
        pool.outputs.add(event.part)
        pool.losses = state.strikes = 0
        state.checkpoint = pool.checkpoint.name
        state.held = [*(name for name in state.held if name != pool.dataset.name), pool.dataset.name]
        state.held = state.held[-self.config.kept_datasets :]
        took = Took(
            samples=event.part.samples,
            seconds=event.seconds,
            setup_s=event.setup_s,
            start_s=event.start_s,
        )
        self.priors.observe_inference(pool.dataset, pool.checkpoint, took)
        self._planner.check_prior(pool)
        self._queue_score(pool, event.part, state.worker.node)
        if (reason := self._stopped.get(pool.dataset.name)) is not None:
            self._give_up_pool(pool, reason)

    def _on_trial_over(self, event: events.InferenceFinished | events.InferenceFailed) -> None:
        state = self._cluster.trials.get(event.trial)
        running = self._cluster.end(state) if state is not None else None
        if state is None or running is None:
            return
        name = running.trial.checkpoint
        self._planner.serve(name, event.now_s - running.began_s)
        left = running.left
        if isinstance(event, events.InferenceFailed) and left:
            self._retry(state, running.trial, left[0], event)
            left = left[1:]
        else:
            self._num_done += 1
        for part in left:
            self._ledger.pool(part).give_back(part)
        if isinstance(event, events.InferenceFailed) or left:
            state.held = []
            self._planner.change([name])
        if not state.queue:
            self._planner.ask_again(name)

    def _retry(self, state: WorkerState, trial: Trial, part: Part, event: events.InferenceFailed) -> None:
        """A failed part is tried again: elsewhere, with a smaller batch, or not at all."""
        pool = self._ledger.pool(part)
        state.strikes += 1
        others = [other for other in self._cluster.usable if other is not state]
        if event.failure is events.Failure.DISK or (state.strikes >= self.config.max_strikes and others):
            self._cluster.suspend(state, event.text)
            self._planner.regroup()
        if event.failure is events.Failure.DISK:
            pool.give_back(part)
            if not others:
                for other in self._ledger:
                    self._ledger.give_up_waiting(other, "infer", event.text)
            return
        if event.failure is events.Failure.MEMORY:
            self.priors.observe_overflow(pool.dataset, pool.checkpoint, trial.shrink)
            pool.shrink = max(pool.shrink, trial.shrink + 1)
        if trial.attempt < self.config.max_attempts:
            pool.running.discard(part)
            pool.retrying.add(part)
            self._ledger.retries.append(Retry(part=part, attempt=trial.attempt + 1, avoid=state.worker.id))
            return
        self._ledger.give_up(pool, part, "infer", event.text)
        if not pool.outputs and not pool.scored:  # nothing of this dataset has ever worked
            self._ledger.give_up_waiting(pool, "infer", event.text)
        self._count_failure(pool, event.text)

    def _on_score(self, event: events.ScoreFinished | events.ScoreFailed) -> None:
        scoring = self._scores.end(event.part)
        if scoring is None:
            return
        pool = self._ledger.pool(event.part)
        if isinstance(event, events.ScoreFinished):
            pool.outputs.discard(event.part)
            pool.scored.add(event.part)
            self._failed_parts.pop(pool.dataset.name, None)
            self._ledger.touch(pool)
            self.priors.observe_score(pool.dataset, pool.checkpoint, samples=event.part.samples, seconds=event.seconds)
            return
        hangs = self._hangs[event.part] = self._hangs.get(event.part, 0) + event.hung
        if pool.dataset.name in self._stopped:
            self._ledger.give_up(pool, event.part, "score", self._stopped[pool.dataset.name])
        elif hangs >= self.config.max_hangs:
            self._ledger.give_up(pool, event.part, "score", event.text)
            self._stop(pool.dataset.name, f"its metric hung {hangs} times ({event.text})")
        elif scoring.attempt < self.config.max_score_attempts:
            self._queue_score(pool, event.part, scoring.node)
        else:
            self._ledger.give_up(pool, event.part, "score", event.text)
            self._count_failure(pool, event.text)

    def _count_failure(self, pool: Pool, text: str) -> None:
        """Stop a dataset of which nothing works any more, whatever the checkpoint."""
        name = pool.dataset.name
        self._failed_parts[name] = self._failed_parts.get(name, 0) + 1
        if self._failed_parts[name] >= self.config.max_failed_parts and name not in self._stopped:
            self._stop(name, f"{self._failed_parts[name]} of its parts failed in a row (the last: {text})")

    def _stop(self, dataset: str, why: str) -> None:
        """Give a dataset up for all checkpoints, those to come included; what is scored stays."""
        self._stopped[dataset] = f"dataset stopped: {why}; fix it and run again"
        for pools in self._ledger.pools.values():
            self._give_up_pool(pools[dataset], self._stopped[dataset])
        self._planner.regroup()

    def _give_up_pool(self, pool: Pool, reason: str) -> None:
        """What runs is left to end: its worker or scorer is not killed for it."""
        self._ledger.give_up_waiting(pool, "score", reason)
        for part in [part for part in pool.outputs if part not in self._scores.running]:
            self._scores.waiting.pop(part, None)
            self._ledger.give_up(pool, part, "score", reason)

    def _queue_score(self, pool: Pool, part: Part, home: str | None) -> None:
        self._scores.add(part, part.samples * pool.prior.score_s, home)

    def _load_s(self, checkpoint: Checkpoint) -> float:
        """How long a node alone on its link needs to load a checkpoint."""
        return checkpoint.bytes / self._load_speed
