"""The workers and nodes of a run: what each holds and does."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.evaluate.schedule.packing import Share
from prism.evaluate.schedule.transfers import Memory
from prism.evaluate.schedule.trials import Node, Part, Trial, Worker


@dataclass(slots=True, kw_only=True)
class RunningTrial:
    """A trial on a worker; `left` are the parts it has not reported."""

    trial: Trial
    left: list[Part]
    began_s: float

    def ready_s(self, now_s: float) -> float:
        """Seconds until it should be over; one that is late is taken to need a tenth of its time again."""
        late_s = (now_s - self.began_s) * 0.1
        return max(self.began_s + self.trial.expected_s - now_s, late_s)


@dataclass(slots=True, kw_only=True)
class Desk:
    """A worker, what lies on its device, and what it is to do."""

    worker: Worker
    checkpoint: str | None = None  # on the device
    held: list[str] = field(default_factory=list)  # datasets made ready, the last one used at the end
    running: RunningTrial | None = None
    group: str | None = None  # the checkpoint it works for
    queue: list[Share] = field(default_factory=list)
    suspended: str = ""  # why it gets no trials
    rested: int = -1  # the plan that had nothing for it
    strikes: int = 0  # trials in a row that failed on it


@dataclass(slots=True, kw_only=True)
class Roster:
    """Everyone who is there."""

    desks: dict[str, Desk] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    trials: dict[str, Desk] = field(default_factory=dict)  # by trial id
    idle: dict[str, Desk] = field(default_factory=dict)  # without a trial and not suspended
    most_workers: dict[str, Worker] = field(default_factory=dict)  # ever, for the lower bound
    most_nodes: dict[str, Node] = field(default_factory=dict)

    def add_node(self, node: Node) -> None:
        """A node joins, or says again that it is there."""
        if node.id not in self.memories:
            self.memories[node.id] = Memory(node=node)
            self.most_nodes[node.id] = node

    def add_worker(self, worker: Worker) -> bool:
        """A worker joins; False for one of an unknown node or with a GPU that another has."""
        if worker.node not in self.memories:
            return False
        for other in self.on_node(worker.node):
            if other.worker.id != worker.id and set(other.worker.gpus) & set(worker.gpus):
                return False
        self.desks[worker.id] = self.idle[worker.id] = Desk(worker=worker)
        self.most_workers[worker.id] = worker
        return True

    def on_node(self, node: str) -> list[Desk]:
        """The workers of a node."""
        return [desk for desk in self.desks.values() if desk.worker.node == node]

    def is_near(self, desk: Desk, checkpoint: str) -> bool:
        """Whether a checkpoint is in the memory of a worker's node."""
        return checkpoint in self.memories[desk.worker.node].loaded

    def begin(self, desk: Desk, trial: Trial, now_s: float) -> None:
        """A worker takes a trial."""
        desk.running = RunningTrial(trial=trial, left=list(trial.parts), began_s=now_s)
        self.trials[trial.id] = desk
        self.idle.pop(desk.worker.id, None)

    def end(self, desk: Desk) -> RunningTrial | None:
        """A worker has no trial any more."""
        running, desk.running = desk.running, None
        if running is not None:
            del self.trials[running.trial.id]
            self.idle[desk.worker.id] = desk
        return running

    def remove(self, worker: str) -> RunningTrial | None:
        """A worker is gone; returns what it was doing."""
        desk = self.desks.pop(worker, None)
        running = self.end(desk) if desk is not None else None
        self.idle.pop(worker, None)
        return running

    def suspend(self, desk: Desk, why: str) -> None:
        """A worker gets no more trials."""
        desk.suspended, desk.queue = why, []
        self.idle.pop(desk.worker.id, None)

    def resume(self) -> None:
        """Workers that got no trials get them again."""
        for desk in self.desks.values():
            desk.suspended = ""
            if desk.running is None:
                self.idle[desk.worker.id] = desk

    @property
    def usable(self) -> list[Desk]:
        """Workers that can be given trials."""
        return [desk for desk in self.desks.values() if not desk.suspended]
