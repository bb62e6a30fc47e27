"""Capture a job: run it once to find its rank classes, then run their representatives and keep what they record."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prism.emulate.booting import Boot
from prism.emulate.capture import Capture
from prism.emulate.classes import choose_ranks
from prism.emulate.comparing import name_ranks
from prism.emulate.inside.plan import Routing, RunPlan
from prism.emulate.launch import LaunchConfig, Launcher, boot_script, check_ranks, run_ranks
from prism.emulate.mailbox import Recording
from prism.emulate.survey import Survey, SurveyConfig, Surveyor, classify
from prism.errors import BadConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """What to run, which ranks of it, and for how long."""

    launch: LaunchConfig
    ranks: tuple[int, ...] = ()  # empty: found by running the program
    iterations: int = 5
    warmup: int = 3
    at_once: int | None = None  # live ranks at once on CPU, so that they share its memory as real ones would
    check_symmetry: bool = True
    quick: bool = False  # measure one rank of each kind only: enough to compare layouts
    lint_ranks: int = 1024  # worlds up to this size have the host code of every rank run
    lint_s: float = 60.0  # where that takes no longer than about this
    track_memory: bool = True
    snapshot: bool = False
    routing: Routing = "balanced"
    zipf_exponent: float = 1.0
    routing_counts: tuple[int, ...] = ()
    note: Callable[[str], None] = lambda message: None
    first: Callable[[Capture], None] = lambda capture: None  # called with the first rank that was measured on a GPU

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise BadConfigError(f"--iterations is {self.iterations}, expected 1 or more")
        for rank in self.ranks:
            if not 0 <= rank < self.launch.world_size:
                raise BadConfigError(f"rank {rank} does not exist; the ranks are 0 to {self.launch.world_size - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRun:
    """What was captured: measured ranks, and those that ran unmeasured to find like ranks."""

    captures: dict[int, Capture]
    recording: Recording
    survey: Survey | None = None


def capture_job(config: CaptureConfig) -> CaptureRun:
    """Run the representatives of all classes and return what they recorded."""
    launch, base = config.launch, base_plan(config)
    if config.ranks:
        run = run_ranks(launch, replace(base, in_step=len(config.ranks) > 1), config.ranks)
        return CaptureRun(captures=run.captures, recording=run.recording)
    with boot_script(launch, base) as (boot, folder):
        config.note(f"booting the script once for {launch.world_size} ranks")
        survey = Surveyor(boot, folder, launch, base, _survey_config(config)).run()
        return _capture(config, survey, boot, folder)


def _capture(config: CaptureConfig, survey: Survey, boot: Boot, folder: Path) -> CaptureRun:
    """Measure one rank of each kind, its last to check that they are alike, and as many more as run at once."""
    launch = config.launch
    on_gpu = next(iter(survey.captures.values())).device != "cpu"
    classes = classify(survey.captures, launch.world_size, launch.gpus_per_node)
    check = config.check_symmetry and not config.quick
    ranks = choose_ranks(classes, check=check, at_once=0 if on_gpu else _choose_at_once(config))
    kinds = len(classes.kinds())
    config.note(f"{kinds} kind{'s' if kinds > 1 else ''} of ranks; capturing {name_ranks(ranks)}")
    plan = replace(
        base_plan(config),
        live_ranks=tuple(ranks),
        twins=classes.twins(ranks),
        recorded=True,
        in_step=not on_gpu and len(ranks) > 1,
    )
    # One GPU: ranks take turns, and messages of the survey answer for those that are not there.
    launcher = Launcher(boot, replace(launch, one_by_one=on_gpu), plan, folder, recording=survey.recording)
    captures = launcher.run([rank for rank in ranks if rank not in survey.measured])
    check_ranks(launcher, captures)
    captures = {**{rank: survey.measured[rank] for rank in ranks if rank in survey.measured}, **captures}
    if _made_no_step(captures, survey.captures):
        config.note(
            "the script made no step when it ran again, as if it found its own checkpoint: times are of its first "
            "run, and memory is at least what is shown; remove what it wrote before the next emulation"
        )
        captures = {r: replace(survey.captures[r], memory=captures[r].memory) for r in captures if r in survey.captures}
    recording = survey.recording
    recording.absorb(launcher.recording)
    return CaptureRun(captures=captures, recording=recording, survey=survey)


def _made_no_step(captures: Mapping[int, Capture], surveyed: Mapping[int, Capture]) -> bool:
    """Whether all ranks that made steps in the survey made none when they ran again."""
    stepping = [rank for rank in captures if rank in surveyed and surveyed[rank].num_steps]
    return bool(stepping) and not any(captures[rank].num_steps for rank in stepping)


def _survey_config(config: CaptureConfig) -> SurveyConfig:
    return SurveyConfig(
        most_ranks=config.lint_ranks,
        budget_s=config.lint_s,
        max_live=config.launch.max_live,
        steps=config.warmup + config.iterations,
        note=config.note,
        first=config.first,
    )


def base_plan(config: CaptureConfig) -> RunPlan:
    """The part of the plan that is the same for all processes of a capture."""
    launch = config.launch
    return RunPlan(
        rank=0,
        world_size=launch.world_size,
        gpus_per_node=launch.gpus_per_node,
        output="",
        warmup=config.warmup,
        iterations=config.iterations,
        routing=config.routing,
        zipf_exponent=config.zipf_exponent,
        routing_counts=config.routing_counts,
        track_memory=config.track_memory,
        snapshot="yes" if config.snapshot else "",
    )


def _choose_at_once(config: CaptureConfig) -> int:
    """How many ranks of a node run at once: as many as it has, if there are cores for them."""
    if config.at_once is not None:
        return config.at_once
    return min(len(os.sched_getaffinity(0)), config.launch.gpus_per_node, config.launch.world_size)
