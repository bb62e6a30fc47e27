"""An estimate as one JSON document, the shape that outside checks rely on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from prism.estimate.estimation import Estimate, EstimateConfig

SCHEMA = "prism.estimate/1"


def describe_estimates(config: EstimateConfig, found: Sequence[Estimate]) -> dict[str, Any]:
    """The document of `prism estimate --json`, best layout first."""
    speed = config.gpu.speed(config.precision)
    return {
        "schema": SCHEMA,
        "gpus": config.gpus,
        "cluster": config.cluster.name,
        "gpu": config.gpu.name,
        "precision": config.precision,
        "model": {**asdict(config.model), "params": config.model.params},
        "global_batch": config.sequences,
        "layouts": [describe_layout(one) for one in found],
        "provenance": {
            "layers": speed.origin,
            "gpu": config.gpu.origin,
            "communication": "modelled",
            "memory": "counted from shapes",
        },
    }


def describe_layout(one: Estimate) -> dict[str, Any]:
    """One row of the table."""
    return {
        "layout": one.layout.describe(),
        "step_ms": round(one.step_ms, 3),
        "band_pct": one.band_pct,
        "peak_bytes": one.memory.peak,
        "memory": asdict(one.memory),
        "mfu": round(one.mfu, 4),
        "fits": one.fits,
    }
