"""Emulate a job: capture it, stitch, verify, solve. The only file that chains the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from prism.emulate.capture import Capture
from prism.emulate.capturing import CaptureConfig, capture_job
from prism.emulate.families import find_families
from prism.emulate.launch import LaunchConfig
from prism.emulate.mailbox import Recording
from prism.emulate.predict import Prediction, choose_costs, predict
from prism.emulate.replaying import ReplayConfig, can_replay, replay
from prism.emulate.stitch import ClockName, StitchConfig, Stitched, stitch
from prism.emulate.this_host import MOST_BUSY_SHARE, HostConfig, calibrate_this_host, count_running
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
    unit: Literal["optimizer", "loop"] = "optimizer"  # what the headline is the time of
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
    replays = _replays(captures, config)
    calibration = config.calibration or (None if replays else _calibrate_host(captures, config, survey))
    costs = choose_costs(device, launch.world_size, launch.gpus_per_node, config.cluster, calibration)
    note(f"stitching {len(captures)} captured ranks into {launch.world_size}")
    script = launch.script[1 if launch.script[0] == "-m" else 0]
    stitched = stitch(captures, _stitch_config(config, costs.cluster.backend), name=Path(script).stem, survey=survey)
    for line in stitched.asymmetry:
        note(f"not alike: {line}")
    guessed = not config.cluster and config.overlap is None  # hosts are taken to be like this one
    here = costs.cluster.backend == "gloo" and guessed
    again = partial(replay, captures, stitched.measured, config=ReplayConfig(note=note))
    # Solving is verifying: a graph that would hang on the cluster is an error that names ranks and lines.
    return stitched, predict(
        stitched,
        captures,
        costs,
        gpu_memory_bytes=config.gpu_memory_bytes,
        crowded=here and not _has_spare_cores(launch),
        not_predicted=_why_not_predicted(launch) if here else "",
        replay=again if replays else lambda expected_ns: None,
    )


def _replays(captures: Mapping[int, Capture], config: EmulateConfig) -> bool:
    """Whether the hosts are taken to be like this one, which has the cores and is quiet enough to run all ranks."""
    asked = config.measure_host and not (config.cluster or config.calibration) and config.overlap is None
    local = config.capture.launch.gpus_per_node >= config.capture.launch.world_size
    return asked and local and can_replay(captures) and _is_quiet(config.capture.note)


def _is_quiet(note: Callable[[str], None]) -> bool:
    """Whether other programs leave this host's cores alone; beside them a replay would measure these."""
    running, cores = count_running(), len(os.sched_getaffinity(0))
    if running > MOST_BUSY_SHARE * cores:
        note(f"this host is busy ({running:.1f} processes run on {cores} cores): calls are not replayed")
    return running <= MOST_BUSY_SHARE * cores


def _why_not_predicted(launch: LaunchConfig) -> str:
    """Ranks that share cores wait for them, by the kernel's choice: no model of Prism's knows that."""
    local, cores = min(launch.gpus_per_node, launch.world_size), len(os.sched_getaffinity(0))
    if local <= cores:
        return ""
    return (
        f"{local} ranks of a host share {cores} cores here; run it where each has one, or name the hosts it will run "
        "on with --cluster"
    )


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
