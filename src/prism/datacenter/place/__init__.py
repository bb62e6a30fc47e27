"""Which cluster runs a job: one scheduler for simulation and for real dispatch."""

from prism.datacenter.place.clusters import Cluster, Job
from prism.datacenter.place.events import ClusterBack, ClusterLost, Finished, Move, Start, Submitted, Tick
from prism.datacenter.place.outcomes import Outcome, Unfairness, compare
from prism.datacenter.place.policies import DEFAULT, POLICIES, Policy
from prism.datacenter.place.run_times import RunTimes, learn_run_times
from prism.datacenter.place.scheduler import Scheduler
from prism.datacenter.place.simulation import simulate
from prism.datacenter.place.tables import read_clusters, read_jobs

__all__ = [
    "DEFAULT",
    "POLICIES",
    "Cluster",
    "ClusterBack",
    "ClusterLost",
    "Finished",
    "Job",
    "Move",
    "Outcome",
    "Policy",
    "RunTimes",
    "Scheduler",
    "Start",
    "Submitted",
    "Tick",
    "Unfairness",
    "compare",
    "learn_run_times",
    "read_clusters",
    "read_jobs",
    "simulate",
]
