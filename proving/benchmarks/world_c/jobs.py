"""Training jobs: what one is (Job), how its life goes (run), and what is true of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .fabric import Floats, Ints, slowdown
from .wire import Talker, Wire


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training job. A host is one worker: its GPUs are one TP group, or ranks of rings that leave by its NICs."""

    name: str
    program: str  # a key of programs.PROGRAMS
    hosts: tuple[int, ...]  # stage by stage, replica by replica
    rails: tuple[int, ...]
    gpus: int  # per host, of this job
    gigabytes: float  # of gradients in 16 bit, of one host's share of the model (a stage, or all of it)
    compute: float  # seconds of forward and backward of a step on a healthy host, without waits
    pp: int = 1
    cp: int = 1
    ep: int = 1
    shard_hosts: int = 1  # hosts that share one copy of the parameters (HSDP)
    accumulate: int = 1
    buckets: int = 6
    microbatches: int = 8
    chunks: int = 1  # model chunks per stage (interleaved 1F1B)
    activation_mb: float = 32.0  # megabytes between stages, or of one layer's K and V or tokens, per host
    eager: bool = True  # receives are posted ahead, so a stage's output leaves at once
    zero1: bool = False
    tied: bool = False  # first and last stage share the embedding
    tree: bool = False
    jitter: float = 0.01
    stage_weights: tuple[float, ...] = ()
    uneven: float = 0.0  # spread of the work per host and step (sequence lengths)
    generate: float = 0.0  # seconds of generation before each update
    qps: int = 1
    start: float = 0.1
    stop: float = 1e9
    eval_every: int = 0
    eval_seconds: float = 0.0
    save_every: int = 0
    save_seconds: float = 0.0  # pause of a blocking save; 0: the save runs beside training
    stops_at: float = 1e9  # the host `stopped_host` hangs from then on
    stopped_host: int = -1
    layout: tuple[int, int] | None = None  # dp and pp of the truth, where hosts do not say it
    culprit: dict[str, Any] | None = None


@dataclass(kw_only=True)
class Life:
    """A job while it runs: the clock of each of its hosts, and what happened."""

    job: Job
    wire: Wire
    talk: Talker
    rng: np.random.Generator
    clock: Floats
    constant: Floats  # each host's own speed
    hosts: Ints
    steps: list[tuple[float, float]] = field(default_factory=list)
    saves: list[tuple[float, float]] = field(default_factory=list)
    common: float = 1.0  # work of this step relative to others, the same on all hosts
    own: Floats = field(default_factory=lambda: np.ones(0))  # work of this step on each host

    def compute(self, seconds: Floats | float, at: Floats, which: Ints | slice = slice(None)) -> Floats:
        """When the hosts at positions `which` end a computation that they begin at these times."""
        hosts = self.hosts[which]
        factor = self.constant[which] * self.own[which] * self.common
        factor = factor * np.exp(self.rng.normal(0, self.job.jitter, len(hosts)))
        finite = np.where(np.isfinite(at), at, 0)
        done = at + seconds * factor * slowdown(self.wire.fabric.compute_faults, hosts, finite)
        if self.job.stopped_host >= 0:
            done = np.where((hosts == self.job.stopped_host) & (at >= self.job.stops_at), np.inf, done)
        return done

    @property
    def ranks(self) -> int:
        """GPUs of the job."""
        return len(self.hosts) * self.job.gpus

    def group(self) -> Ints:
        """All hosts as one group."""
        return self.hosts[None, :]

    def draw_step(self) -> None:
        """New work for a step: a little common change, and each host's own share of long sequences."""
        self.common = float(np.exp(self.rng.normal(0, self.job.jitter / 2)))
        self.own = (
            np.exp(self.rng.normal(0, self.job.uneven, len(self.hosts)))
            if self.job.uneven
            else np.ones(len(self.hosts))
        )


def run(job: Job, wire: Wire, rng: np.random.Generator, number: int, until: float) -> Life:
    """Simulate a job from its start to its stop, its hang or the capture's end."""
    from .programs import PROGRAMS

    hosts = np.array(job.hosts)
    talk = Talker(wire=wire, rails=job.rails, qps=job.qps, base=1000 * (number + 1))
    clock = job.start + rng.uniform(0, 2e-3, len(hosts))
    speed = np.exp(rng.normal(0, 0.003, len(hosts)))
    life = Life(
        job=job, wire=wire, talk=talk, rng=rng, clock=clock, constant=speed, hosts=hosts, own=np.ones(len(hosts))
    )
    until = min(until, job.stop)
    if job.start > 1 and job.pp == 1:  # a job that starts in the capture broadcasts its parameters first
        life.clock = talk.ring(life.group(), life.clock, job.gigabytes * 1e9 / len(job.rails), 1, 90)
    last = 0.0
    while life.clock.max() + last < until:
        begin = float(life.clock.max())
        life.draw_step()
        PROGRAMS[job.program](life)
        if not np.isfinite(life.clock).all():
            break
        end = float(life.clock.max())
        life.steps.append((begin, end))
        last = end - begin
        _between(life)
    return life


def _between(life: Life) -> None:
    """Evaluation and saving after a step: all hosts pause and go on together."""
    job, done = life.job, len(life.steps)
    now = float(life.clock.max())
    if job.eval_every and done % job.eval_every == 0:
        life.clock = now + job.eval_seconds * life.rng.uniform(0.95, 1.05) + life.rng.uniform(0, 2e-3, len(life.clock))
    if job.save_every and done % job.save_every == 0:
        now = float(life.clock.max())
        life.saves.append((now, now + (job.save_seconds or 6.0)))
        if job.save_seconds:
            life.clock = now + job.save_seconds + life.rng.uniform(0, 2e-3, len(life.clock))


def truth_of(life: Life, t0_ns: int, length: float) -> dict[str, Any]:
    """What is true of a job, in the form of shared/data/world."""
    job, fabric = life.job, life.wire.fabric
    used = sorted({e for pair in life.talk.pairs for e in pair})
    pp = job.pp
    endpoints_per_stage = len(used) // pp
    # Ranks behind one NIC, or TP peers of one host, cannot be told apart in records: dp counts what records show.
    tensor = pp > 1 or job.cp > 1
    dp = endpoints_per_stage // (len(job.rails) if tensor else 1) // job.cp
    if job.layout:
        dp, pp = job.layout
    replicas = len(job.hosts) // job.pp
    stage = {h: i // replicas for i, h in enumerate(job.hosts)}
    steps = [(a, b) for a, b in life.steps if a >= 0 and b <= length]
    gpus = len(job.hosts) * job.gpus
    end = max((b for _, b in steps), default=job.start)
    return {
        "name": job.name,
        "endpoints": [fabric.address(e) for e in used],
        "dp": dp,
        "pp": pp,
        "inner": max(1, gpus // (dp * pp * job.cp)),
        "gpus": gpus,
        "cp": job.cp,
        "ep": job.ep,
        "pairs": [
            {"src": fabric.address(a), "dst": fabric.address(b), "kinds": sorted(kinds)}
            for (a, b), kinds in sorted(life.talk.pairs.items())
        ],
        "steps": [{"start_ns": t0_ns + round(a * 1e9), "duration_ns": round((b - a) * 1e9)} for a, b in steps],
        "stage_of": {fabric.address(e): stage[e // fabric.num_nics] for e in used} if job.pp > 1 else {},
        "culprit": job.culprit,
        "start_ns": t0_ns + round(max(0.0, job.start) * 1e9),
        "end_ns": t0_ns + round(end * 1e9),
    }
