"""Capture a job: run it once to find its rank classes, then run their representatives and keep what they record."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from prism.emulate.classes import choose_ranks, find_classes, streams_of
from prism.emulate.families import find_families
from prism.emulate.inside.plan import Routing, RunPlan
from prism.emulate.launch import LaunchConfig, Run, run_ranks
from prism.errors import BadConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """What to run, which ranks of it, and for how long."""

    launch: LaunchConfig
    ranks: tuple[int, ...] = ()  # empty: found by running the program
    iterations: int = 5
    warmup: int = 3
    company: int | None = None  # live ranks at once on CPU, so that they share its memory as real ones would
    check_symmetry: bool = True
    quick: bool = False  # CPU: the run that finds the classes is also the one that is measured
    track_memory: bool = True
    snapshot: bool = False
    routing: Routing = "balanced"
    zipf_exponent: float = 1.0
    routing_counts: tuple[int, ...] = ()
    note: Callable[[str], None] = lambda message: None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise BadConfigError(f"--iterations is {self.iterations}, expected 1 or more")
        for rank in self.ranks:
            if not 0 <= rank < self.launch.world_size:
                raise BadConfigError(f"rank {rank} does not exist; the ranks are 0 to {self.launch.world_size - 1}")


def capture_job(config: CaptureConfig) -> Run:
    """Run the representatives of all classes and return what they recorded."""
    launch = config.launch
    base = base_plan(config)
    if config.ranks:
        together = len(config.ranks) > 1
        return run_ranks(launch, replace(base, live_ranks=config.ranks, in_step=together), config.ranks)
    config.note(f"finding rank classes of {launch.world_size} ranks")
    found = run_ranks(launch, replace(base, discover=True, brief=not config.quick), [0])
    on_gpu = next(iter(found.captures.values())).device != "cpu"
    if config.quick and not on_gpu:
        return found
    families = find_families(found.captures.values())
    classes = find_classes(streams_of(found.captures), families, launch.world_size)
    company = 0 if on_gpu else _company(config)
    ranks = choose_ranks(classes, check=config.check_symmetry, company=company)
    config.note(f"{len(classes.captured)} classes; capturing ranks {_list(ranks)}")
    plan = replace(base, live_ranks=tuple(ranks), twins=classes.twins(ranks))
    if on_gpu:
        # One GPU: ranks take turns, and messages of the first run answer for those that are not there.
        return run_ranks(replace(launch, one_by_one=True), plan, ranks, found.posts)
    return run_ranks(launch, replace(plan, in_step=len(ranks) > 1), ranks)


def base_plan(config: CaptureConfig) -> RunPlan:
    """What every process of a capture is told, whoever it is."""
    launch = config.launch
    return RunPlan(
        rank=0, world_size=launch.world_size, gpus_per_node=launch.gpus_per_node, output="", warmup=config.warmup,
        iterations=config.iterations, routing=config.routing, zipf_exponent=config.zipf_exponent,
        routing_counts=config.routing_counts, track_memory=config.track_memory,
        snapshot="yes" if config.snapshot else "",
    )  # fmt: skip


def _company(config: CaptureConfig) -> int:
    """How many ranks of a node run at once: as many as it has, if there are cores for them."""
    if config.company is not None:
        return config.company
    return min(len(os.sched_getaffinity(0)), config.launch.gpus_per_node, config.launch.world_size)


def _list(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
