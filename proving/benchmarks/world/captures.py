"""A capture: a fabric, its jobs, what else is on it, and who exports; made into records and truth."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from proving.benchmarks.world.exporters import ExporterConfig, export
from proving.benchmarks.world.fabric import Fabric
from proving.benchmarks.world.life import Job, live
from proving.benchmarks.world.noise import file_copies, shells
from proving.benchmarks.world.sharing import run_alone, run_together
from proving.benchmarks.world.truth import describe_jobs, gather_bursts


@dataclass(kw_only=True)
class Capture:
    """All that a capture is made of."""

    fabric: Fabric
    jobs: list[Job]
    seconds: float
    exporter: ExporterConfig = field(default_factory=ExporterConfig)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A capture's files."""

    bursts: pl.DataFrame
    flows: pl.DataFrame
    topology: pl.DataFrame
    truth: dict

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.flows.write_parquet(folder / "flows.parquet")
        self.topology.write_csv(folder / "topology.csv")
        (folder / "truth.json").write_text(json.dumps(self.truth, indent=1) + "\n")


def make_capture(capture: Capture, seed: int) -> Made:
    """Run the jobs, then let the exporter see them."""
    streams = np.random.default_rng(seed).spawn(len(capture.jobs) + 2)
    programs = [
        live(job, capture.fabric, rng, capture.seconds) for job, rng in zip(capture.jobs, streams, strict=False)
    ]
    if capture.fabric.config.shared_uplinks:
        run_together(programs)
    else:
        for program in programs:
            run_alone(program)
    make = (shells, file_copies)
    noise = [source(capture.fabric, streams[-2], capture.seconds) for source in make]
    bursts = gather_bursts(capture.jobs, noise, capture.seconds)
    flows = export(capture.exporter, bursts, capture.fabric, streams[-1])
    jobs = describe_jobs(capture.jobs, bursts, flows, capture.fabric, capture.seconds)
    truth = {"jobs": jobs, "note": capture.note}
    return Made(bursts=bursts, flows=flows, topology=capture.fabric.topology(), truth=truth)
