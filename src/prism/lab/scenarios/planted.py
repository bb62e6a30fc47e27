"""A planted fault: its effect on each job, and the correct diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism.lab.scenarios.fault import Fault
from prism.lab.scenarios.timeline import Disturbance, JobPlan
from prism.records.findings import Culprit, FindingKind
from prism.simulate.cluster import Cluster
from prism.simulate.solving.slowdowns import Slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Reroute:
    """Connections of a job that use another spine during a fault."""

    job: int
    connection: int
    spine: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A job whose traffic on some of its connections slows the groups of another."""

    job: int
    connections: tuple[int, ...]
    victim: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A planted fault: its window, its disturbances by job, and the correct finding."""

    fault: Fault
    start_ns: int
    end_ns: int
    finding: FindingKind
    culprit: Culprit
    accepted: tuple[Culprit, ...] = ()  # other names of the same thing
    disturbances: dict[int, Disturbance] = field(default_factory=dict)
    reroutes: tuple[Reroute, ...] = ()
    blocker: Blocker | None = None
    slow_hops: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by job: connections over the slow part


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where faults are planted: the cluster, the jobs on it, and the names of its endpoints."""

    cluster: Cluster
    plans: tuple[JobPlan, ...]
    names: tuple[str, ...]
    horizon_ns: int
    seed: int

    def plan_of(self, job: str | None) -> JobPlan:
        """The plan of a job by its id."""
        return next(plan for plan in self.plans if plan.job.id == job)

    def endpoint_of(self, plan: JobPlan, rank: int) -> int:
        """The NIC of one rank."""
        host, local = int(plan.layout.host[rank]), int(plan.layout.local[rank])
        return host * self.cluster.nics.count + int(self.cluster.rail_of(local))


def slow_down(
    fault: Fault, start: int, end: int, finding: FindingKind, culprit: Culprit, accepted: tuple[Culprit, ...],
    slow: dict[int, tuple[Slowdown, ...]], slow_hops: dict[int, tuple[int, ...]] | None = None,
) -> Planted:  # fmt: skip
    """A fault that only slows things down."""
    return Planted(
        fault=fault,
        start_ns=start,
        end_ns=end,
        finding=finding,
        culprit=culprit,
        accepted=accepted,
        disturbances={job: Disturbance(slowdowns=found) for job, found in slow.items() if found},
        slow_hops=slow_hops or {},
    )
