"""Who works on what next: workers shared between checkpoints, datasets packed onto the workers of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from prism.evaluate.schedule.cluster import Cluster, WorkerState
from prism.evaluate.schedule.cutting import Outlook
from prism.evaluate.schedule.fair_share import Candidate, Demand, share_workers
from prism.evaluate.schedule.ledger import Ledger
from prism.evaluate.schedule.packing import Slot, Work, pack
from prism.evaluate.schedule.pools import Pool
from prism.evaluate.schedule.priors import Prior, Priors
from prism.evaluate.schedule.trials import Checkpoint

_WRONG = math.log(1.15)  # a run time this far from the planned one causes a new plan
_MAX_MOVES = 3  # other checkpoints that an idle worker is offered at once


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans again only where something changed: one checkpoint's workers at a time, when one of them is free."""

    cluster: Cluster
    ledger: Ledger
    priors: Priors
    min_part_s: float
    load_s: Callable[[Checkpoint], float]  # how long a node needs to load one
    max_load_attempts: int
    kept_datasets: int  # that a worker keeps ready
    version: int = 0  # goes up whenever idle workers should ask again
    regroup_due: bool = True
    moved: bool = True  # queues have changed, so nodes may want other checkpoints
    stale: set[str] = field(default_factory=set)  # checkpoints to be packed again
    packed: dict[str, int] = field(default_factory=dict)  # the version of each one's plan
    ends_s: dict[str, float] = field(default_factory=dict)  # when each checkpoint should be done
    refused: dict[tuple[str, bool], int] = field(default_factory=dict)  # no use for one more worker, near it or not
    group_sizes: dict[str, int] = field(default_factory=dict)  # workers of each checkpoint at its last packing
    served_s: dict[str, float] = field(default_factory=dict)  # worker seconds that each has had

    @property
    def end_s(self) -> float:
        """When everything should be inferred."""
        return max(self.ends_s.values(), default=0.0)

    def change(self, checkpoints: Iterable[str] = ()) -> None:
        """Work came back or run times are not what was planned."""
        self.version += 1
        self.moved = True
        self.stale.update(checkpoints)

    def regroup(self) -> None:
        """Workers or checkpoints came or went."""
        self.change()
        self.regroup_due = True

    def ask_again(self, checkpoint: str) -> None:
        """A worker has done its share: it may help others, or its checkpoint is through."""
        if self.ledger.has_waiting(checkpoint):
            self.version += 1
        else:
            self.moved = True
            if any(self.ledger.has_waiting(name) for name in self.ledger.pools):
                self.regroup()

    def serve(self, checkpoint: str, seconds: float) -> None:
        """Count what a checkpoint has had of the workers."""
        self.served_s[checkpoint] = self.served_s.get(checkpoint, 0.0) + seconds

    def check_prior(self, pool: Pool) -> None:
        """Plan again when a dataset runs faster or slower than planned."""
        pool.prior = self.priors.prior(pool.dataset, pool.checkpoint)
        if pool.waiting and abs(math.log(max(1e-9, pool.prior.infer_s) / max(1e-9, pool.planned.infer_s))) > _WRONG:
            self.change([pool.checkpoint.name])

    def fill_queue(self, state: WorkerState, now_s: float) -> None:
        """Give an idle worker shares, of its own checkpoint or else of one that it can help to end earlier."""
        if self.regroup_due:
            self._share_workers(now_s)
        own = state.group
        if (state.queue and own not in self.stale) or state.rested == self.version:
            return
        if own is not None and self.ledger.has_waiting(own):
            if own in self.stale or self.packed.get(own) != self.version:
                self._pack(own, now_s)
            if state.queue:
                return
        for checkpoint in self._others(state):
            state.group = checkpoint
            self._pack(checkpoint, now_s)
            if state.queue:
                return
            self.refused[checkpoint, self.cluster.is_near(state, checkpoint)] = self.version
        state.group, state.queue = own, []
        state.rested = self.version

    def look_ahead(self, checkpoint: str, now_s: float) -> Outlook:
        """What a worker should know when it takes its next trial."""
        num_waiting = sum(bool(pool.waiting) for pool in self.ledger.pools[checkpoint].values())
        crowded = self.group_sizes[checkpoint] > num_waiting
        left_s = max(0.0, self.ends_s.get(checkpoint, math.inf) - now_s)
        return Outlook(crowded=crowded, left_s=left_s)

    def can_run(self, state: WorkerState, checkpoint: Checkpoint) -> bool:
        """Whether a worker has the GPUs that a checkpoint needs, and its node has not failed to load it for good."""
        failures = self.cluster.memories[state.worker.node].failures.get(checkpoint.name, 0)
        return len(state.worker.gpus) >= checkpoint.gpus and failures < self.max_load_attempts

    def waiting_works(self, checkpoint: str) -> list[Work]:
        """What is left to infer of a checkpoint."""
        return [
            _work(pool, pool.num_waiting, pool.prior) for pool in self.ledger.pools[checkpoint].values() if pool.waiting
        ]

    def all_works(self, *, measured: bool) -> list[Work]:
        """Everything that this run has to infer from its start to its end; `measured` leaves guesses out."""
        find = self.priors.measured if measured else self.priors.prior
        works, ready = [], set[str]()
        for pool in self.ledger:
            work = _work(pool, pool.fresh, find(pool.dataset, pool.checkpoint))
            # A worker may have kept a dataset from the checkpoint before, so only its first set-up is certain.
            works.append(replace(work, setup_s=0.0) if pool.dataset.name in ready else work)
            if pool.fresh:
                ready.add(pool.dataset.name)
        return works

    def _others(self, state: WorkerState) -> list[str]:
        """Checkpoints that wait and fit on the worker: by priority, then those that would end last."""
        checkpoints = [
            checkpoint
            for name, checkpoint in self.ledger.checkpoints.items()
            if name != state.group
            and self.refused.get((name, self.cluster.is_near(state, name))) != self.version
            and self.can_run(state, checkpoint)
            and self.ledger.has_waiting(name)
        ]
        checkpoints.sort(key=lambda c: (-c.priority, -self.ends_s.get(c.name, math.inf)))
        return [checkpoint.name for checkpoint in checkpoints[:_MAX_MOVES]]

    def _share_workers(self, now_s: float) -> None:
        """Highest priority first; what it cannot use goes to the next one."""
        self.regroup_due = False
        self.ends_s.clear()
        waiting = [c for name, c in self.ledger.checkpoints.items() if self.ledger.has_waiting(name)]
        free = {state.worker.id: state for state in self.cluster.usable}
        for state in free.values():
            state.group, state.queue = None, []
        for priority in sorted({checkpoint.priority for checkpoint in waiting}, reverse=True):
            for gpus in sorted({c.gpus for c in waiting if c.priority == priority}, reverse=True):
                demands = [self._demand(c) for c in waiting if c.priority == priority and c.gpus == gpus]
                candidates = [self._candidate(state) for state in free.values() if len(state.worker.gpus) >= gpus]
                for worker, checkpoint in share_workers(demands, candidates).items():
                    free.pop(worker).group = checkpoint
        groups = {state.group for state in self.cluster.usable if state.group is not None}
        for checkpoint in groups:
            self._pack(checkpoint, now_s)

    def _demand(self, checkpoint: Checkpoint) -> Demand:
        works = self.waiting_works(checkpoint.name)
        seconds = sum(work.setup_s + work.seconds for work in works)
        setup_s = sum(work.setup_s for work in works) / len(works)
        prior = next(iter(self.ledger.pools[checkpoint.name].values())).prior
        useful = max(1, math.ceil(seconds / (prior.start_s + setup_s + self.min_part_s)))
        return Demand(
            checkpoint=checkpoint.name,
            weight=checkpoint.weight,
            useful=useful,
            served_s=self.served_s.get(checkpoint.name, 0.0),
        )

    def _candidate(self, state: WorkerState) -> Candidate:
        memory = self.cluster.memories[state.worker.node]
        nearby = frozenset([*memory.loaded, *memory.loading])
        return Candidate(worker=state.worker.id, node=state.worker.node, holds=state.checkpoint, nearby=nearby)

    def _pack(self, checkpoint: str, now_s: float) -> None:
        """Plan one checkpoint's waiting samples onto its workers."""
        self.stale.discard(checkpoint)
        self.packed[checkpoint] = self.version
        self.moved = True
        pools = self.ledger.pools[checkpoint]
        for pool in pools.values():
            pool.prior = pool.planned = self.priors.prior(pool.dataset, pool.checkpoint)
        group = [state for state in self.cluster.usable if state.group == checkpoint]
        states = [state for state in group if self.can_run(state, self.ledger.checkpoints[checkpoint])]
        slots = [self._slot(state, pools, now_s) for state in states]
        packing = pack(slots, self.waiting_works(checkpoint), self.min_part_s)
        self.ends_s[checkpoint] = now_s + packing.end_s
        self.group_sizes[checkpoint] = len(states)
        for state in group:
            state.queue = list(packing.queues.get(state.worker.id, ()))

    def _slot(self, state: WorkerState, pools: Mapping[str, Pool], now_s: float) -> Slot:
        """When a worker could begin with this checkpoint, and what it has ready."""
        pool = next(iter(pools.values()))
        name = pool.checkpoint.name
        running = state.running
        ready_s = running.ready_s(now_s) if running is not None else 0.0
        begun = [part.dataset for part in running.trial.parts] if running is not None else []
        held = tuple(
            dict.fromkeys((name, dataset) for dataset in [*state.held, *begun][: -self.kept_datasets - 1 : -1])
        )
        held = held[::-1]
        if (running.trial.checkpoint if running is not None else state.checkpoint) == name:
            return Slot(worker=state.worker.id, ready_s=ready_s, held=held)
        memory = self.cluster.memories[state.worker.node]
        if name not in memory.loaded:
            began_s = memory.began_s.get(name, now_s)
            ready_s = max(ready_s, began_s + self.load_s(pool.checkpoint) - now_s)
        return Slot(worker=state.worker.id, ready_s=ready_s + pool.prior.start_s, held=held)


def _work(pool: Pool, samples: int, prior: Prior) -> Work:
    return Work(
        key=pool.key,
        samples=samples,
        setup_s=prior.setup_s,
        infer_s=prior.infer_s,
        score_s=prior.score_s,
        splittable=pool.dataset.splittable,
        trusted=prior.trusted,
    )
