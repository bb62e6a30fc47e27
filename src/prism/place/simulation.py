"""A cluster that is only reckoned: drives the scheduler with run times that it cannot see."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.place.clusters import Cluster, Job
from prism.place.policies import Policy
from prism.place.scheduler import Finished, Scheduler, Start, Submitted, Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a policy gave: seconds in the queue of every job, and where each ran."""

    policy: str
    jobs: tuple[Job, ...]
    queue_s: tuple[float, ...]
    cluster: tuple[str, ...]
    left_out: int  # jobs that fit nowhere under this policy

    def to_json(self) -> dict[str, Any]:
        """Statistics over all jobs and by the cluster whose users submitted them."""
        waits = np.array(self.queue_s)
        homes = np.array([job.home for job in self.jobs])
        away = np.array([job.home != place for job, place in zip(self.jobs, self.cluster, strict=True)])
        return {
            **_describe(waits),
            "jobs": len(waits),
            "left_out": self.left_out,
            "moved_pct": float(100 * away.mean()) if len(away) else 0.0,
            "by_cluster": {name: _describe(waits[homes == name]) for name in sorted(set(homes.tolist()))},
        }


def simulate(jobs: Sequence[Job], seconds: Sequence[float], clusters: Sequence[Cluster], policy: Policy) -> Outcome:
    """Run all jobs through a policy; jobs must be in order of submission."""
    scheduler = Scheduler(clusters, policy)
    run_s = {job.id: s for job, s in zip(jobs, seconds, strict=True)}
    started: dict[str, tuple[float, str]] = {}
    ends: list[tuple[float, str]] = []
    left_out = 0

    def note(starts: list[Start], now_s: float) -> None:
        for start in starts:
            started[start.job.id] = (now_s, start.cluster)
            heapq.heappush(ends, (now_s + run_s[start.job.id], start.job.id))

    next_tick = jobs[0].submit_s if jobs else 0.0
    arrivals = iter(jobs)
    job = next(arrivals, None)
    while job is not None or ends or scheduler.num_waiting:
        times = [t for t in (job.submit_s if job else None, ends[0][0] if ends else None) if t is not None]
        if policy.reach == "rounds" and scheduler.num_waiting and (not times or next_tick < min(times)):
            note(scheduler.handle(Tick(next_tick)), next_tick)
            next_tick += policy.round_s
            continue
        if ends and (job is None or ends[0][0] <= job.submit_s):
            now_s, done = heapq.heappop(ends)
            note(scheduler.handle(Finished(done, now_s)), now_s)
        elif job is not None:
            if scheduler.fits(job):
                note(scheduler.handle(Submitted(job, job.submit_s)), job.submit_s)
            else:
                left_out += 1
            next_tick = max(next_tick, job.submit_s)
            job = next(arrivals, None)
    kept = tuple(j for j in jobs if j.id in started)
    return Outcome(
        policy=policy.name,
        jobs=kept,
        queue_s=tuple(started[j.id][0] - j.submit_s for j in kept),
        cluster=tuple(started[j.id][1] for j in kept),
        left_out=left_out,
    )


def _describe(waits: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    if len(waits) == 0:
        return {"mean_queue_s": 0.0, "p50_queue_s": 0.0, "p99_queue_s": 0.0}
    return {
        "mean_queue_s": float(waits.mean()),
        "p50_queue_s": float(np.quantile(waits, 0.5)),
        "p99_queue_s": float(np.quantile(waits, 0.99)),
    }
