"""One cluster in the scheduler: free GPUs, running jobs with their expected ends, waiting jobs."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from prism.datacenter.place.clusters import Cluster, Job
from prism.datacenter.place.queues import Queue

_OUT_OF_USE_S = 86_400.0
Shares = tuple[tuple[int, int], ...]  # leaf and GPUs


@dataclass(slots=True)
class Running:
    """A job that runs."""

    job: Job
    site: str
    started_s: float
    end: tuple[float, int]  # expected, and GPUs
    shares: Shares
    learned: bool = False  # its run time was already counted, when it exceeded the expected one


@dataclass(slots=True)
class Site:
    """Free GPUs, leaves, quotas and the queue of one cluster."""

    cluster: Cluster
    free: int
    up: bool = True
    own: int = 0  # jobs of its own users that wait
    waiting_gpu_s: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)  # expected end and GPUs of running jobs, in order
    queue: Queue = field(default_factory=Queue)
    leaves: list[int] = field(default_factory=list)  # free GPUs below each leaf switch, if leaves matter
    quotas: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)  # GPUs by user and by home, if there are quotas
    guests: dict[str, Running] = field(default_factory=dict)  # jobs of others that may be moved

    def can_hold(self, job: Job) -> bool:
        """Whether a job could ever run here."""
        fits = job.gpus <= self.cluster.gpus and job.kind in ("", self.cluster.kind)
        leaf = not job.one_leaf or not self.cluster.leaf_gpus or job.gpus <= self.cluster.leaf_gpus
        return fits and leaf and all(job.gpus <= self.quotas.get(name, job.gpus) for name in (job.user, job.home))

    def has_room(self, job: Job) -> bool:
        """Whether a job could start here now."""
        if job.gpus > self.free or not self.up or (job.kind and job.kind != self.cluster.kind):
            return False
        if self.quotas:
            for name in (job.user, job.home):
                if self.used.get(name, 0) + job.gpus > self.quotas.get(name, self.cluster.gpus):
                    return False
        return not (job.one_leaf and self.leaves) or max(self.leaves) >= job.gpus

    def take(self, job: Job, end: tuple[float, int]) -> Shares:
        """Occupy GPUs until about `end`: of one leaf if the job needs it, or else of the leaves with the least room."""
        self.free -= job.gpus
        insort(self.ends, end)
        for name in (job.user, job.home) if self.quotas else ():
            self.used[name] = self.used.get(name, 0) + job.gpus
        return self._take_leaves(job) if self.leaves else ()

    def give(self, running: Running) -> None:
        """Free the GPUs of a job."""
        self.free += running.job.gpus
        del self.ends[bisect_left(self.ends, running.end)]
        self.guests.pop(running.job.id, None)
        for name in (running.job.user, running.job.home) if self.quotas else ():
            self.used[name] -= running.job.gpus
        for leaf, gpus in running.shares:
            self.leaves[leaf] += gpus

    def promise(self, gpus: int, now_s: float) -> tuple[float, int]:
        """When this many GPUs should be free at the latest, and how many more are free then."""
        free = self.free
        for end, freed in self.ends:
            free += freed
            if free >= gpus:
                # A job that exceeds its expected run time is assumed to need as much time again as it is late.
                return (end if end > now_s else 2.0 * now_s - end), free - gpus
        # The rest is out of use (drained or down) for an unknown time.
        return (now_s if free >= gpus else now_s + _OUT_OF_USE_S), max(0, free - gpus)

    def _take_leaves(self, job: Job) -> Shares:
        order = sorted(range(len(self.leaves)), key=lambda leaf: self.leaves[leaf])
        if job.one_leaf:
            leaf = next(leaf for leaf in order if self.leaves[leaf] >= job.gpus)
            self.leaves[leaf] -= job.gpus
            return ((leaf, job.gpus),)
        shares, missing = [], job.gpus
        for leaf in order:
            part = min(missing, self.leaves[leaf])
            if part:
                self.leaves[leaf] -= part
                missing -= part
                shares.append((leaf, part))
        return tuple(shares)


def open_site(cluster: Cluster) -> Site:
    """An empty cluster."""
    leaf = cluster.leaf_gpus
    leaves = [min(leaf, cluster.gpus - first) for first in range(0, cluster.gpus, leaf)] if leaf else []
    return Site(cluster=cluster, free=cluster.gpus, leaves=leaves, quotas=dict(cluster.quotas))
