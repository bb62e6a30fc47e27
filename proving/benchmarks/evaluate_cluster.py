"""A cluster that is only reckoned: performs the scheduler's actions with run times that the scheduler cannot see."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.evaluate.schedule import events
from prism.evaluate.schedule.actions import (
    Action,
    CombineScores,
    LoadCheckpoint,
    StartInference,
    StartScore,
)
from prism.evaluate.schedule.priors import Prior
from prism.evaluate.schedule.scheduler import Scheduler
from prism.evaluate.schedule.trials import KEPT_DATASETS, Checkpoint, Node, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How fast models travel, in bytes per second; readers of one link share it evenly."""

    node: float  # from storage into one node
    storage: float = math.inf  # from storage to all nodes together
    peer: float = math.inf  # from one node to another


@dataclass(slots=True)
class _Flow:
    node: str
    source: str | None
    left: float  # bytes


class SharedLinks:
    """Transfers under way, all moved forward together."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._flows: dict[tuple[str, str], _Flow] = {}
        self._now_s = 0.0

    def add(self, key: tuple[str, str], node: str, num_bytes: float, now_s: float, source: str | None = None) -> None:
        """Begin a transfer into a node, from storage or from another node."""
        self.advance(now_s)
        self._flows[key] = _Flow(node, source, num_bytes)

    def drop(self, key: tuple[str, str]) -> None:
        """End a transfer early."""
        self._flows.pop(key, None)

    def next_end_s(self) -> float:
        """When the next transfer is through, if nothing else begins."""
        return min((self._now_s + flow.left / self._rate(flow) for flow in self._flows.values()), default=math.inf)

    def advance(self, now_s: float) -> list[tuple[str, str]]:
        """Move all transfers on to a moment; returns those that are through."""
        rates = {key: self._rate(flow) for key, flow in self._flows.items()}
        done = []
        for key, flow in list(self._flows.items()):
            flow.left -= rates[key] * (now_s - self._now_s)
            if flow.left <= 1e-6 * rates[key]:
                done.append(key)
                del self._flows[key]
        self._now_s = now_s
        return done

    def _rate(self, flow: _Flow) -> float:
        flows = self._flows.values()
        into = sum(other.node == flow.node for other in flows)
        out = sum(other.source == flow.source for other in flows)
        if flow.source is None:
            return min(self._links.node / into, self._links.storage / out)
        return self._links.peer / max(into, out)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What came of it."""

    makespan_s: float
    num_trials: int
    num_loads: int
    failed_samples: int
    busy_gpu_s: float  # that workers held their GPUs for trials
    scored_s: Mapping[str, float]  # by checkpoint: when its last dataset was scored


@dataclass(slots=True, kw_only=True)
class _SimulatedWorker:
    worker: Worker
    checkpoint: str = ""
    datasets: list[str] = field(default_factory=list)  # made ready, the last one used at the end
    trial: str = ""


