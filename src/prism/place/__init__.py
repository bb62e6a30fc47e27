"""Which cluster runs a job: one scheduler for simulation and for real dispatch."""

from prism.place.clusters import Cluster, Job, read_clusters, read_jobs
from prism.place.policies import POLICIES, Policy
from prism.place.scheduler import Finished, Scheduler, Start, Submitted, Tick
from prism.place.simulation import Outcome, simulate

__all__ = [
    "POLICIES",
    "Cluster",
    "Finished",
    "Job",
    "Outcome",
    "Policy",
    "Scheduler",
    "Start",
    "Submitted",
    "Tick",
    "read_clusters",
    "read_jobs",
    "simulate",
]
