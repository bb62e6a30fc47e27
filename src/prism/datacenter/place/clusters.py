"""Jobs and clusters, with what is known when a job must be placed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs that are scheduled together: a cluster, or one partition of it named `cluster/partition`."""

    name: str
    gpus: int
    kind: str = ""  # of its GPUs
    speed: float = 1.0  # work per second of one GPU, relative to the slowest kind (`prism emulate` can measure it)
    leaf_gpus: int = 0  # GPUs below one leaf switch; 0: the network is the same everywhere
    failures_per_gpu_day: float = 0.0  # from `prism predict`
    cost_per_gpu_hour: float = 0.0
    bytes_per_s: float = 0.0  # of the link into it; 0: data need not be copied
    quotas: tuple[tuple[str, int], ...] = ()  # most GPUs at once of a user, or of another cluster's users
    weight: float = 1.0  # of its users under fair share
    keep_gpus: int = 0  # kept free of guests, for its own users


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known of a job when it is submitted."""

    id: str
    submit_s: float
    gpus: int
    home: str  # the cluster whose users submitted it
    user: str = ""
    kind: str = ""  # of GPU that it needs; empty: any
    type: str = ""  # of work, for statistics
    priority: int = 0  # higher goes first
    deadline_s: float | None = None
    preemptible: bool = False  # it may be moved, which loses `restart_s` of work
    restart_s: float = 300.0
    one_leaf: bool = False
    data_bytes: int = 0
    data_at: str = ""  # the cluster with its data; empty: all


def transfer_s(job: Job, cluster: Cluster) -> float:
    """How long copying a job's data to a cluster takes before it can start there."""
    if not job.data_bytes or not job.data_at or job.data_at == cluster.name or not cluster.bytes_per_s:
        return 0.0
    return job.data_bytes / cluster.bytes_per_s


def run_s(job: Job, cluster: Cluster, seconds: float) -> float:
    """How long work of `seconds` at speed 1 runs there, including the expected cost of failures."""
    length = seconds / cluster.speed
    if not cluster.failures_per_gpu_day:
        return length
    # A failure costs a restart and, with checkpoints, half an interval; the restart time covers both.
    failures = cluster.failures_per_gpu_day * job.gpus * length / 86_400.0
    return length + failures * 2.0 * job.restart_s
