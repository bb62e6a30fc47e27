"""The worker processes of a run: who does what, who is idle, who has hung or died and is replaced."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from prism.errors import PrismError
from prism.evaluate.run.engines.engine import Engine, EngineNode, Gone, Job, Outcome, Returned, WorkerSpec
from prism.evaluate.run.node_states import Duty, Layout, NodeState
from prism.evaluate.schedule import events
from prism.evaluate.schedule.events import Event, Failure
from prism.evaluate.schedule.trials import Node, Worker

_NODE_CHECK_S = 1.0
_MAX_ATTEMPTS = 3  # to combine scores
_MAX_REPLACEMENTS = 8  # of one worker's process, before its place is left empty


class WorkerPool:
    """Starts processes on an engine and hands them jobs."""

    def __init__(self, engine: Engine, layout: Layout, warm_up: Job | None = None) -> None:
        """`warm_up` is what a new inference worker does first, while its checkpoint is on the way."""
        self._engine = engine
        self._layout = layout
        self._warm_up = warm_up
        self._held: dict[str, Duty] = {}  # the first of workers that are warming up
        self._node_states: dict[str, NodeState] = {}
        self._workers: dict[str, WorkerSpec] = {}
        self._duties: dict[str, Duty] = {}
        self._news: deque[Event] = deque()
        self._replacements: dict[tuple[str, tuple[int, ...]], int] = {}
        self._adopted: dict[str, str] = {}  # scorers by node that were at work before
        self._unplaced: deque[Duty] = deque()  # to combine scores, where the node was lost
        self._lent: list[WorkerSpec] = []  # whose places training has for now
        self._count = 0
        self._next_check_s = 0.0

    def adopt_scorer(self, worker: str, node: str) -> None:
        """Use a process that was started before as a scorer of its node: it has imported what scoring needs."""
        self._adopted[node] = worker

    def watch_nodes(self, now_s: float) -> list[Event]:
        """Nodes and workers that came or went, looked up once a second."""
        if now_s < self._next_check_s:
            return []
        self._next_check_s = now_s + _NODE_CHECK_S
        alive = {node.id: node for node in self._engine.nodes()}
        found: list[Event] = []
        for gone in [name for name in self._node_states if name not in alive]:
            self._close_node(gone)
            found.append(events.NodeLost(now_s=now_s, node=gone))
        for node in alive.values():
            if node.id not in self._node_states:
                found += self._open_node(node, now_s)
        return found

    def changes(self, now_s: float) -> list[Event]:
        """Workers lost, and those that replace them."""
        found = [replace(event, now_s=now_s) for event in self._news]
        self._news.clear()
        return found

    def worker(self, worker: str) -> WorkerSpec | None:
        """A worker for inference; None when it is gone and the scheduler does not know yet."""
        return self._workers.get(worker)

    def address(self, node: str) -> str:
        """Where a node is reached by others."""
        node_state = self._node_states.get(node)
        return node_state.node.address if node_state else ""

    def tend(self, duty: Duty) -> None:
        """For the process that keeps a node's shelf; one after the other."""
        if (node_state := self._node_states.get(duty.node)) is not None:
            node_state.load_queue.append(duty)
            self._feed(node_state)

    def assign(self, worker: str, duty: Duty) -> None:
        """For an inference worker."""
        if worker in self._duties:  # it is warming up
            self._held[worker] = duty
        else:
            self._begin(worker, duty)

    def score(self, duty: Duty) -> None:
        """For a CPU of its node, or of the least busy one."""
        node_states = self._node_states.values()
        node_state = self._node_states.get(duty.node) or min(
            node_states, key=lambda s: len(s.score_queue), default=None
        )
        if node_state is None:
            self._save([duty])
        else:
            node_state.score_queue.append(replace(duty, node=node_state.node.id))
            self._feed(node_state)

    def dismiss(self, worker: str) -> None:
        """Stop a process and give its GPUs back."""
        self._held.pop(worker, None)
        self._duties.pop(worker, None)
        self._workers.pop(worker, None)
        self._engine.stop(worker)

    def give_to_training(self, count: int, busy: frozenset[int] = frozenset()) -> tuple[str, ...]:
        """Choose workers whose GPUs go to training: all on `busy` ones, and `count` places in all; idle ones first."""
        taken = [worker for worker, spec in self._workers.items() if busy & set(spec.gpus)]
        order = sorted((w for w in self._workers if w not in taken), key=lambda worker: worker in self._duties)
        chosen = taken + order[: max(0, count - len(self._lent) - len(taken))]
        self._lent += [self._workers[worker] for worker in chosen]
        return tuple(chosen)

    def take_back(self, count: int, busy: frozenset[int] = frozenset()) -> None:
        """Start workers again in places that training no longer needs, until it has `count`."""
        free = [spec for spec in self._lent if not busy & set(spec.gpus)]
        while len(self._lent) > count and free:
            spec = free.pop()
            self._lent.remove(spec)
            if spec.node in self._node_states:
                self._news.append(self._start_worker(spec.node, spec.gpus))

    def wait(self, timeout_s: float) -> Iterator[tuple[Duty, Outcome]]:
        """Duties that ended, well or not."""
        for report in self._engine.wait(timeout_s):
            duty = self._duties.pop(report.worker, None)
            if isinstance(report, Gone):
                if not self._went_with_node(report.worker, duty):
                    yield from self._lose(report.worker, duty, f"its process is gone ({report.text})")
            elif isinstance(report, Returned) and duty is not None:
                if report.worker in self._held:
                    self._begin(report.worker, self._held.pop(report.worker))
                yield duty, report.outcome
        yield from self._end_hung()
        for _ in range(len(self._unplaced) if self._node_states else 0):
            self.score(self._unplaced.popleft())
        for node_state in self._node_states.values():
            self._feed(node_state)

    def _went_with_node(self, worker: str, duty: Duty | None) -> bool:
        """Whether a lost worker's node is gone too: then the node is reported as lost, and nothing starts there."""
        spec = self._workers.get(worker)
        node = spec.node if spec else duty.node if duty else ""
        if not node or node in {alive.id for alive in self._engine.nodes()}:
            return False
        self._next_check_s = 0.0
        self._held.pop(worker, None)
        self._save([duty] if duty else [])
        return True

    def _end_hung(self) -> Iterator[tuple[Duty, Outcome]]:
        now_s = time.monotonic()
        late = [w for w, d in self._duties.items() if d.limit_s is not None and now_s - d.start_s > d.limit_s]
        for worker in late:
            duty = self._duties.pop(worker)
            self._engine.stop(worker)
            yield from self._lose(worker, duty, f"no end after {duty.limit_s:g} s; stopped", Failure.HUNG)

    def _lose(
        self, worker: str, duty: Duty | None, text: str, failure: Failure = Failure.OTHER
    ) -> Iterator[tuple[Duty, Outcome]]:
        """A process ended with what it did; another takes its place."""
        if worker in self._held:
            duty = replace(self._held.pop(worker), worker=worker)
        if duty is not None and duty.kind == "combine" and duty.attempt < _MAX_ATTEMPTS:
            self._save([replace(duty, attempt=duty.attempt + 1)])
        elif duty is not None:
            yield replace(duty, lost=True), Outcome(failure=failure, text=text)
        if (spec := self._workers.pop(worker, None)) is not None:
            self._news.append(events.WorkerLost(now_s=0.0, worker=worker))
            place = (spec.node, spec.gpus)
            self._replacements[place] = self._replacements.get(place, 0) + 1
            if spec.node in self._node_states and self._replacements[place] <= _MAX_REPLACEMENTS:
                self._news.append(self._start_worker(spec.node, spec.gpus))
            return
        for node_state in self._node_states.values():
            if worker == node_state.loader:
                place = (node_state.node.id, ())
                self._replacements[place] = self._replacements.get(place, 0) + 1
                if self._replacements[place] > _MAX_REPLACEMENTS:
                    raise PrismError(
                        f"{node_state.node.id}: the process that loads checkpoints dies again and again: {text}"
                    )
                # Its copies went with its leases: the node has to load again.
                self._news.append(events.NodeLost(now_s=0.0, node=node_state.node.id))
                self._close_node(node_state.node.id)
                return
            if worker in node_state.scorers:
                node_state.scorers.remove(worker)

    def _open_node(self, node: EngineNode, now_s: float) -> Iterator[Event]:
        places = self._layout.find_places(node, len(self._workers))
        node_state = NodeState(node=node, score_cpus=self._layout.score_cpus or max(1, node.cpus - len(places)))
        if (scorer := self._adopted.pop(node.id, None)) is not None:
            node_state.scorers.append(scorer)
        self._node_states[node.id] = node_state
        yield events.NodeJoined(
            now_s=now_s,
            node=Node(id=node.id, cpus=node_state.score_cpus, memory_bytes=self._layout.memory_bytes),
        )
        for gpus in places:
            yield replace(self._start_worker(node.id, gpus), now_s=now_s)

    def _close_node(self, node: str) -> None:
        node_state = self._node_states.pop(node)
        self._save([*node_state.score_queue, *(self._duties[s] for s in node_state.scorers if s in self._duties)])
        workers = [worker for worker, spec in self._workers.items() if spec.node == node]
        for worker in (*workers, *node_state.scorers, node_state.loader):
            self.dismiss(worker)

    def _save(self, duties: Iterable[Duty]) -> None:
        """Keep what a lost node was to combine for another; the scheduler starts its scores again by itself."""
        self._unplaced += [replace(duty, node="") for duty in duties if duty.kind == "combine"]

    def _start_worker(self, node: str, gpus: tuple[int, ...]) -> events.WorkerJoined:
        spec = WorkerSpec(id=self._name("worker", node), node=node, gpus=gpus, cpus=0.0 if gpus else 1.0)
        self._engine.start(spec)
        self._workers[spec.id] = spec
        if self._warm_up is not None:
            self._begin(spec.id, Duty(kind="warm", job=self._warm_up, node=node))
        return events.WorkerJoined(now_s=0.0, worker=Worker(id=spec.id, node=node, gpus=gpus))

    def _feed(self, node_state: NodeState) -> None:
        """Hand queued jobs to idle processes; a process is started when first needed."""
        if node_state.load_queue:
            if not node_state.loader:
                node_state.loader = self._name("loader", node_state.node.id)
                self._engine.start(WorkerSpec(id=node_state.loader, node=node_state.node.id, cpus=0.0))
            if node_state.loader not in self._duties:
                self._begin(node_state.loader, node_state.load_queue.popleft())
        while node_state.score_queue:
            idle = next((s for s in node_state.scorers if s not in self._duties), None)
            if idle is None and len(node_state.scorers) < node_state.score_cpus:
                idle = self._name("scorer", node_state.node.id)
                self._engine.start(WorkerSpec(id=idle, node=node_state.node.id, cpus=1.0))
                node_state.scorers.append(idle)
            if idle is None:
                break
            self._begin(idle, node_state.score_queue.popleft())

    def _begin(self, worker: str, duty: Duty) -> None:
        self._duties[worker] = replace(duty, worker=worker, start_s=time.monotonic(), start_ns=time.time_ns())
        self._engine.submit(worker, duty.job)

    def _name(self, kind: str, node: str) -> str:
        self._count += 1
        return f"{node[:12]}/{kind}-{self._count}"
