"""A scenario: a cluster, its jobs, its faults and how it is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prism.errors import BadConfigError
from prism.lab.scenarios.fault import Fault
from prism.lab.scenarios.measurement import Measurement
from prism.records.settings import Checked, nearest, number
from prism.simulate.cluster import Cluster
from prism.simulate.plans.job import Job
from prism.simulate.plans.layout import RankLayout, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Checked):
    """All that `make_scenario` needs in addition to a seed."""

    name: str
    about: str = ""
    cluster: Cluster
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...] = ()
    measurement: Measurement = field(default_factory=Measurement)
    duration_s: float = number(60.0, 0.001, 1e6)
    epoch_s: int = number(1_760_000_000, 0, 4e9)  # when the capture begins
    num_storage: int = number(4, 1, 250)  # storage servers

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.jobs:
            raise BadConfigError("'jobs' is empty; a scenario needs at least one job")
        names = [job.id for job in self.jobs]
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise BadConfigError(f"two jobs are called {twice!r}; give each its own 'id'")

    @property
    def num_gpus(self) -> int:
        """GPUs that the jobs take together."""
        return sum(job.num_gpus for job in self.jobs)


def place_jobs(scenario: Scenario) -> list[RankLayout]:
    """Give every job its GPUs, in the order of the jobs."""
    cluster = scenario.cluster
    taken = np.full((cluster.num_hosts, cluster.gpus_per_host), -1, np.int64)
    layouts = []
    for index, job in enumerate(scenario.jobs):
        host, local = _find_gpus(scenario, job, taken)
        clash = taken[host, local]
        if (clash >= 0).any():
            at = int(np.argmax(clash >= 0))
            other = scenario.jobs[int(clash[at])].id
            raise BadConfigError(
                f"jobs '{other}' and '{job.id}' both take GPU {local[at]} of host {host[at]}; move one of them"
            )
        taken[host, local] = index
        layouts.append(lay_out(job, host, local))
    return layouts


def _find_gpus(scenario: Scenario, job: Job, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cluster, where = scenario.cluster, job.placement
    gpus = np.array(where.gpus or range(cluster.gpus_per_host), np.int64)
    if gpus.min() < 0 or gpus.max() >= cluster.gpus_per_host or len(np.unique(gpus)) < len(gpus):
        raise BadConfigError(
            f"job '{job.id}': 'gpus' is {list(where.gpus)}, "
            f"expected different numbers from 0 to {cluster.gpus_per_host - 1}"
        )
    hosts = np.array(where.hosts, np.int64) if where.hosts else np.flatnonzero((taken[:, gpus] < 0).all(axis=1))
    if len(hosts) and (hosts.min() < 0 or hosts.max() >= cluster.num_hosts):
        bad = hosts.max() if hosts.max() >= cluster.num_hosts else hosts.min()
        raise BadConfigError(f"job '{job.id}': no host {bad}; the cluster has hosts 0 to {cluster.num_hosts - 1}")
    counts = np.full(len(hosts), len(gpus))
    if where.gpus_of_hosts:
        uneven = where.gpus_of_hosts
        if len(uneven) > len(hosts) or max(uneven) > len(gpus) or min(uneven) < 1:
            raise BadConfigError(f"job '{job.id}': 'gpus_of_hosts' does not fit {len(hosts)} hosts of {len(gpus)} GPUs")
        hosts, counts = hosts[: len(uneven)], np.array(uneven)
    host = np.repeat(hosts, counts)
    local = np.concatenate([gpus[:c] for c in counts]) if len(counts) else host
    if len(host) < job.num_gpus:
        raise BadConfigError(
            f"job '{job.id}' needs {job.num_gpus} GPUs (dp x tp x pp x cp) but finds {len(host)} free "
            f"on {cluster.num_hosts} hosts of {cluster.gpus_per_host}; add hosts or lower a degree"
        )
    return host[: job.num_gpus], local[: job.num_gpus]


def check_scenario(scenario: Scenario) -> None:
    """Refuse contradictions: jobs without room, faults that name unknown components."""
    place_jobs(scenario)
    cluster = scenario.cluster
    jobs = {job.id: job for job in scenario.jobs}
    for i, fault in enumerate(scenario.faults):
        where = f"'faults' entry {i + 1}"
        for name in (fault.job, fault.other):
            if name is not None and name not in jobs:
                raise BadConfigError(f"{where}: no job {name!r}{nearest(name, jobs)}; jobs: {', '.join(jobs)}")
        if fault.host is not None and fault.host >= cluster.num_hosts:
            raise BadConfigError(f"{where}: no host {fault.host}; the cluster has hosts 0 to {cluster.num_hosts - 1}")
        if fault.nic is not None and fault.nic >= cluster.nics.count:
            raise BadConfigError(f"{where}: no NIC {fault.nic}; hosts have NICs 0 to {cluster.nics.count - 1}")
        if fault.switch is not None and not cluster.has_node(fault.switch):
            raise BadConfigError(
                f"{where}: no switch {fault.switch!r}; the cluster has leaf-0 to leaf-{cluster.num_leaves - 1} "
                f"and spine-0 to spine-{cluster.fabric.num_spines - 1}"
            )
        job = jobs.get(fault.job or "")
        if job is not None and fault.rank is not None and fault.rank >= job.num_gpus:
            raise BadConfigError(f"{where}: no rank {fault.rank}; job '{job.id}' has ranks 0 to {job.num_gpus - 1}")
        if job is not None and fault.stage is not None and fault.stage >= job.pp:
            raise BadConfigError(f"{where}: no stage {fault.stage}; job '{job.id}' has stages 0 to {job.pp - 1}")
        if fault.kind == "checkpoint_stall" and job is not None and job.checkpoint is None:
            raise BadConfigError(f"{where}: job '{job.id}' saves no checkpoints; give it 'checkpoint'")
        if fault.kind == "contention" and fault.other in {f.job for f in scenario.faults if f.kind == "contention"}:
            raise BadConfigError(f"{where}: job '{fault.other}' is slowed by contention itself; name another 'other'")
        if fault.start_s >= scenario.duration_s:
            raise BadConfigError(
                f"{where}: starts at {fault.start_s:g} s, after the scenario's {scenario.duration_s:g} s"
            )
