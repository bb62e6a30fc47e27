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
        "predicted_ms": _headline_ms(emulation),
        "unit": emulation.config.unit,
        "not_predicted": prediction.not_predicted or None,
        "iterations": describe_iterations(prediction),
        "split": {name: round(share, 5) for name, share in asdict(prediction.split).items()},
        "classes": [
            {**describe_class(memory), "cpu_ms": round(work, 4) if first.device == "cpu" else None}
            for memory, work in zip(prediction.memory, prediction.work_ms, strict=True)
        ],
        "wall_s": round(emulation.wall_s, 2),
        "provenance": {
            "compute": "measured",
            "communication": prediction.communication,
            "memory": prediction.memory[0].how,
            "error_band_pct": None if prediction.not_predicted else prediction.error_band_pct,
            "compute_spread_pct": round(stitched.compute_spread_pct, 2),
            "cluster": prediction.cluster.name,
            "backend": prediction.cluster.backend,
            "device": first.device,
            "torch": first.torch,
            "captured_ranks": sorted(emulation.captures),
            "compared_ranks": emulation.surveyed,
            "iterations": stitched.num_iterations,
            "asymmetry": list(stitched.asymmetry),
        },
    }
    if live:
        document["live"] = [describe_live(run) for run in live]
    return document


def _headline_ms(emulation: Emulation) -> float | None:
    """A step of the first optimizer, or the program's outer loop where the calls show one."""
    prediction = emulation.prediction
    if emulation.config.unit == "optimizer":
        return _ms(prediction, prediction.headline_ms)
    return None if prediction.steps.loop_ms is None else _ms(prediction, prediction.steps.loop_ms)


def _ms(prediction: Prediction, value: float) -> float | None:
    """A time, or nothing where none can be stood by."""
    return None if prediction.not_predicted else round(value, 4)


def summarize_steps(prediction: Prediction) -> dict[str, float | None]:
    """Median and 95th percentile of the iterations, and their mean over whole repeating units."""
    return {
        "median": _ms(prediction, float(np.median(prediction.step_ns)) / 1e6),
        "mean": _ms(prediction, prediction.steps.mean_ms),
        "p95": _ms(prediction, float(np.percentile(prediction.step_ns, 95)) / 1e6),
    }


def describe_iterations(prediction: Prediction) -> dict[str, Any]:
    """The repeating unit: a plain iteration, those that do more or less, and the mean of all."""
    steps = prediction.steps
    return {
        "unit": steps.unit,
        "plain_ms": _ms(prediction, steps.plain_ms),
        "mean_ms": _ms(prediction, steps.mean_ms),
        "loop_ms": _ms(prediction, steps.loop_ms) if steps.loop_ms is not None else None,
        "special": [{**asdict(special), "ms": _ms(prediction, special.ms)} for special in steps.special],
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
