"""Run the per-job analysis on a Ray cluster: one worker per job, with the same result as on one machine.

Findings compare tenants with each other, so they are computed where the command runs.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from prism.errors import BadConfigError, MissingExtraError
from prism.observe.diagnose import diagnose, study_jobs
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.traffic.table import Traffic
from prism.records.scheduled import ScheduledJob

_CONNECT_S = 5
_OBJECT_STORE_BYTES = 200 * 2**20  # of an embedded Ray; what does not fit is spilled to disk


def diagnose_on_ray(
    flows: pl.DataFrame,
    topology: pl.DataFrame | None = None,
    *,
    address: str | None = None,
    gpus_per_host: int | None = None,
    given: Sequence[ScheduledJob] = (),
) -> Diagnosis:
    """`diagnose` with the jobs spread over Ray: at `address`, at RAY_ADDRESS, or embedded in this process."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("--engine ray", "observe")
    with _connect(address or os.environ.get("RAY_ADDRESS")) as ray:
        return diagnose(
            flows, topology, study=lambda traffic, jobs: _study_on(ray, traffic, jobs, gpus_per_host), given=given
        )


def _study_on(ray: Any, traffic: Traffic, jobs: Sequence[ObservedJob], gpus_per_host: int | None) -> list[JobDiagnosis]:
    """One task for each job, the largest first, so that the last to end is a small one."""
    task = ray.remote(_study_one)
    waiting = [task.remote(part_of(traffic, job), job, gpus_per_host) for job in jobs]
    return [ray.get(answer) for answer in waiting]


def _study_one(traffic: Traffic, job: ObservedJob, gpus_per_host: int | None) -> JobDiagnosis:
    return study_jobs(traffic, [job], gpus_per_host)[0]


def part_of(traffic: Traffic, job: ObservedJob) -> Traffic:
    """The traffic with the messages of one job alone; pairs and endpoints keep their numbers."""
    own = np.union1d(job.pairs, job.storage_pairs)
    counts = np.zeros(len(traffic.begin) - 1, np.int64)
    counts[own] = np.diff(traffic.begin)[own]
    return replace(
        traffic, messages=traffic.messages[traffic.rows_of(own)], begin=np.concatenate([[0], np.cumsum(counts)])
    )


@contextmanager
def _connect(address: str | None) -> Iterator[Any]:
    """Ray, joined or started; on exit this process leaves or stops it again."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        # "local": else Ray would join whatever cluster someone else has started on this machine.
        settings |= {"address": "local", "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False,
                     "num_cpus": len(os.sched_getaffinity(0))}  # fmt: skip
    else:
        _knock(address)
        settings |= {"address": address}
    _start(ray, settings, address or "this machine")
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, settings: dict[str, Any], where: str, tries: int = 2) -> None:
    """Join or start Ray; its own limit of 30 s for a local node is too short for a first start on a busy machine."""
    try:
        ray.init(**settings)
    except Exception as error:
        if tries > 1 and "timed out during startup" in str(error):
            ray.shutdown()
            return _start(ray, settings, where, tries - 1)
        if isinstance(error, ConnectionError | ValueError | RuntimeError) or type(error) is Exception:
            raise BadConfigError(f"Ray at {where}: {error}; check --ray-address or RAY_ADDRESS") from None
        raise


def _knock(address: str) -> None:
    """Refuse an unreachable address at once: Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # A name that Ray knows, such as "auto".
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        raise BadConfigError(
            f"Ray at {address}: nobody answers ({error.strerror or error}); check --ray-address or RAY_ADDRESS"
        ) from None
