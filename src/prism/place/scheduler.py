"""Which job starts where: events in, starts out; no clock, no files and no cluster inside."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prism.errors import BadConfigError
from prism.place.clusters import Cluster, Job
from prism.place.policies import Policy
from prism.place.run_times import RunTimes


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was submitted."""

    job: Job
    now_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A job ended."""

    job_id: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by; jobs that wait may ask more clusters."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job now."""

    job: Job
    cluster: str
    reason: str


_Kind = tuple[int, int]  # GPUs, and how long a job is expected to run as a power of two


@dataclass(slots=True)
class _Site:
    """A cluster as the scheduler knows it."""

    cluster: Cluster
    free: int
    own: int = 0  # jobs of its own users that wait
    waiting_gpu_s: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)  # expected end and GPUs of what runs, in order
    queue: dict[_Kind, deque[_Waiting]] = field(default_factory=dict)  # in order of submission


@dataclass(slots=True)
class _Waiting:
    job: Job
    number: int
    expected_s: float
    since_s: float
    site: str  # whose queue it is in
    started: bool = False


@dataclass(slots=True)
class _Running:
    job: Job
    site: str
    started_s: float
    end: tuple[float, int]


class Scheduler:
    """Clusters, what waits for them and what runs on them."""

    def __init__(self, clusters: Sequence[Cluster], policy: Policy) -> None:
        if policy.reach == "pool":
            clusters = [Cluster(name="pool", gpus=sum(c.gpus for c in clusters))]
        self._policy = policy
        self._sites = {c.name: _Site(cluster=c, free=c.gpus) for c in clusters}
        self._largest = max(c.gpus for c in clusters)
        self._everyone: dict[_Kind, deque[_Waiting]] = {}  # all waiting jobs, in order of submission
        self._running: dict[str, _Running] = {}
        self._times = RunTimes()
        self._number = 0

    def handle(self, event: Submitted | Finished | Tick) -> list[Start]:
        """What to start now that this happened."""
        if isinstance(event, Submitted):
            return self._submit(event.job, event.now_s)
        if isinstance(event, Finished):
            return self._finish(event.job_id, event.now_s)
        return [start for site in self._sites.values() for start in self._fill(site, event.now_s)]

    @property
    def num_waiting(self) -> int:
        """Jobs that wait."""
        return sum(site.own for site in self._sites.values())

    def fits(self, job: Job) -> bool:
        """Whether a job can ever start under this policy."""
        if self._policy.reach == "home":
            return job.home in self._sites and job.gpus <= self._sites[job.home].cluster.gpus
        return job.gpus <= self._largest

    def _submit(self, job: Job, now_s: float) -> list[Start]:
        if not self.fits(job):
            raise BadConfigError(
                f"job {job.id} wants {job.gpus} GPUs of '{job.home}', more than any cluster it may use has; "
                f"it would fit from {job.gpus} GPUs on"
            )
        expected = self._times.expect_s(job)
        site = self._choose_queue(job)
        waiting = _Waiting(job=job, number=self._number, expected_s=expected, since_s=now_s, site=site.cluster.name)
        self._number += 1
        kind = (job.gpus, int(expected).bit_length() if self._policy.short_first else 0)
        site.queue.setdefault(kind, deque()).append(waiting)
        site.own += 1
        site.waiting_gpu_s += expected * job.gpus
        if self._policy.reach in ("any", "rounds", "lend"):
            self._everyone.setdefault(kind, deque()).append(waiting)
        started = self._fill(site, now_s)
        if not waiting.started and self._policy.reach in ("any", "rounds", "lend"):
            for other in sorted(self._sites.values(), key=lambda s: -s.free):
                if other.free < job.gpus:
                    break
                started += self._fill(other, now_s)
                if waiting.started:
                    break
        return started

    def _choose_queue(self, job: Job) -> _Site:
        if self._policy.reach == "pool":
            return self._sites["pool"]
        if self._policy.reach == "chosen" or job.home not in self._sites:
            able = [s for s in self._sites.values() if s.cluster.gpus >= job.gpus]
            return min(able, key=lambda s: (s.waiting_gpu_s / s.cluster.gpus, -s.free / s.cluster.gpus))
        home = self._sites[job.home]
        if home.cluster.gpus < job.gpus:  # it can only ever run elsewhere
            return max(self._sites.values(), key=lambda s: s.cluster.gpus)
        return home

    def _finish(self, job_id: str, now_s: float) -> list[Start]:
        running = self._running.pop(job_id, None)
        if running is None:
            return []  # told twice, or started by somebody else
        site = self._sites[running.site]
        site.free += running.job.gpus
        site.ends.remove(running.end)
        self._times.learn(running.job, now_s - running.started_s)
        return self._fill(site, now_s)

    def _fill(self, site: _Site, now_s: float) -> list[Start]:
        """Start what a cluster has room for: its own users' jobs first, then those of others."""
        started = []
        while (found := self._next_own(site, now_s)) is not None:
            started.append(self._start(found, site, now_s, "its own cluster has room"))
        if self._policy.reach not in ("any", "rounds", "lend"):
            return started
        while (found := self._next_guest(site, now_s)) is not None:
            why = f"'{found.site}' is full, '{site.cluster.name}' has {site.free} GPUs free"
            started.append(self._start(found, site, now_s, why))
        return started

    def _next_own(self, site: _Site, now_s: float) -> _Waiting | None:
        heads = self._heads(site.queue)
        if not heads:
            return None
        head = heads[0]
        if self._policy.reach in ("any", "rounds"):  # every queue is one: who came first goes first, wherever it is
            return None
        if head.job.gpus <= site.free:
            return head
        if not self._policy.backfill:
            return None
        return self._backfill(site, heads, now_s)

    def _backfill(self, site: _Site, heads: list[_Waiting], now_s: float) -> _Waiting | None:
        """EASY: the first job gets a promised start; another may pass it if it ends before, or fits beside it."""
        promised, spare = self._promise(site, heads[0], now_s)
        for waiting in heads[1:]:
            if waiting.job.gpus <= site.free and (now_s + waiting.expected_s <= promised or waiting.job.gpus <= spare):
                return waiting
        return None

    def _promise(self, site: _Site, head: _Waiting, now_s: float) -> tuple[float, int]:
        """When the first job can start at the latest, as far as is known, and what is free beside it then."""
        free = site.free
        for end, gpus in site.ends:
            free += gpus
            if free >= head.job.gpus:
                return max(end, now_s), free - head.job.gpus
        return now_s, 0

    def _next_guest(self, site: _Site, now_s: float) -> _Waiting | None:
        policy = self._policy
        if policy.reach == "lend" and site.own:
            return None  # no guest while its own users wait
        for waiting in self._heads(self._everyone):
            if waiting.job.gpus > site.free or waiting.job.gpus > site.cluster.gpus:
                continue
            if policy.reach == "rounds" and not self._asked(waiting, site, now_s):
                continue
            return waiting
        return None

    def _asked(self, waiting: _Waiting, site: _Site, now_s: float) -> bool:
        """Whether a job's rounds have come to a cluster yet; its own is asked first."""
        order = [waiting.site, *(name for name in self._sites if name != waiting.site)]
        asked = self._policy.round_size * (1 + int((now_s - waiting.since_s) // self._policy.round_s))
        return site.cluster.name in order[:asked]

    def _heads(self, queues: dict[_Kind, deque[_Waiting]]) -> list[_Waiting]:
        """The first waiting job of every kind: oldest first, or by when it would have ended had it started at once."""
        heads = []
        for queue in queues.values():
            while queue and queue[0].started:
                queue.popleft()
            if queue:
                heads.append(queue[0])
        weight = self._policy.short_first
        heads.sort(key=lambda w: (w.since_s + weight * w.expected_s, w.number))
        return heads

    def _start(self, waiting: _Waiting, site: _Site, now_s: float, reason: str) -> Start:
        job = waiting.job
        waiting.started = True
        queued = self._sites[waiting.site]
        queued.own -= 1
        queued.waiting_gpu_s -= waiting.expected_s * job.gpus
        site.free -= job.gpus
        end = (now_s + waiting.expected_s, job.gpus)
        insort(site.ends, end)
        self._running[job.id] = _Running(job=job, site=site.cluster.name, started_s=now_s, end=end)
        return Start(job=job, cluster=site.cluster.name, reason=reason)
