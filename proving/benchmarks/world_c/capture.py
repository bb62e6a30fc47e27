"""A capture: a cluster, its jobs, other traffic and an exporter; and how it is written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .exporters import Exporter, export, messages, to_flows
from .fabric import Fabric, Slow
from .jobs import Job, Life, run, truth_of
from .others import background, inference, job_upkeep, lost, spark
from .wire import Wire


@dataclass(kw_only=True)
class Capture:
    """Everything about one capture, before it is simulated."""

    fabric: Fabric
    jobs: list[Job]
    length: float
    exporter: Exporter = field(default_factory=Exporter)
    merge_gap: float = 1e-3
    serving: tuple[int, ...] = ()
    shuffling: tuple[int, ...] = ()
    crowded: tuple[int, ...] = ()  # endpoints whose uplink the shuffle shares
    crowding: float = 1.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A simulated capture."""

    messages: pl.DataFrame
    flows: pl.DataFrame
    truth: dict[str, Any]
    lives: list[Life]


def simulate(capture: Capture, rng: np.random.Generator) -> Made:
    """Run all jobs and other traffic, then export."""
    fabric = capture.fabric
    wire = Wire(fabric=fabric, rng=rng, merge_gap=capture.merge_gap)
    t0_ns = 1_762_000_000_000_000_000 + int(rng.integers(0, 10**6)) * 10**9
    background(wire, rng, capture.length, {j.stopped_host: j.stops_at for j in capture.jobs if lost(j)})
    if capture.serving:
        inference(wire, rng, capture.serving, capture.length)
    if capture.shuffling:
        spans = spark(wire, rng, capture.shuffling, capture.length)
        if capture.crowded:
            fabric.uplink_faults.append(Slow(members=capture.crowded, factor=capture.crowding, windows=tuple(spans)))
    lives = []
    for number, job in enumerate(capture.jobs):
        life = run(job, wire, rng, number, capture.length)
        job_upkeep(life, rng, capture.length)
        lives.append(life)
    sent = messages(wire, capture.length)
    flows = to_flows(export(sent, capture.exporter, rng), capture.exporter, t0_ns)
    truth = {"jobs": [truth_of(life, t0_ns, capture.length) for life in lives], "note": capture.note}
    return Made(messages=sent, flows=flows, truth=truth, lives=lives)


def write(made: Made, fabric: Fabric, folder: Path) -> None:
    """Write flows.parquet, topology.csv and truth.json."""
    folder.mkdir(parents=True, exist_ok=True)
    made.flows.write_parquet(folder / "flows.parquet")
    rows = ["address,host,rail,switch"]
    for endpoint in range(fabric.num_hosts * fabric.num_nics):
        host, nic = divmod(endpoint, fabric.num_nics)
        rows.append(f"{fabric.address(endpoint)},{fabric.name(host)},{nic},{fabric.leaf(endpoint)}")
    (folder / "topology.csv").write_text("\n".join(rows) + "\n")
    (folder / "truth.json").write_text(json.dumps(made.truth))
