"""A cluster where anything may happen in any order, which checks what the scheduler asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from prism.evaluate.schedule import actions, events
from prism.evaluate.schedule.scheduler import Scheduler
from prism.evaluate.schedule.trials import Checkpoint, Node, Part, Trial, Worker

Choose = Callable[[int], int]  # a number below the one given


@dataclass
class Hazards:
    """Performs actions when it pleases; `choose` decides what happens next."""

    scheduler: Scheduler
    choose: Choose
    now_s: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    running: dict[str, tuple[Trial, list[Part]]] = field(default_factory=dict)  # by worker
    loads: list[tuple[str, str]] = field(default_factory=list)
    held: set[tuple[str, str]] = field(default_factory=set)  # checkpoints in nodes' memory
    scores: dict[Part, str] = field(default_factory=dict)
    inferred: set[tuple[str, str, int]] = field(default_factory=set)  # samples
    scored: set[tuple[str, str, int]] = field(default_factory=set)
    given_up: set[tuple[str, str, int]] = field(default_factory=set)
    combined: set[tuple[str, str]] = field(default_factory=set)
    finishes: int = 0
    happened: dict[str, int] = field(default_factory=dict)
    seconds: Callable[[Part], float] = lambda part: 0.01 * part.samples

    def send(self, kind: type[events.Event], **fields: object) -> None:
        """Let something happen and take what the scheduler asks for."""
        self.happened[kind.__name__] = self.happened.get(kind.__name__, 0) + 1
        self.now_s += 0.1 + self.choose(10) / 10
        for action in self.scheduler.handle(kind(now_s=self.now_s, **fields)):  # type: ignore[arg-type]
            self.take(action)

    def take(self, action: actions.Action) -> None:
        """Check that an action is allowed, and remember it."""
        match action:
            case actions.LoadCheckpoint(node=node, checkpoint=name, source=source):
                assert node in self.nodes and (node, name) not in self.held and (node, name) not in self.loads
                assert source is None or (source, name) in self.held
                self.loads.append((node, name))
            case actions.ReleaseCheckpoint(node=node, checkpoint=name):
                self.held.remove((node, name))
                assert not any(
                    t.checkpoint == name for w, (t, _) in self.running.items() if self.workers[w].node == node
                )
            case actions.StartInference(trial=trial, worker=worker):
                assert worker in self.workers and worker not in self.running, "two trials on one worker"
                assert (self.workers[worker].node, trial.checkpoint) in self.held, "the model is not there"
                busy = {s for _, parts in self.running.values() for part in parts for s in samples_of(part)}
                for part in trial.parts:
                    new = samples_of(part)
                    assert not new & self.inferred, "finished work runs again"
                    assert not new & self.given_up and not new & busy
                    busy |= new
                self.running[worker] = (trial, list(trial.parts))
            case actions.StartScore(part=part, node=node):
                assert node in self.nodes and part not in self.scores
                assert samples_of(part) <= self.inferred and not samples_of(part) & self.scored
                assert sum(n == node for n in self.scores.values()) < self.nodes[node].cpus
                self.scores[part] = node
            case actions.CombineScores(checkpoint=name, dataset=dataset, parts=parts):
                assert (name, dataset) not in self.combined
                self.combined.add((name, dataset))
                assert set().union(*(samples_of(part) for part in parts)) <= self.scored
                assert all(a.last == b.first for a, b in pairwise(parts)) and parts[0].first == 0
            case actions.ReportFailure(part=part):
                assert not samples_of(part) & (self.scored | self.given_up)
                self.given_up |= samples_of(part)
            case actions.Finish():
                self.finishes += 1

    # -- what can happen

    def join(self, node: str, gpu: int) -> None:
        """A worker comes up, on a new node if need be."""
        if node not in self.nodes:
            self.nodes[node] = Node(id=node, cpus=2)
            self.send(events.NodeJoined, node=self.nodes[node])
        worker = Worker(id=f"{node}.{gpu}", node=node, gpus=(gpu,))
        if worker.id not in self.workers:
            self.workers[worker.id] = worker
            self.send(events.WorkerJoined, worker=worker)

    def lose_worker(self, worker: str) -> None:
        """A worker dies."""
        self.running.pop(worker, None)
        del self.workers[worker]
        self.send(events.WorkerLost, worker=worker)

    def lose_node(self, node: str) -> None:
        """A machine dies with all that is on it."""
        for worker in [w for w in self.workers.values() if w.node == node]:
            self.running.pop(worker.id, None)
            del self.workers[worker.id]
        del self.nodes[node]
        self.loads = [load for load in self.loads if load[0] != node]
        self.held = {held for held in self.held if held[0] != node}
        self.scores = {part: n for part, n in self.scores.items() if n != node}
        self.send(events.NodeLost, node=node)

    def preempt(self, worker: str) -> None:
        """Training takes a worker's GPUs."""
        self.running.pop(worker, None)
        del self.workers[worker]
        self.send(events.Preempted, workers=(worker,))
        assert worker not in self.running

    def finish_part(self, worker: str) -> None:
        """A running trial writes its next part, and ends after the last."""
        trial, left = self.running[worker]
        part = left.pop(0)
        self.inferred |= samples_of(part)
        if not left:
            del self.running[worker]
        self.send(events.PartInferred, trial=trial.id, part=part, seconds=self.seconds(part), setup_s=0.5)
        if not left:
            self.send(events.InferenceFinished, trial=trial.id)

    def fail_trial(self, worker: str, failure: events.Failure) -> None:
        """A running trial raises."""
        trial, _ = self.running.pop(worker)
        self.send(events.InferenceFailed, trial=trial.id, failure=failure, text="it broke")

    def finish_load(self, index: int) -> None:
        """A checkpoint arrives."""
        node, name = self.loads.pop(index)
        self.held.add((node, name))
        self.send(events.CheckpointLoaded, node=node, checkpoint=name, seconds=1.0)

    def finish_score(self, part: Part) -> None:
        """A metric is through."""
        del self.scores[part]
        self.scored |= samples_of(part)
        self.send(events.ScoreFinished, part=part, seconds=0.1)

    def fail_score(self, part: Part) -> None:
        """A metric raises."""
        del self.scores[part]
        self.send(events.ScoreFailed, part=part, text="it broke")

    def add(self, checkpoint: Checkpoint) -> None:
        """Training writes another checkpoint."""
        self.send(events.CheckpointAdded, checkpoint=checkpoint)

    def step(self) -> bool:
        """One thing that was asked for gets done; False when nothing is under way."""
        options: list[Callable[[], None]] = [lambda i=i: self.finish_load(i) for i in range(len(self.loads))]
        options += [lambda w=w: self.finish_part(w) for w in self.running]
        options += [lambda p=p: self.finish_score(p) for p in self.scores]
        if options:
            options[self.choose(len(options))]()
        return bool(options)

    def drain(self) -> None:
        """Everything that is asked for gets done until nothing is left."""
        while not self.scheduler.over:
            if not self.step():
                self.send(events.Tick)
                assert self.loads or self.running or self.scores or self.scheduler.over, "the scheduler waits for ever"


def samples_of(part: Part) -> set[tuple[str, str, int]]:
    """The samples of a part."""
    return {(part.checkpoint, part.dataset, i) for i in range(part.first, part.last)}
