"""When a job would start and end on every cluster, with the reason, best first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prism.datacenter.place.clusters import Job, run_s, transfer_s
from prism.datacenter.place.scheduler import Scheduler, explain_misfit
from prism.datacenter.place.sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One cluster for a job, with the estimates for it."""

    cluster: str
    start_s: float  # from now
    finish_s: float  # from now; nine of ten such runs are expected to end within it
    cost: float  # GPU hours, or money where the cluster has a price
    fits: bool
    meets_deadline: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        """The document form."""
        return {
            "cluster": self.cluster,
            "start_s": self.start_s if self.fits else None,
            "finish_s": self.finish_s if self.fits else None,
            "cost": self.cost if self.fits else None,
            "fits": self.fits,
            "meets_deadline": self.meets_deadline,
            "why": self.why,
        }


def consider(scheduler: Scheduler, job: Job, now_s: float, seconds: float | None = None) -> list[Choice]:
    """All clusters for a job, best first: those that meet its deadline, by finish; its own cluster wins a tie."""
    expected = scheduler.times.expect(job).seconds if seconds is None else seconds
    found = [_look(scheduler, site, job, now_s, expected) for site in scheduler.sites.values()]
    return sorted(found, key=lambda c: (not c.fits, not c.meets_deadline, c.finish_s, c.cluster != job.home, c.cost))


def _look(scheduler: Scheduler, site: Site, job: Job, now_s: float, expected: float) -> Choice:
    cluster = site.cluster
    if not site.up or not site.can_hold(job):
        why = "does not answer" if not site.up else explain_misfit(job, [cluster])
        return Choice(
            cluster=cluster.name, start_s=0.0, finish_s=0.0, cost=0.0, fits=False, meets_deadline=False, why=why
        )
    start_s = scheduler.expected_start_s(site, job, now_s)
    travel_s, length_s = transfer_s(job, cluster), run_s(job, cluster, expected)
    finish_s = start_s + travel_s + length_s
    reasons = []
    if start_s <= now_s:
        reasons.append(f"{site.free} GPUs are free")
    else:
        reasons.append(f"{site.free} of {cluster.gpus} GPUs free, {site.own} jobs wait, {len(site.ends)} run")
    if travel_s:
        reasons.append(f"its data travels {travel_s / 60:.0f} min")
    if cluster.speed != 1.0:
        reasons.append(f"runs {cluster.speed:g} times as fast")
    if cluster.failures_per_gpu_day:
        failures = cluster.failures_per_gpu_day * job.gpus * length_s / 86_400.0
        reasons.append(f"{failures:.2g} failures expected")
    late = job.deadline_s is not None and finish_s > job.deadline_s
    if late:
        reasons.append("misses its deadline")
    hours = job.gpus * length_s / 3_600.0
    return Choice(
        cluster=cluster.name,
        start_s=start_s - now_s,
        finish_s=finish_s - now_s,
        cost=hours * (cluster.cost_per_gpu_hour or 1.0),
        fits=True,
        meets_deadline=not late,
        why="; ".join(reasons),
    )
