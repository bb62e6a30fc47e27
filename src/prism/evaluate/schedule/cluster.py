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
class WorkerState:
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
class Cluster:
    """Everyone who is there."""

    states: dict[str, WorkerState] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    trials: dict[str, WorkerState] = field(default_factory=dict)  # by trial id
    idle: dict[str, WorkerState] = field(default_factory=dict)  # without a trial and not suspended
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
        self.states[worker.id] = self.idle[worker.id] = WorkerState(worker=worker)
        self.most_workers[worker.id] = worker
        return True

    def on_node(self, node: str) -> list[WorkerState]:
        """The workers of a node."""
        return [state for state in self.states.values() if state.worker.node == node]

    def is_near(self, state: WorkerState, checkpoint: str) -> bool:
        """Whether a checkpoint is in the memory of a worker's node."""
        return checkpoint in self.memories[state.worker.node].loaded

    def begin(self, state: WorkerState, trial: Trial, now_s: float) -> None:
        """A worker takes a trial."""
        state.running = RunningTrial(trial=trial, left=list(trial.parts), began_s=now_s)
        self.trials[trial.id] = state
        self.idle.pop(state.worker.id, None)

    def end(self, state: WorkerState) -> RunningTrial | None:
        """A worker has no trial any more."""
        running, state.running = state.running, None
        if running is not None:
            del self.trials[running.trial.id]
            self.idle[state.worker.id] = state
        return running

    def remove(self, worker: str) -> RunningTrial | None:
        """A worker is gone; returns what it was doing."""
        state = self.states.pop(worker, None)
        running = self.end(state) if state is not None else None
        self.idle.pop(worker, None)
        return running

    def suspend(self, state: WorkerState, why: str) -> None:
        """A worker gets no more trials."""
        state.suspended, state.queue = why, []
        self.idle.pop(state.worker.id, None)

    def resume(self) -> None:
        """Workers that got no trials get them again."""
        for state in self.states.values():
            state.suspended = ""
            if state.running is None:
                self.idle[state.worker.id] = state

    @property
    def usable(self) -> list[WorkerState]:
        """Workers that can be given trials."""
        return [state for state in self.states.values() if not state.suspended]