@dataclass(slots=True, kw_only=True)
class SimulatedCluster:
    """Workers, links and CPUs whose run times are `truth` by checkpoint and dataset."""

    truth: Mapping[tuple[str, str], Prior]
    checkpoints: Mapping[str, Checkpoint]
    links: SharedLinks
    kept_datasets: int = KEPT_DATASETS  # that a worker keeps ready
    now_s: float = 0.0
    num_trials: int = 0
    num_loads: int = 0
    busy_gpu_s: float = 0.0
    paces: Mapping[str, float] = field(default_factory=dict)  # by node: how many times longer inference takes there
    _heap: list[tuple[float, int, events.Event]] = field(default_factory=list)
    _count: int = 0
    _workers: dict[str, _SimulatedWorker] = field(default_factory=dict)
    _loads: dict[tuple[str, str], float] = field(default_factory=dict)

    def join(self, worker: Worker) -> None:
        """A worker comes up, with nothing on its device."""
        self._workers[worker.id] = _SimulatedWorker(worker=worker)

    def push(self, event: events.Event) -> None:
        """Something that will happen."""
        self._count += 1
        heapq.heappush(self._heap, (event.now_s, self._count, event))

    def perform(self, action: Action) -> None:
        """Let an action take its time."""
        match action:
            case LoadCheckpoint():
                key = (action.node, action.checkpoint)
                self.num_loads += 1
                self._loads[key] = self.now_s
                num_bytes = self.checkpoints[action.checkpoint].bytes
                self.links.add(key, action.node, num_bytes, self.now_s, action.source)
            case StartInference():
                self._infer(action)
            case StartScore():
                truth = self.truth[action.part.checkpoint, action.part.dataset]
                seconds = action.part.samples * truth.score_s
                self.push(events.ScoreFinished(now_s=self.now_s + seconds, part=action.part, seconds=seconds))

    def next_event(self) -> events.Event | None:
        """What happens next, of what still can."""
        while True:
            load_end_s = self.links.next_end_s()
            if load_end_s < (self._heap[0][0] if self._heap else math.inf):
                done = self.links.advance(load_end_s)
                self.now_s = load_end_s
                for node, checkpoint in done:
                    seconds = load_end_s - self._loads.pop((node, checkpoint))
                    loaded = events.CheckpointLoaded(
                        now_s=load_end_s, node=node, checkpoint=checkpoint, seconds=seconds
                    )
                    self.push(loaded)
                continue
            if not self._heap:
                return None
            event = heapq.heappop(self._heap)[2]
            self.now_s = max(self.now_s, event.now_s)
            if self._still_happens(event):
                return event

    def _infer(self, action: StartInference) -> None:
        simulated = self._workers[action.worker]
        assert not simulated.trial, f"{action.worker} is given {action.trial.id} while it runs {simulated.trial}"
        simulated.trial = action.trial.id
        self.num_trials += 1
        at_s = self.now_s
        for part in action.trial.parts:
            truth = self.truth[part.checkpoint, part.dataset]
            start_s = truth.start_s if simulated.checkpoint != part.checkpoint else 0.0
            setup_s = 0.0 if part.dataset in simulated.datasets else truth.setup_s
            kept = [name for name in simulated.datasets if name != part.dataset]
            simulated.checkpoint, simulated.datasets = part.checkpoint, [*kept, part.dataset][-self.kept_datasets :]
            seconds = part.samples * truth.infer_s * self.paces.get(simulated.worker.node, 1.0)
            at_s += start_s + setup_s + seconds
            self.push(
                events.PartInferred(
                    now_s=at_s,
                    trial=action.trial.id,
                    part=part,
                    seconds=seconds,
                    setup_s=setup_s,
                    start_s=start_s,
                )
            )
        self.busy_gpu_s += (at_s - self.now_s) * len(simulated.worker.gpus)
        self.push(events.InferenceFinished(now_s=at_s, trial=action.trial.id))

    def _still_happens(self, event: events.Event) -> bool:
        """Nothing comes from a worker that is gone, or from a trial that was cancelled."""
        if isinstance(event, events.PartInferred | events.InferenceFinished):
            owner = next((w for w in self._workers.values() if w.trial == event.trial), None)
            if owner is None:
                return False
            if isinstance(event, events.InferenceFinished):
                owner.trial = ""
        if isinstance(event, events.WorkerLost):
            self._workers.pop(event.worker, None)
        if isinstance(event, events.Preempted):
            for worker in event.workers:
                self._workers[worker].trial = ""
        if isinstance(event, events.WorkerJoined):
            self.join(event.worker)
        return True


def simulate_evaluation(
    scheduler: Scheduler,
    *,
    checkpoints: Sequence[Checkpoint],
    truth: Mapping[tuple[str, str], Prior],
    nodes: Sequence[Node],
    workers: Sequence[Worker],
    links: Links,
    interruptions: Sequence[events.Event] = (),
    paces: Mapping[str, float] | None = None,
) -> SimulatedRun:
    """Run a scheduler to its end, all checkpoints that come included, on hardware that exists in numbers only."""
    cluster = SimulatedCluster(
        truth=truth,
        checkpoints={checkpoint.name: checkpoint for checkpoint in checkpoints},
        links=SharedLinks(links),
        kept_datasets=scheduler.config.kept_datasets,
        paces=paces or {},
    )
    for node in nodes:
        cluster.push(events.NodeJoined(now_s=0.0, node=node))
    for worker in workers:
        cluster.push(events.WorkerJoined(now_s=0.0, worker=worker))
    for event in interruptions:
        cluster.push(event)
    to_come = sum(isinstance(event, events.CheckpointAdded) for event in interruptions)
    scored_s: dict[str, float] = {}
    while to_come or not scheduler.over:
        happened = cluster.next_event()
        assert happened is not None, "the scheduler waits for something that does not come"
        to_come -= isinstance(happened, events.CheckpointAdded)
        for action in scheduler.handle(happened):
            cluster.perform(action)
            if isinstance(action, CombineScores):
                scored_s[action.checkpoint] = cluster.now_s
    return SimulatedRun(
        makespan_s=cluster.now_s,
        num_trials=cluster.num_trials,
        num_loads=cluster.num_loads,
        failed_samples=scheduler.progress(cluster.now_s).failed,
        busy_gpu_s=cluster.busy_gpu_s,
        scored_s=scored_s,
    )
