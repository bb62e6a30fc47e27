"""The state of a cluster at one moment, as it reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from prism.datacenter.place.clusters import Cluster, Job
from prism.datacenter.place.policies import DEFAULT, POLICIES
from prism.datacenter.place.run_times import RunTimes
from prism.datacenter.place.scheduler import Scheduler

Form = Literal["batch script", "manifest"]  # in which a cluster accepts a job


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """A job that a cluster listed. Times are durations, so clock differences do not matter."""

    id: str
    user: str
    gpus: int
    running: bool
    elapsed_s: float = 0.0
    left_s: float | None = None  # until its time limit
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Free and total GPUs and jobs of a cluster; `error` if it did not answer or contradicts itself."""

    cluster: str
    gpus: int = 0
    free: int = 0
    jobs: tuple[SeenJob, ...] = field(default=())
    error: str = ""


class LiveCluster(Protocol):
    """A cluster that can be queried and that accepts jobs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def arrival_s(self) -> float:
        """How long after a submission began its job may still appear, even if the submitting process has died."""

    @property
    def settle_s(self) -> float:
        """How long a cluster needs after an outage to process earlier calls."""

    @property
    def form(self) -> Form:
        """The form in which it accepts a job."""

    @property
    def repeatable(self) -> bool:
        """Whether submitting a job again has no effect."""

    def look(self) -> Snapshot:
        """Its present state; never raises."""

    def submit(self, script: str, mark: str) -> str:
        """Submit a job with a mark; its id there. Raises SubmitError if it is uncertain whether it was accepted."""

    def find(self, script: str, mark: str) -> str | None:
        """The id of the job with this mark, or None if there certainly is none. Raises SubmitError if uncertain."""


class SubmitError(Exception):
    """The outcome of a call is unknown, or the call was refused."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused  # the cluster answered that it refuses


def check(snapshot: Snapshot) -> Snapshot:
    """The same snapshot, or an error if its numbers contradict each other."""
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
    """The scheduler of the simulation in the present state of the clusters; those that do not answer are down."""
    clusters = []
    for seen in snapshots:
        known = traits[seen.cluster]
        gpus = seen.gpus or known.gpus
        # Clusters do not report which GPUs are below one leaf switch.
        clusters.append(replace(known, gpus=max(1, gpus), leaf_gpus=0))
    scheduler = Scheduler(clusters, POLICIES[DEFAULT])
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
