"""What a cluster said of itself at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from prism.place.clusters import Cluster, Job
from prism.place.policies import POLICIES
from prism.place.run_times import RunTimes
from prism.place.scheduler import Scheduler

Form = Literal["batch script", "manifest"]  # what a cluster takes as a job


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """A job that a cluster listed. Times are lengths, so that clocks that are apart do no harm."""

    id: str
    user: str
    gpus: int
    running: bool
    elapsed_s: float = 0.0
    left_s: float | None = None  # until its time limit
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Free and total GPUs and jobs of a cluster; `error` where it did not answer or contradicts itself."""

    cluster: str
    gpus: int = 0
    free: int = 0
    jobs: tuple[SeenJob, ...] = field(default=())
    error: str = ""


class LiveCluster(Protocol):
    """A cluster that can be asked and that takes jobs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def arrival_s(self) -> float:
        """How long after a submission was begun its job may still appear, even if whoever began it is dead."""

    @property
    def settle_s(self) -> float:
        """How long a cluster that answers again needs for calls that came before."""

    @property
    def form(self) -> Form:
        """What it takes as a job."""

    @property
    def repeatable(self) -> bool:
        """Whether handing over a job that it already has is without effect."""

    def look(self) -> Snapshot:
        """What it says of itself now; never raises."""

    def submit(self, script: str, mark: str) -> str:
        """Hand a job over, marked; its id there. Raises SubmitError where it is not known to have been taken."""

    def find(self, script: str, mark: str) -> str | None:
        """The id of the job with this mark, or None where there is none for sure. Raises SubmitError if not known."""


class SubmitError(Exception):
    """The outcome of a call is not known, or it was refused."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused  # the cluster answered, and said no


def check(snapshot: Snapshot) -> Snapshot:
    """The same, or an error where its numbers cannot be true."""
    used = sum(job.gpus for job in snapshot.jobs if job.running)
    if snapshot.error:
        return snapshot
    if snapshot.gpus <= 0 or snapshot.free < 0 or snapshot.free > snapshot.gpus or used > snapshot.gpus:
        text = f"its answers contradict each other: {snapshot.gpus} GPUs, {snapshot.free} free, {used} in use"
        return Snapshot(cluster=snapshot.cluster, error=text)
    return snapshot


def build_scheduler(
    snapshots: Sequence[Snapshot], traits: dict[str, Cluster], times: RunTimes, now_s: float
) -> Scheduler:
    """The scheduler of the simulation, in the state that the clusters are in; those that do not answer are down."""
    clusters = []
    for seen in snapshots:
        known = traits[seen.cluster]
        gpus = seen.gpus or known.gpus
        # Which GPUs lie below one leaf the clusters do not say.
        clusters.append(replace(known, gpus=max(1, gpus), leaf_gpus=0))
    scheduler = Scheduler(clusters, POLICIES["prism"])
    scheduler.times = times
    for seen in snapshots:
        site = scheduler.sites[seen.cluster]
        site.up = not seen.error
        for number, job in enumerate(seen.jobs):
            adopted = Job(
                id=f"{seen.cluster}:{job.id}:{number}", submit_s=now_s, gpus=job.gpus, home=seen.cluster, user=job.user
            )
            if job.running:
                scheduler.adopt(adopted, seen.cluster, now_s, elapsed_s=job.elapsed_s, left_s=job.left_s)
            else:
                scheduler.adopt_waiting(adopted, seen.cluster, now_s)
        if site.up:  # nodes that are drained or down are neither free nor in use
            scheduler.free_gpus += min(seen.free, site.free) - site.free
            site.free = min(seen.free, site.free)
    return scheduler
