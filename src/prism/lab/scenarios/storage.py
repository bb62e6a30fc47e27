"""Traffic to and from storage: samples read, checkpoints written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.simulate.plans.job import Job
from prism.simulate.plans.sizes import CHECKPOINT_BYTES_PER_PARAM

Ints = NDArray[np.int64]

_HOST_COPY_GB_PER_S = 25.0  # GPU to host memory over PCIe while the job waits, per GPU
_TOKEN_BYTES = 4
_SAMPLE_GB_PER_S = 2.0  # reading samples, per host
_WRITE_BYTES = 256 * 2**20  # a checkpoint travels in writes of this size


def checkpoint_bytes(job: Job) -> int:
    """The size of one checkpoint."""
    return job.model.params * CHECKPOINT_BYTES_PER_PARAM


def checkpoint_pause_ns(job: Job) -> int:
    """How long one checkpoint pauses the job: until it is in storage, or until it is in host memory."""
    assert job.checkpoint is not None
    if job.checkpoint.blocking:
        return round(checkpoint_bytes(job) / job.checkpoint.storage_gb_per_s)
    return round(checkpoint_bytes(job) / job.num_gpus / _HOST_COPY_GB_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Messages between a host's first NIC and a storage server, by number of each."""

    host: Ints
    server: Ints
    writes: NDArray[np.bool_]
    start_ns: Ints
    end_ns: Ints
    bytes: Ints


def read_samples(job: Job, hosts: Ints, step_start_ns: Ints, num_servers: int, seed: int) -> Transfers:
    """Every host reads the next step's samples while a step runs."""
    rng = np.random.default_rng([seed, 11])
    tokens = job.dp * job.microbatches * job.micro_batch * job.model.seq
    size = max(4096, tokens * _TOKEN_BYTES // len(hosts))
    shape = (len(step_start_ns), len(hosts))
    begin = step_start_ns[:, None] + rng.integers(0, 50_000_000, shape)
    length = np.full(shape, round(size / _SAMPLE_GB_PER_S)) * rng.uniform(1.0, 1.5, shape)
    return Transfers(
        host=np.broadcast_to(hosts, shape).ravel(),
        server=rng.integers(0, num_servers, shape).ravel(),
        writes=np.zeros(begin.size, bool),
        start_ns=begin.ravel(),
        end_ns=(begin + length).astype(np.int64).ravel(),
        bytes=np.full(begin.size, size, np.int64),
    )


def write_checkpoints(job: Job, hosts: Ints, saved_ns: Ints, paused_ns: Ints, num_servers: int) -> Transfers:
    """Every host writes its share from the start of the pause; blocking writes end with the pause."""
    assert job.checkpoint is not None
    share = checkpoint_bytes(job) // len(hosts)
    count = max(1, round(share / _WRITE_BYTES))
    background = round(checkpoint_bytes(job) / job.checkpoint.storage_gb_per_s)
    length = paused_ns if job.checkpoint.blocking else np.full(len(saved_ns), background)
    begin = saved_ns if job.checkpoint.blocking else saved_ns + paused_ns
    piece = np.arange(count)
    shape = (len(saved_ns), len(hosts), count)
    start = begin[:, None, None] + length[:, None, None] * piece // count
    end = begin[:, None, None] + length[:, None, None] * (piece + 1) // count
    return Transfers(
        host=np.broadcast_to(hosts[:, None], shape).ravel(),
        server=np.broadcast_to(np.arange(len(hosts))[:, None] % num_servers, shape).ravel(),
        writes=np.ones(start.size * len(hosts), bool),
        start_ns=np.broadcast_to(start, shape).ravel(),
        end_ns=np.broadcast_to(end, shape).ravel(),
        bytes=np.full(start.size * len(hosts), share // count, np.int64),
    )
