"""Simulated clusters: drives the scheduler with run times that the scheduler cannot see."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from prism.datacenter.place.clusters import Cluster, Job, run_s, transfer_s
from prism.datacenter.place.events import Decision, Event, Finished, Move, Submitted, Tick
from prism.datacenter.place.outcomes import Outcome
from prism.datacenter.place.policies import Policy
from prism.datacenter.place.scheduler import Scheduler


@dataclass(slots=True)
class _Use:
    """GPU seconds that were idle while jobs waited."""

    at_s: float = 0.0
    idle: float = 0.0
    fragmented: float = 0.0  # of these, enough in total for the smallest waiting job, but not in any one cluster

    def advance(self, scheduler: Scheduler, now_s: float) -> None:
        seconds, self.at_s = now_s - self.at_s, now_s
        if not scheduler.num_waiting or not scheduler.free_gpus or seconds <= 0:
            return
        self.idle += seconds * scheduler.free_gpus
        smallest = min(scheduler.waiting_sizes)
        if smallest <= scheduler.free_gpus and smallest > max(site.free for site in scheduler.sites.values()):
            self.fragmented += seconds * scheduler.free_gpus


class _Run:
    """One simulated world."""

    def __init__(self, jobs: Sequence[Job], seconds: Sequence[float], scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.work_s = {job.id: s for job, s in zip(jobs, seconds, strict=True)}
        self.started: dict[str, tuple[float, str]] = {}
        self.ends: list[tuple[float, str]] = []
        self.end_s: dict[str, float] = {}  # the valid end; moving a job changes it
        self.num_moves = 0
        self.use = _Use()

    def tell(self, event: Event) -> None:
        """Hand an event to the scheduler and do what it decides."""
        self.use.advance(self.scheduler, event.now_s)
        for decided in self.scheduler.handle(event):
            self._do(decided, event.now_s)

    def _do(self, decided: Decision, now_s: float) -> None:
        job, cluster = decided.job, self.scheduler.sites[decided.cluster].cluster
        if isinstance(decided, Move):
            source = self.scheduler.sites[decided.source].cluster
            left_s = (self.end_s[job.id] - now_s) * source.speed / cluster.speed
            length = job.restart_s + transfer_s(job, cluster) + left_s
            self.num_moves += 1
        else:
            self.started[job.id] = (now_s, decided.cluster)
            length = self.work_s[job.id]
            if cluster.speed != 1.0 or cluster.failures_per_gpu_day or cluster.bytes_per_s:
                length = transfer_s(job, cluster) + run_s(job, cluster, length)
        self.end_s[job.id] = now_s + length
        heapq.heappush(self.ends, (now_s + length, job.id))


def simulate(jobs: Sequence[Job], seconds: Sequence[float], clusters: Sequence[Cluster], policy: Policy) -> Outcome:
    """Run all jobs through a policy; jobs must be in order of submission."""
    scheduler = Scheduler(clusters, policy)
    run = _Run(jobs, seconds, scheduler)
    run.use.at_s = next_tick = jobs[0].submit_s if jobs else 0.0
    left_out = 0
    arrivals = iter(jobs)
    job = next(arrivals, None)
    ends = run.ends
    while job is not None or ends or scheduler.num_waiting:
        if policy.reach == "rounds" and scheduler.num_waiting:
            times = [t for t in (job.submit_s if job else None, ends[0][0] if ends else None) if t is not None]
            if not times or next_tick < min(times):
                run.tell(Tick(next_tick))
                next_tick += policy.round_s
                continue
        if ends and (job is None or ends[0][0] <= job.submit_s):
            now_s, done = heapq.heappop(ends)
            if run.end_s[done] == now_s:
                run.tell(Finished(done, now_s))
        elif job is not None:
            if scheduler.fits(job):
                run.tell(Submitted(job, job.submit_s))
            else:
                left_out += 1
            next_tick = max(next_tick, job.submit_s)
            job = next(arrivals, None)
        else:
            raise RuntimeError(f"{scheduler.num_waiting} jobs wait and nothing runs")  # an error in the scheduler
    kept = tuple(j for j in jobs if j.id in run.started)
    return Outcome(
        policy=policy.name,
        jobs=kept,
        queue_s=tuple(run.started[j.id][0] - j.submit_s for j in kept),
        run_s=tuple(run.end_s[j.id] - run.started[j.id][0] for j in kept),
        cluster=tuple(run.started[j.id][1] for j in kept),
        left_out=left_out,
        num_moves=run.num_moves,
        idle_gpu_h=run.use.idle / 3_600.0,
        fragmented_gpu_h=run.use.fragmented / 3_600.0,
    )
