"""The life of a job: phases on sets of hosts, checkpoints, evaluations, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from proving.benchmarks.world.execution import Health, Run
from proving.benchmarks.world.fabric import Fabric
from proving.benchmarks.world.faults import Culprit
from proving.benchmarks.world.programs import Degrees, Step
from proving.benchmarks.world.sharing import Program as Running
from proving.benchmarks.world.traffic import Route


class Program(Protocol):
    """What a training program must offer."""

    def setup(self, run: Run) -> Degrees: ...

    def step(self, run: Run) -> Step: ...


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a job's life on one set of hosts, with communicators of its own."""

    hosts: list[int]
    program: Program
    begin: float = -5.0  # seconds; before 0: the job runs when the capture begins
    end: float = np.inf  # no step begins after this
    max_steps: int = 1_000_000
    killed: bool = False  # everything stops at `end`, in the middle of a step


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What a job does besides training steps."""

    checkpoint_every: int = 0
    checkpoint_mb: float = 4000.0  # per host
    checkpoint_waits: float = 0.0  # seconds for which training stands still
    evaluate_every: int = 0
    evaluate_seconds: float = 0.0
    read_mb: float = 0.0  # training data per host and step, from storage


@dataclass(kw_only=True)
class Job:
    """One tenant's job with its truth."""

    name: str
    phases: list[Phase]
    health: Health = field(default_factory=Health)
    habits: Habits = field(default_factory=Habits)
    culprit: Culprit | None = None
    state: str = "running"
    runs: list[Run] = field(default_factory=list)
    degrees: list[Degrees] = field(default_factory=list)


def live(job: Job, fabric: Fabric, rng: np.random.Generator, until: float) -> Running:
    """Run a job's phases one after the other until the capture ends."""
    for phase in job.phases:
        run = Run(fabric, phase.hosts, job.health, rng, phase.begin)
        job.runs.append(run)
        job.degrees.append(phase.program.setup(run))
        storage = _Storage(run, job.habits)
        last = min(until, phase.end)
        begin = phase.begin
        for index in range(phase.max_steps):
            storage.read(begin)
            yield from phase.program.step(run)
            begin = run.mark_step(begin)
            if not np.isfinite(run.clock).all() or begin > last:
                break
            begin = yield from storage.between_steps(phase.program, index, begin)
        if phase.killed:
            _cut(run, phase.end)


def _cut(run: Run, time: float) -> None:
    """The processes are killed: what was being sent ends, and nothing more begins."""
    blocks = []
    for block in run.bursts.blocks:
        keep = block[0] < time
        start, end, src, dst, payload, *rest = (column[keep] for column in block)
        share = np.clip((time - start) / np.maximum(end - start, 1e-9), 0, 1)
        blocks.append((start, np.minimum(end, time), src, dst, np.ceil(payload * share), *rest))
    run.bursts.blocks = blocks
    run.steps = [step for step in run.steps if step[1] <= time]


class _Storage:
    """Training data from storage servers, checkpoints to them, and evaluations between steps."""

    def __init__(self, run: Run, habits: Habits):
        self.run, self.habits = run, habits
        servers = run.fabric.storage()
        count = len(run.hosts)
        nics = np.array([run.fabric.nic_of(host, 0) for host in run.hosts])
        chosen = run.rng.choice(servers, count)
        self.reads = Route(chosen, nics, run.connect(count), "storage")
        self.writes = Route(nics, chosen, run.connect(count), "storage")

    def read(self, time: float) -> None:
        """Workers prefetch the next batches at times of their own."""
        if self.habits.read_mb:
            start = time + self.run.rng.uniform(0, 0.5, len(self.run.hosts))
            size = self.habits.read_mb * 1e6 * self.run.rng.uniform(0.8, 1.2, len(start))
            self._add(start, size, self.reads, 1.5e9)

    def _add(self, start: np.ndarray, size: np.ndarray, route: Route, speed: float) -> None:
        transfers = self.run.bursts.new_transfers(len(start))
        self.run.bursts.add(start, start + size / speed, np.round(size), route, transfers)

    def between_steps(self, program: Program, index: int, time: float) -> Running:
        """Save and evaluate when it is time; gives the begin of the next step."""
        run, habits = self.run, self.habits
        if habits.checkpoint_every and (index + 1) % habits.checkpoint_every == 0:
            start = run.clock.max() + run.rng.uniform(0, 0.1, len(run.hosts))
            self._add(start, np.full(len(start), habits.checkpoint_mb * 1e6), self.writes, 2.5e9)
            run.clock = run.clock + habits.checkpoint_waits
            time += habits.checkpoint_waits
        if habits.evaluate_every and (index + 1) % habits.evaluate_every == 0:
            begin = run.clock.max()
            if hasattr(program, "evaluate"):
                while run.clock.max() < begin + habits.evaluate_seconds:
                    yield from program.evaluate(run, 1)
            else:
                run.clock = run.clock + habits.evaluate_seconds
                yield from run.scalar(program.world)
            time = float(run.clock.max())
        return time
