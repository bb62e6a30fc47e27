"""Emulate a job: capture it, stitch, verify, solve. The only file that chains the others."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from prism.emulate.capture import Capture
from prism.emulate.capturing import CaptureConfig, capture_job
from prism.emulate.families import find_families
from prism.emulate.launch import LaunchConfig
from prism.emulate.mailbox import Recording
from prism.emulate.predict import Prediction, choose_costs, predict
from prism.emulate.stitch import ClockName, StitchConfig, Stitched, stitch
from prism.emulate.this_host import HostConfig, calibrate_this_host
from prism.errors import PrismError


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateConfig:
    """What to capture, and the cluster to predict it on."""

    capture: CaptureConfig
    cluster: str | None = None
    calibration: Path | None = None
    gpu_memory_bytes: int | None = None
    compute_scale: float = 1.0
    overlap: bool | None = None  # None: as the cores of this machine allow
    clock: ClockName | None = None  # None: all time where every live rank has a core to itself
    measure_host: bool = False  # CPU ranks without cluster and calibration: time this host's collectives once


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Everything that one emulation found."""

    config: EmulateConfig
    captures: Mapping[int, Capture]
    recording: Recording
    surveyed: int  # ranks whose calls were compared
    stitched: Stitched
    prediction: Prediction
    wall_s: float


def emulate(config: EmulateConfig) -> Emulation:
    """From a script to the prediction of the whole job."""
    started = time.monotonic()
    first = partial(_note_first_figure, config, started)
    run = capture_job(replace(config.capture, first=first))
    survey = run.survey.captures if run.survey else None
    stitched, prediction = predict_captures(run.captures, config, survey)
    return Emulation(
        config=config,
        captures=run.captures,
        recording=run.recording,
        surveyed=len({*run.captures, *(survey or ())}),
        stitched=stitched,
        prediction=prediction,
        wall_s=time.monotonic() - started,
    )


def _note_first_figure(config: EmulateConfig, started: float, capture: Capture) -> None:
    """Print a first prediction from one rank, before the others ran; nothing if one rank is not enough for it."""
    quiet = replace(config, capture=replace(config.capture, note=lambda message: None))
    try:
        _, prediction = predict_captures({capture.rank: capture}, quiet)
    except PrismError:
        return
    config.capture.note(
        f"first figure after {time.monotonic() - started:.0f} s: {prediction.headline_ms:,.1f} ms an iteration "
        f"if every rank is like rank {capture.rank}; now comparing ranks"
    )


def predict_captures(
    captures: Mapping[int, Capture], config: EmulateConfig, survey: Mapping[int, Capture] | None = None
) -> tuple[Stitched, Prediction]:
    """Stitch what was captured, here or elsewhere, and solve it."""
    launch, note = config.capture.launch, config.capture.note
    device = next(iter(captures.values())).device
    calibration = config.calibration or _calibrate_host(captures, config, survey)
    costs = choose_costs(device, launch.world_size, launch.gpus_per_node, config.cluster, calibration)
    note(f"stitching {len(captures)} captured ranks into {launch.world_size}")
    script = launch.script[1 if launch.script[0] == "-m" else 0]
    stitched = stitch(captures, _stitch_config(config, costs.cluster.backend), name=Path(script).stem, survey=survey)
    for line in stitched.asymmetry:
        note(f"not alike: {line}")
    guessed = not config.cluster and config.overlap is None  # hosts are taken to be like this one
    crowded = costs.cluster.backend == "gloo" and guessed and not _has_spare_cores(launch)
    if crowded:
        local = min(launch.gpus_per_node, launch.world_size)
        note(f"{local} ranks of a host share its cores with their own threads, as here: the time is a rough one")
    # Solving is verifying: a graph that would hang on the cluster is an error that names ranks and lines.
    return stitched, predict(stitched, captures, costs, gpu_memory_bytes=config.gpu_memory_bytes, crowded=crowded)


def _calibrate_host(
    captures: Mapping[int, Capture], config: EmulateConfig, survey: Mapping[int, Capture] | None
) -> Path | None:
    """Measured collectives of this host where the job's hosts are taken to be like it; None where they are not."""
    on_gpu = any(capture.device != "cpu" for capture in captures.values())
    if not config.measure_host or config.cluster or on_gpu or config.capture.launch.gpus_per_node < 2:
        return None
    families = find_families({**(survey or {}), **captures}.values())
    return calibrate_this_host(captures, families, HostConfig(note=config.capture.note))


def _stitch_config(config: EmulateConfig, backend: str) -> StitchConfig:
    """On an nccl cluster communication has its own engine; gloo needs a core of its own to run beside compute."""
    launch = config.capture.launch
    spare = backend == "nccl" or (_has_spare_cores(launch) and not launch.pin)
    return StitchConfig(
        warmup=config.capture.warmup,
        gpus_per_node=launch.gpus_per_node,
        overlap=spare if config.overlap is None else config.overlap,
        compute_scale=config.compute_scale,
        clock=config.clock or ("wall" if launch.pin and _has_spare_cores(launch, each=1) else "work"),
    )


def _has_spare_cores(launch: LaunchConfig, each: int = 2) -> bool:
    """Whether a host like this one has so many cores for each of its ranks."""
    return len(os.sched_getaffinity(0)) >= each * min(launch.gpus_per_node, launch.world_size)
