"""Who works on what next: workers shared between checkpoints, datasets packed onto the workers of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from prism.evaluate.schedule.cutting import Outlook
from prism.evaluate.schedule.fair_share import Claim, Seat, share_workers
from prism.evaluate.schedule.ledger import Ledger
from prism.evaluate.schedule.packing import Slot, Work, pack
from prism.evaluate.schedule.pools import Pool
from prism.evaluate.schedule.priors import Prior, Priors
from prism.evaluate.schedule.roster import Desk, Roster
from prism.evaluate.schedule.trials import Checkpoint

_WRONG = math.log(1.15)  # a run time this far from the planned one asks for another plan
_PILOT_SHARE = 0.05  # of the time to the end, that a dataset's run time must be unsure by to be begun early
_MAX_MOVES = 3  # other checkpoints that an idle worker is offered at once


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans again only where something changed: one checkpoint's workers at a time, when one of them is free."""

    roster: Roster
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

    def fill_queue(self, desk: Desk, now_s: float) -> None:
        """Give an idle worker shares, of its own checkpoint or else of one that it can help to end earlier."""
        if self.regroup_due:
            self._share_workers(now_s)
        own = desk.group
        if (desk.queue and own not in self.stale) or desk.rested == self.version:
            return
        if own is not None and self.ledger.has_waiting(own):
            if own in self.stale or self.packed.get(own) != self.version:
                self._pack(own, now_s)
            if desk.queue:
                return
        for checkpoint in self._others(desk):
            desk.group = checkpoint
            self._pack(checkpoint, now_s)
            if desk.queue:
                return
            self.refused[checkpoint, self.roster.is_near(desk, checkpoint)] = self.version
        desk.group, desk.queue = own, []
        desk.rested = self.version

    def look_ahead(self, checkpoint: str, node: str, now_s: float) -> Outlook:
        """What a worker should know when it takes its next trial."""
        num_waiting = sum(bool(pool.waiting) for pool in self.ledger.pools[checkpoint].values())
        crowded = self.group_sizes[checkpoint] > num_waiting
        left_s = max(0.0, self.ends_s.get(checkpoint, math.inf) - now_s)
        return Outlook(crowded=crowded, left_s=left_s, pilots=self.kept_datasets - 1, pace=self.priors.pace(node))

    def can_run(self, desk: Desk, checkpoint: Checkpoint) -> bool:
        """Whether a worker has the GPUs that a checkpoint needs, and its node has not failed to load it for good."""
        failures = self.roster.memories[desk.worker.node].failures.get(checkpoint.name, 0)
        return len(desk.worker.gpus) >= checkpoint.gpus and failures < self.max_load_attempts

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

    def _others(self, desk: Desk) -> list[str]:
        """Checkpoints that wait and fit on the worker: by priority, then those that would end last."""
        checkpoints = [
            checkpoint
            for name, checkpoint in self.ledger.checkpoints.items()
            if name != desk.group
            and self.refused.get((name, self.roster.is_near(desk, name))) != self.version
            and self.can_run(desk, checkpoint)
            and self.ledger.has_waiting(name)
        ]
        checkpoints.sort(key=lambda c: (-c.priority, -self.ends_s.get(c.name, math.inf)))
        return [checkpoint.name for checkpoint in checkpoints[:_MAX_MOVES]]

    def _share_workers(self, now_s: float) -> None:
        """Highest priority first; what it cannot use goes to the next one."""
        self.regroup_due = False
        self.ends_s.clear()
        waiting = [c for name, c in self.ledger.checkpoints.items() if self.ledger.has_waiting(name)]
        free = {desk.worker.id: desk for desk in self.roster.usable}
        for desk in free.values():
            desk.group, desk.queue = None, []
        for priority in sorted({checkpoint.priority for checkpoint in waiting}, reverse=True):
            for gpus in sorted({c.gpus for c in waiting if c.priority == priority}, reverse=True):
                claims = [self._claim(c) for c in waiting if c.priority == priority and c.gpus == gpus]
                seats = [self._seat(desk) for desk in free.values() if len(desk.worker.gpus) >= gpus]
                for worker, checkpoint in share_workers(claims, seats).items():
                    free.pop(worker).group = checkpoint
        groups = {desk.group for desk in self.roster.usable if desk.group is not None}
        for checkpoint in groups:
            self._pack(checkpoint, now_s)

    def _claim(self, checkpoint: Checkpoint) -> Claim:
        works = self.waiting_works(checkpoint.name)
        seconds = sum(work.setup_s + work.seconds for work in works)
        setup_s = sum(work.setup_s for work in works) / len(works)
        prior = next(iter(self.ledger.pools[checkpoint.name].values())).prior
        useful = max(1, math.ceil(seconds / (prior.start_s + setup_s + self.min_part_s)))
        return Claim(
            checkpoint=checkpoint.name,
            weight=checkpoint.weight,
            useful=useful,
            served_s=self.served_s.get(checkpoint.name, 0.0),
        )

    def _seat(self, desk: Desk) -> Seat:
        memory = self.roster.memories[desk.worker.node]
        nearby = frozenset([*memory.loaded, *memory.loading])
        node = desk.worker.node
        return Seat(worker=desk.worker.id, node=node, holds=desk.checkpoint, nearby=nearby, pace=self.priors.pace(node))

    def _pack(self, checkpoint: str, now_s: float) -> None:
        """Plan one checkpoint's waiting samples onto its workers."""
        self.stale.discard(checkpoint)
        self.packed[checkpoint] = self.version
        self.moved = True
        pools = self.ledger.pools[checkpoint]
        for pool in pools.values():
            pool.prior = pool.planned = self.priors.prior(pool.dataset, pool.checkpoint)
        group = [desk for desk in self.roster.usable if desk.group == checkpoint]
        self._choose_pilots(pools.values(), len(group))
        desks = [desk for desk in group if self.can_run(desk, self.ledger.checkpoints[checkpoint])]
        slots = [self._slot(desk, pools, now_s) for desk in desks]
        packing = pack(slots, self.waiting_works(checkpoint), self.min_part_s)
        self.ends_s[checkpoint] = now_s + packing.end_s
        self.group_sizes[checkpoint] = len(desks)
        for desk in group:
            desk.queue = list(packing.queues.get(desk.worker.id, ()))

    def _choose_pilots(self, pools: Collection[Pool], workers: int) -> None:
        """Begin early what may take so much longer or shorter than expected that it changes when all is done."""
        # A worker that keeps one dataset only would have to make ready again what it comes back to.
        least_s = math.inf if self.kept_datasets < 2 else _PILOT_SHARE * _left_s(pools) / workers
        for pool in pools:
            unsure_s = pool.num_waiting * pool.prior.infer_s * math.expm1(pool.prior.spread)
            # Records that have held so far need no early trial: on many workers it would cost more than it gives.
            doubted = not pool.prior.trusted and not pool.running
            pool.untried = doubted and pool.dataset.splittable and unsure_s > least_s

    def _slot(self, desk: Desk, pools: Mapping[str, Pool], now_s: float) -> Slot:
        """When a worker could begin with this checkpoint, and what it has ready."""
        pool = next(iter(pools.values()))
        name = pool.checkpoint.name
        running = desk.running
        ready_s = running.ready_s(now_s) if running is not None else 0.0
        begun = [part.dataset for part in running.trial.parts] if running is not None else []
        held = tuple(dict.fromkeys((name, dataset) for dataset in [*desk.held, *begun][: -self.kept_datasets - 1 : -1]))
        held = held[::-1]
        if (running.trial.checkpoint if running is not None else desk.checkpoint) == name:
            return Slot(worker=desk.worker.id, ready_s=ready_s, held=held)
        memory = self.roster.memories[desk.worker.node]
        if name not in memory.loaded:
            began_s = memory.began_s.get(name, now_s)
            ready_s = max(ready_s, began_s + self.load_s(pool.checkpoint) - now_s)
        return Slot(worker=desk.worker.id, ready_s=ready_s + pool.prior.start_s, held=held)


def _left_s(pools: Iterable[Pool]) -> float:
    return sum(pool.num_waiting * pool.prior.infer_s + pool.prior.setup_s for pool in pools if pool.waiting)


def _work(pool: Pool, samples: int, prior: Prior) -> Work:
    return Work(
        key=pool.key,
        samples=samples,
        setup_s=prior.setup_s,
        infer_s=prior.infer_s,
        score_s=prior.score_s,
        splittable=pool.dataset.splittable,
        trusted=prior.trusted,
        untried=pool.untried,
    )
