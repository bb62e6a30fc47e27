"""The state of each node: how its processors are used, what its processes do, what waits for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from prism.evaluate.run.engines.engine import EngineNode, Job
from prism.evaluate.schedule.trials import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a node's processors are used."""

    gpus_per_worker: int = 1
    cpu_workers: int | None = None  # None: half of the cores, where a node has no GPU
    score_cpus: int | None = None  # None: what the workers leave
    use_gpus: bool = True
    max_workers: int | None = None  # over all nodes
    memory_bytes: int = 0

    def find_places(self, node: EngineNode, num_workers: int) -> list[tuple[int, ...]]:
        """The GPUs of each worker to start on a node, none for CPU workers; `num_workers` are there already."""
        gpus, each = node.gpus if self.use_gpus else 0, self.gpus_per_worker
        # Beside GPUs, a node without them only scores.
        count = gpus // each if self.use_gpus else self.cpu_workers or max(1, node.cpus // 2)
        if self.max_workers is not None:
            count = min(count, max(0, self.max_workers - num_workers))
        return [tuple(range(i * each, (i + 1) * each)) if gpus else () for i in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """A job and where it stands; `kind` is warm, load, release, infer, score or combine."""

    kind: str
    job: Job
    worker: str = ""
    node: str = ""
    checkpoint: str = ""
    part: Part | None = None
    limit_s: float | None = None
    attempt: int = 1
    start_s: float = 0.0
    start_ns: int = 0
    lost: bool = False


@dataclass(slots=True)
class NodeState:
    """A node: its workers, the process that loads, the processes that score, and what waits for them."""

    node: EngineNode
    score_cpus: int
    loader: str = ""
    scorers: list[str] = field(default_factory=list)
    load_queue: deque[Duty] = field(default_factory=deque)
    score_queue: deque[Duty] = field(default_factory=deque)
