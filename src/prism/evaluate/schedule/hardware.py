"""The machines that an evaluation may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prism.records.settings import Checked, number, one_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware(Checked):
    """What the evaluation may use, and how fast models travel; speeds in Gb/s, None where not known."""

    device: Literal["auto", "gpu", "cpu"] = field(default="auto", metadata=one_of(Literal["auto", "gpu", "cpu"]))
    gpus_per_worker: int = number(1, 1, 64)
    workers: int | None = number(None, 1, 1_000_000)  # None: as many as there are GPUs
    score_cpus: int | None = number(None, 1, 100_000)  # outputs scored at once on a node
    shared_memory_gb: float | None = number(None, 0.001, 1e6)  # for checkpoints, per node
    storage_gbps: float | None = number(None, 0.001, 1e5)  # from storage to one node
    storage_total_gbps: float | None = number(None, 0.001, 1e6)  # from storage to all nodes together
    peer_gbps: float | None = number(None, 0.001, 1e5)  # between two nodes; None: nodes do not pass models on
