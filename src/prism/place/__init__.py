"""Which cluster runs a job: one scheduler for simulation and for real dispatch."""

from prism.place.clusters import Cluster, Job
from prism.place.events import ClusterBack, ClusterLost, Finished, Move, Start, Submitted, Tick
from prism.place.outcomes import Outcome, Unfairness, compare
from prism.place.policies import POLICIES, Policy
from prism.place.run_times import RunTimes, learn_run_times
from prism.place.scheduler import Scheduler
from prism.place.simulation import simulate
from prism.place.tables import read_clusters, read_jobs

__all__ = [
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
