"""An emulation as one JSON document, the shape that outside checks rely on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from prism.emulate.emulation import Emulation
from prism.emulate.live import LiveRun
from prism.emulate.predict import ClassMemory, Prediction

SCHEMA = "prism.emulation/1"


def describe_emulation(emulation: Emulation, live: Sequence[LiveRun] = ()) -> dict[str, Any]:
    """The document of `prism emulate --json`."""
    prediction, stitched = emulation.prediction, emulation.stitched
    first = next(iter(emulation.captures.values()))
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "world_size": emulation.config.capture.launch.world_size,
        "iteration_ms": summarize_steps(prediction),
        "predicted_ms": round(prediction.median_ms, 4),
        "split": {name: round(share, 5) for name, share in asdict(prediction.split).items()},
        "classes": [describe_class(memory) for memory in prediction.memory],
        "wall_s": round(emulation.wall_s, 2),
        "provenance": {
            "compute": "measured",
            "communication": prediction.communication,
            "memory": prediction.memory[0].how,
            "error_band_pct": prediction.error_band_pct,
            "compute_spread_pct": round(stitched.compute_spread_pct, 2),
            "cluster": prediction.cluster.name,
            "backend": prediction.cluster.backend,
            "device": first.device,
            "torch": first.torch,
            "captured_ranks": sorted(emulation.captures),
            "iterations": stitched.num_iterations,
            "asymmetry": list(stitched.asymmetry),
        },
    }
    if live:
        document["live"] = [describe_live(run) for run in live]
    return document


def summarize_steps(prediction: Prediction) -> dict[str, float]:
    """Median, mean and 95th percentile of the solved iterations."""
    steps = np.array(prediction.step_ns) / 1e6
    return {
        "median": round(float(np.median(steps)), 4),
        "mean": round(float(steps.mean()), 4),
        "p95": round(float(np.percentile(steps, 95)), 4),
    }


def describe_class(memory: ClassMemory) -> dict[str, Any]:
    """One rank class and its memory."""
    return {**asdict(memory), "ranks": list(memory.ranks)}


def describe_live(run: LiveRun) -> dict[str, Any]:
    """What a live rank did."""
    return {
        "rank": run.rank,
        "status": run.status,
        "reason": run.reason,
        "iteration_ms": round(run.median_ms, 4),
        "predicted_ms": round(run.predicted_ms, 4),
        "diverged": run.diverged,
        "wall_s": round(run.wall_s, 2),
    }
