"""Results of a policy: waits by cluster, size, user and type, and which users are worse off with sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.datacenter.place.clusters import Job

_SHORT_S = 10.0  # a shorter run counts as this long in a slowdown, as usual in the literature on job schedulers
_MOST_USERS = 50  # users listed in a document, those with most jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Seconds in the queue and of run time of every job, and where each ran."""

    policy: str
    jobs: tuple[Job, ...]
    queue_s: tuple[float, ...]
    run_s: tuple[float, ...]
    cluster: tuple[str, ...]
    left_out: int  # jobs that fit nowhere under this policy
    num_moves: int = 0  # of running jobs
    idle_gpu_h: float = 0.0  # idle while jobs waited
    fragmented_gpu_h: float = 0.0  # of these, enough for a waiting job in total, but not in any one cluster

    def to_json(self) -> dict[str, Any]:
        """Statistics over all jobs, by the cluster whose users submitted them, by size, user and type."""
        waits = np.array(self.queue_s)
        away = np.array([job.home != place for job, place in zip(self.jobs, self.cluster, strict=True)])
        users = [job.user for job in self.jobs]
        return {
            **_describe(waits),
            "jobs": len(waits),
            "left_out": self.left_out,
            "moved_pct": float(100 * away.mean()) if len(away) else 0.0,
            "moves": self.num_moves,
            "idle_gpu_h": self.idle_gpu_h,
            "fragmented_gpu_h": self.fragmented_gpu_h,
            "mean_slowdown": float(self.slowdowns().mean()) if len(waits) else 1.0,
            "by_cluster": _by(waits, [job.home for job in self.jobs]),
            "by_size": _by(waits, [str(job.gpus) for job in self.jobs]),
            "by_user": _by(waits, users, _MOST_USERS) if any(users) else {},
            "by_type": _by(waits, [job.type for job in self.jobs]) if any(job.type for job in self.jobs) else {},
        }

    def slowdowns(self) -> NDArray[np.float64]:
        """Of every job: waiting and running time, over running time."""
        run = np.maximum(np.array(self.run_s), _SHORT_S)
        found: NDArray[np.float64] = (np.array(self.queue_s) + run) / run
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfairness:
    """Waits of a cluster's own users, compared with using their cluster alone."""

    worst_cluster: str
    slowdown_ratio: float  # mean slowdown with sharing over without, for the worst cluster
    p99_worse: tuple[str, ...]  # clusters whose users' p99 wait is longer than alone

    def to_json(self) -> dict[str, Any]:
        """The document form."""
        return {
            "worst_cluster": self.worst_cluster,
            "max_slowdown_ratio": self.slowdown_ratio,
            "p99_worse": list(self.p99_worse),
        }


def compare(shared: Outcome, alone: Outcome) -> Unfairness:
    """By cluster, whether sharing makes its users worse off, over the jobs that run under both policies."""
    ratios, worse = {}, []
    both = {job.id for job in alone.jobs} & {job.id for job in shared.jobs}
    for name in sorted({job.home for job in alone.jobs}):
        parts = [_of(outcome, name, both) for outcome in (shared, alone)]
        if len(parts[0][0]):
            ratios[name] = float(parts[0][1].mean() / parts[1][1].mean())
            if np.quantile(parts[0][0], 0.99) > np.quantile(parts[1][0], 0.99) + 1.0:
                worse.append(name)
    worst = max(ratios, key=lambda name: ratios[name], default="")
    return Unfairness(worst_cluster=worst, slowdown_ratio=ratios.get(worst, 1.0), p99_worse=tuple(worse))


def _of(outcome: Outcome, home: str, ids: set[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    chosen = np.array([job.home == home and job.id in ids for job in outcome.jobs])
    return np.array(outcome.queue_s)[chosen], outcome.slowdowns()[chosen]


def _by(waits: NDArray[np.float64], names: list[str], most: int | None = None) -> dict[str, dict[str, float]]:
    keys, inverse, count = np.unique(np.array(names), return_inverse=True, return_counts=True)
    listed = np.argsort(-count, kind="stable")[:most]
    return {str(keys[k]): {**_describe(waits[inverse == k]), "jobs": int(count[k])} for k in sorted(listed)}


def _describe(waits: NDArray[np.float64]) -> dict[str, float]:
    if len(waits) == 0:
        return {"mean_queue_s": 0.0, "p50_queue_s": 0.0, "p99_queue_s": 0.0}
    return {
        "mean_queue_s": float(waits.mean()),
        "p50_queue_s": float(np.quantile(waits, 0.5)),
        "p99_queue_s": float(np.quantile(waits, 0.99)),
    }
