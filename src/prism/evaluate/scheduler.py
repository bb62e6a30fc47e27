"""The evaluation as the coordinator sees it: events in, actions out, no files, no processes, no clocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prism.errors import BadConfigError
from prism.evaluate import events
from prism.evaluate.actions import (
    Action,
    CancelInference,
    Finish,
    LoadCheckpoint,
    ReleaseCheckpoint,
    StartInference,
    StartScore,
)
from prism.evaluate.bound import Supply, lower_bound_s
from prism.evaluate.cutting import CuttingConfig, cut_trial
from prism.evaluate.ledger import Ledger, Retry
from prism.evaluate.plan_file import Hardware
from prism.evaluate.planner import Planner
from prism.evaluate.pools import Pool
from prism.evaluate.priors import Priors
from prism.evaluate.roster import Desk, Roster, RunningTrial
from prism.evaluate.score_queue import ScoreQueue
from prism.evaluate.transfers import TransferPolicy, choose_transfers
from prism.evaluate.trials import Checkpoint, Dataset, Part, Trial

_UNKNOWN_BYTES_PER_S = 1e9  # of storage that nobody has described or measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How the scheduler cuts, retries and loads."""

    cutting: CuttingConfig = field(default_factory=CuttingConfig)
    transfers: TransferPolicy = field(default_factory=TransferPolicy)
    storage_bytes_per_s: float | None = None  # into one node
    max_attempts: int = 3  # of a part's inference, of a node's load
    max_score_attempts: int = 3
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the evaluation stands; samples are counted per checkpoint and dataset."""

    samples: int
    inferred: int
    scored: int
    failed: int
    trials_done: int
    trials_running: int
    scores_waiting: int
    workers: int
    gpus: int
    gpus_busy: int
    time_left_s: float


class Scheduler:
    """Takes events, changes, and says what to do."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        datasets: Sequence[Dataset],
        priors: Priors,
        config: SchedulerConfig | None = None,
        *,
        inferred: Iterable[Part] = (),
        scored: Iterable[Part] = (),
    ) -> None:
        """`inferred` and `scored` are the parts that an earlier run left behind; scored ones need not be in both."""
        for dataset in datasets:
            if dataset.samples < 1:
                raise BadConfigError(f"dataset '{dataset.name}' has no samples; count them before planning")
        self.config = config or SchedulerConfig()
        self.priors = priors
        self._ledger = Ledger(
            datasets=tuple(datasets), priors=priors, kept_outputs=set(inferred), kept_scores=set(scored)
        )
        self._roster = Roster()
        self._scores = ScoreQueue()
        self._planner = Planner(
            roster=self._roster,
            ledger=self._ledger,
            priors=priors,
            min_part_s=self.config.cutting.min_part_s,
            load_s=self._load_s,
            max_load_attempts=self.config.max_attempts,
        )
        self._num_trials = 0
        self._num_done = 0
        self._load_speed = self.config.storage_bytes_per_s or _UNKNOWN_BYTES_PER_S
        self._load_errors: dict[str, str] = {}  # by checkpoint
        self._finished = False
        for checkpoint in checkpoints:
            self._add_checkpoint(checkpoint)

    @property
    def over(self) -> bool:
        """Whether every part is scored or given up."""
        return self._ledger.num_open == 0

    def handle(self, event: events.Event) -> list[Action]:
        """Take an event, change, and say what to do."""
        actions = list(self._take(event))
        self._drop_unloadable()
        actions += self._start_retries(event.now_s)
        actions += self._start_trials(event.now_s)
        actions += self._start_loads(event.now_s)
        actions += [
            StartScore(part=part, node=scoring.node, attempt=scoring.attempt) for part, scoring in self._scores.start()
        ]
        actions += self._ledger.tell()
        if self.over and not self._finished:
            self._finished = True
            failed = tuple(sorted(part for pool in self._ledger for part in pool.failed))
            actions += [*self._release(), Finish(failed=failed)]
        return actions

    def lower_bound_s(self) -> float:
        """No schedule of the whole run on this hardware could end earlier, by the run times known so far."""
        nodes = self._roster.most_nodes
        checkpoints = self._ledger.checkpoints.values()
        policy = self.config.transfers
        load_s = min((self._load_s(checkpoint) for checkpoint in checkpoints), default=0.0)
        # Nodes that pass a model on while they receive it may all have it at once; without, they take turns.
        in_turns = policy.storage_readers and not policy.pass_on
        turns = {node: i // policy.storage_readers + 1 if in_turns else 1 for i, node in enumerate(nodes)}
        supply = Supply(
            ready_s=tuple(turns[worker.node] * load_s for worker in self._roster.most_workers.values()),
            start_s=min((pool.prior.start_s for pool in self._ledger), default=0.0),
            cpus=sum(node.cpus for node in nodes.values()),
        )
        return lower_bound_s(self._planner.all_works(), supply)

    def progress(self, now_s: float) -> Progress:
        """Where the evaluation stands."""
        desks = self._roster.desks.values()
        pools = list(self._ledger)
        return Progress(
            samples=sum(pool.dataset.samples for pool in pools),
            inferred=sum(part.samples for pool in pools for part in pool.outputs | pool.scored),
            scored=sum(part.samples for pool in pools for part in pool.scored),
            failed=sum(part.samples for pool in pools for part in pool.failed),
            trials_done=self._num_done,
            trials_running=len(self._roster.trials),
            scores_waiting=len(self._scores.waiting) + len(self._scores.running),
            workers=len(desks),
            gpus=sum(len(desk.worker.gpus) for desk in desks),
            gpus_busy=sum(len(desk.worker.gpus) for desk in desks if desk.running is not None),
            time_left_s=max(0.0, self._planner.end_s - now_s, self._scores.expected_s) if not self.over else 0.0,
        )

    # -- what happened

    def _take(self, event: events.Event) -> Iterator[Action]:
        match event:
            case events.Tick():
                self._planner.change()
            case events.NodeJoined():
                self._roster.add_node(event.node)
                self._scores.cpus[event.node.id] = event.node.cpus
            case events.WorkerJoined():
                self._lose(event.worker.id)
                if self._roster.add_worker(event.worker):
                    self._planner.regroup()
            case events.WorkerLost():
                self._lose(event.worker)
            case events.NodeLost():
                for desk in self._roster.on_node(event.node):
                    self._lose(desk.worker.id, blame=False)
                self._roster.memories.pop(event.node, None)
                self._scores.lose_node(event.node)
            case events.Preempted():
                for worker in event.workers:
                    running = self._lose(worker, blame=False)
                    if running is not None:
                        yield CancelInference(trial=running.trial.id, worker=worker)
            case events.CheckpointAdded():
                self._add_checkpoint(event.checkpoint)
            case events.CheckpointLoaded() | events.LoadFailed():
                self._on_load(event)
            case events.PartInferred():
                self._on_part(event)
            case events.InferenceFinished() | events.InferenceFailed():
                self._on_trial_over(event)
            case events.ScoreFinished() | events.ScoreFailed():
                self._on_score(event)

    def _add_checkpoint(self, checkpoint: Checkpoint) -> None:
        for pool in self._ledger.add(checkpoint):
            for part in sorted(pool.outputs):
                self._queue_score(pool, part, None)
        self._finished = self._finished and self.over
        self._planner.regroup()

    def _lose(self, worker: str, *, blame: bool = True) -> RunningTrial | None:
        """A worker is gone; what it had not written waits again."""
        running = self._roster.remove(worker)
        if not self._roster.usable:
            self._roster.resume()  # those that are left are all there is
        for i, part in enumerate(running.left if running is not None else ()):
            pool = self._ledger.pool(part)
            pool.losses += i == 0 and blame
            if i == 0 and pool.losses > self.config.max_losses:
                self._ledger.give_up(pool, part, "infer", f"{pool.losses} workers in a row died over it")
            else:
                pool.give_back(part)
        self._planner.regroup()
        return running

    def _on_load(self, event: events.CheckpointLoaded | events.LoadFailed) -> None:
        memory = self._roster.memories.get(event.node)
        if memory is None or event.checkpoint not in memory.loading:
            return
        source = memory.loading.pop(event.checkpoint)
        self._planner.moved = True
        memory.began_s.pop(event.checkpoint, None)
        checkpoint = self._ledger.checkpoints[event.checkpoint]
        if isinstance(event, events.CheckpointLoaded):
            memory.loaded[event.checkpoint] = checkpoint.bytes
            if source is None and checkpoint.bytes and event.seconds > 0:
                self._load_speed = checkpoint.bytes / event.seconds
            return
        memory.failures[event.checkpoint] = memory.failures.get(event.checkpoint, 0) + 1
        self._load_errors[event.checkpoint] = event.text
        self._planner.regroup()

    def _drop_unloadable(self) -> None:
        """Give up checkpoints that no node with a worker can load."""
        desks = self._roster.desks.values()
        for name, text in self._load_errors.items() if desks else ():
            if not any(self._planner.can_run(desk, self._ledger.checkpoints[name]) for desk in desks):
                for pool in self._ledger.pools[name].values():
                    self._ledger.give_up_waiting(pool, "load", text)

    def _on_part(self, event: events.PartInferred) -> None:
        desk = self._roster.trials.get(event.trial)
        if desk is None or desk.running is None or event.part not in desk.running.left:
            return
        desk.running.left.remove(event.part)
        pool = self._ledger.pool(event.part)
        pool.running.discard(event.part)
        pool.outputs.add(event.part)
        pool.losses = desk.strikes = 0
        desk.checkpoint, desk.held = pool.checkpoint.name, pool.key
        self.priors.observe_inference(
            pool.dataset,
            pool.checkpoint,
            samples=event.part.samples,
            seconds=event.seconds,
            setup_s=event.setup_s,
            start_s=event.start_s,
        )
        self._planner.check_prior(pool)
        self._queue_score(pool, event.part, desk.worker.node)

    def _on_trial_over(self, event: events.InferenceFinished | events.InferenceFailed) -> None:
        desk = self._roster.trials.get(event.trial)
        running = self._roster.end(desk) if desk is not None else None
        if desk is None or running is None:
            return
        name = running.trial.checkpoint
        self._planner.serve(name, event.now_s - running.began_s)
        left = running.left
        if isinstance(event, events.InferenceFailed) and left:
            self._retry(desk, running.trial, left[0], event)
            left = left[1:]
        else:
            self._num_done += 1
        for part in left:
            self._ledger.pool(part).give_back(part)
        if isinstance(event, events.InferenceFailed) or left:
            desk.held = None
            self._planner.change([name])
        if not desk.queue:
            self._planner.ask_again(name)

    def _retry(self, desk: Desk, trial: Trial, part: Part, event: events.InferenceFailed) -> None:
        """A failed part is tried again: elsewhere, with a smaller batch, or not at all."""
        pool = self._ledger.pool(part)
        desk.strikes += 1
        others = [other for other in self._roster.usable if other is not desk]
        if event.failure is events.Failure.DISK or (desk.strikes >= self.config.max_strikes and others):
            self._roster.suspend(desk, event.text)
            self._planner.regroup()
        if event.failure is events.Failure.DISK:
            pool.give_back(part)
            if not others:
                for other in self._ledger:
                    self._ledger.give_up_waiting(other, "infer", event.text)
            return
        if event.failure is events.Failure.MEMORY:
            pool.shrink = max(pool.shrink, trial.shrink + 1)
        if trial.attempt < self.config.max_attempts:
            pool.running.discard(part)
            pool.retrying.add(part)
            self._ledger.retries.append(Retry(part=part, attempt=trial.attempt + 1, avoid=desk.worker.id))
            return
        self._ledger.give_up(pool, part, "infer", event.text)
        if not pool.outputs and not pool.scored:  # nothing of this dataset has ever worked
            self._ledger.give_up_waiting(pool, "infer", event.text)

    def _on_score(self, event: events.ScoreFinished | events.ScoreFailed) -> None:
        scoring = self._scores.end(event.part)
        if scoring is None:
            return
        pool = self._ledger.pool(event.part)
        if isinstance(event, events.ScoreFinished):
            pool.outputs.discard(event.part)
            pool.scored.add(event.part)
            self._ledger.touch(pool)
            self.priors.observe_score(pool.dataset, pool.checkpoint, samples=event.part.samples, seconds=event.seconds)
        elif scoring.attempt < self.config.max_score_attempts:
            self._queue_score(pool, event.part, scoring.node)
        else:
            self._ledger.give_up(pool, event.part, "score", event.text)

    def _queue_score(self, pool: Pool, part: Part, home: str | None) -> None:
        self._scores.add(part, part.samples * pool.prior.score_s, home)

    # -- what to do

    def _start_retries(self, now_s: float) -> Iterator[Action]:
        for retry in list(self._ledger.retries):
            pool = self._ledger.pool(retry.part)
            ready = [desk for desk in self._able(retry) if desk.running is None and self._is_loaded(desk, pool.key[0])]
            if not ready:
                continue
            self._ledger.retries.remove(retry)
            pool.retrying.discard(retry.part)
            pool.running.add(retry.part)
            prior = pool.prior
            trial = Trial(
                id=self._next_id(),
                checkpoint=retry.part.checkpoint,
                parts=(retry.part,),
                attempt=retry.attempt,
                shrink=pool.shrink,
                expected_s=prior.start_s + prior.setup_s + retry.part.samples * prior.infer_s,
            )
            self._roster.begin(ready[0], trial, now_s)
            yield StartInference(trial=trial, worker=ready[0].worker.id)

    def _start_trials(self, now_s: float) -> Iterator[Action]:
        for desk in list(self._roster.idle.values()):
            trial = None
            while trial is None:
                self._planner.fill_queue(desk, now_s)
                if desk.group is None or not desk.queue or not self._is_loaded(desk, desk.group):
                    break
                pools = self._ledger.pools[desk.group]
                crowded = self._planner.is_crowded(desk.group)
                trial = cut_trial(desk, pools, self._next_id(), self.config.cutting, crowded=crowded)
            if trial is not None:
                self._roster.begin(desk, trial, now_s)
                yield StartInference(trial=trial, worker=desk.worker.id)

    def _start_loads(self, now_s: float) -> Iterator[Action]:
        """Bring models to the nodes whose workers wait for them, clear those that nobody needs."""
        if not self._planner.moved:
            return
        self._planner.moved = False
        desks = [*self._roster.idle.values(), *self._roster.trials.values()]  # those that wait come first
        wants = [(desk.worker.node, desk.group) for desk in desks if desk.group is not None and desk.queue]
        wants = list(dict.fromkeys([*self._retry_wants(), *wants]))
        yield from self._release(frozenset(wants))
        memories = self._roster.memories
        sizes = {name: checkpoint.bytes for name, checkpoint in self._ledger.checkpoints.items()}
        for transfer in choose_transfers(wants, memories, sizes, self.config.transfers):
            memory = memories[transfer.node]
            memory.loading[transfer.checkpoint] = transfer.source
            memory.began_s[transfer.checkpoint] = now_s
            yield LoadCheckpoint(node=transfer.node, checkpoint=transfer.checkpoint, source=transfer.source)

    def _retry_wants(self) -> Iterator[tuple[str, str]]:
        """Where a checkpoint has to be loaded because no worker that may retry a part of it has it."""
        for retry in self._ledger.retries:
            name = retry.part.checkpoint
            able = self._able(retry)
            if able and not any(name in self._roster.memories[desk.worker.node].loaded for desk in able):
                yield min(able, key=lambda desk: desk.running is not None).worker.node, name

    def _able(self, retry: Retry) -> list[Desk]:
        """Workers that may retry a part: not the one it failed on, if there is another."""
        checkpoint = self._ledger.checkpoints[retry.part.checkpoint]
        able = [desk for desk in self._roster.usable if self._planner.can_run(desk, checkpoint)]
        return [desk for desk in able if desk.worker.id != retry.avoid] or able

    def _release(self, wants: frozenset[tuple[str, str]] = frozenset()) -> Iterator[Action]:
        """Clear what no worker uses and no waiting sample needs, or what stands in the way of what is wanted."""
        retried = {retry.part.checkpoint for retry in self._ledger.retries}
        for node, memory in self._roster.memories.items():
            used = {desk.running.trial.checkpoint for desk in self._roster.on_node(node) if desk.running is not None}
            wanted = {checkpoint for where, checkpoint in wants if where == node}
            for checkpoint in sorted(set(memory.loaded) - used - wanted - retried):
                crowded = any(name not in memory.loaded for name in wanted) and memory.node.memory_bytes > 0
                if crowded or not self._ledger.has_waiting(checkpoint):
                    del memory.loaded[checkpoint]
                    yield ReleaseCheckpoint(node=node, checkpoint=checkpoint)

    def _next_id(self) -> str:
        self._num_trials += 1
        return f"t{self._num_trials}"

    def _is_loaded(self, desk: Desk, checkpoint: str) -> bool:
        return checkpoint in self._roster.memories[desk.worker.node].loaded

    def _load_s(self, checkpoint: Checkpoint) -> float:
        """How long a node alone on its link needs to load a checkpoint."""
        return checkpoint.bytes / self._load_speed
