"""Small captures of the third world: heartbeats and scrapes beside jobs, layers that all send alike, jobs that end."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism.collect.tables import read_flows
from prism.observe import Diagnosis, diagnose
from prism.records import TOPOLOGY, read_table
from proving.benchmarks.world_c.capture import simulate, write
from proving.benchmarks.world_c.kinds import KINDS


def look(folder: Path, name: str) -> tuple[Diagnosis, list[dict[str, Any]]]:
    """What is said of a kind of capture, and the jobs of its truth."""
    rng = np.random.default_rng([1, zlib.crc32(name.encode())])
    capture = KINDS[name](rng)
    write(simulate(capture, rng), capture.fabric, folder)
    found = diagnose(read_flows(folder / "flows.parquet"), read_table(folder / "topology.csv", TOPOLOGY))
    return found, json.loads((folder / "truth.json").read_text())["jobs"]


def find_lengths(found: Diagnosis, job: dict[str, Any]) -> tuple[float, float]:
    """Usual step of a job in seconds, as said and as it is."""
    (said,) = (one for one in found.jobs if set(one.endpoints) == set(job["endpoints"]))
    took = (said.steps["end_ns"] - said.steps["start_ns"]).to_numpy() / 1e9
    return float(np.median(took)), float(np.median([step["duration_ns"] for step in job["steps"]])) / 1e9


@pytest.mark.parametrize("name", ["fine_fast_steps", "fine_throttle"])
def test_heartbeats_every_five_seconds_are_no_steps(tmp_path: Path, name: str) -> None:
    found, jobs = look(tmp_path, name)
    for job in jobs:
        said, true = find_lengths(found, job)
        assert said == pytest.approx(true, rel=0.01), job["name"]


def test_jobs_that_end_or_begin_are_not_hung(tmp_path: Path) -> None:
    found, _ = look(tmp_path, "churn_starts_ends")
    assert not [f for f in found.findings if f.kind in ("hang", "restart")]


@pytest.mark.parametrize("name", ["fine_zero", "fine_serving", "coarse_seconds", "fine_slow_leaf"])
def test_the_layout_is_that_of_the_program(tmp_path: Path, name: str) -> None:
    """Where nobody but the visible ranks is waited for, where times are whole seconds, and beside a slow switch."""
    found, jobs = look(tmp_path, name)
    for job in jobs:
        (said,) = (one for one in found.jobs if set(one.endpoints) == set(job["endpoints"]))
        assert (said.layout.dp.value, said.layout.pp.value) == (job["dp"], job["pp"]), job["name"]
