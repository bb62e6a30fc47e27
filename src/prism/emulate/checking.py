"""Check a script: run the host code of its ranks, compare their calls, and say nothing about time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from prism.emulate.inside.plan import RunPlan
from prism.emulate.launch import LaunchConfig, boot_script
from prism.emulate.problems import CallsDifferError, Problem
from prism.emulate.survey import SurveyConfig, Surveyor
from prism.errors import ScriptError

Verdict = Literal["clean", "hang", "mismatch", "unsupported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """What to check, and how much of this machine to use for it."""

    launch: LaunchConfig
    steps: int = 8  # of small worlds where they are cheap; of large ones fewer
    most_ranks: int = 1024  # worlds up to this size are run whole where that takes no longer than the budget
    budget_s: float = 45.0  # of all cores, for running every rank
    note: Callable[[str], None] = lambda message: None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What came of a check."""

    world_size: int
    verdict: Verdict
    ranks_run: int
    problems: tuple[Problem, ...]
    reason: str  # why the script cannot be checked; empty where it can
    output: str  # what the rank printed that could not go on
    wall_s: float

    @property
    def exit_code(self) -> int:
        """0 clean, 2 hang or mismatch, 3 cannot be checked."""
        return {"clean": 0, "unsupported": 3}.get(self.verdict, 2)

    def describe(self) -> str:
        """The answer in one sentence."""
        if self.verdict == "unsupported":
            return f"cannot be checked: {self.reason}"
        if self.problems:
            return "; ".join(f"this would {problem.outcome} on a cluster: {problem.text}" for problem in self.problems)
        if self.ranks_run == self.world_size:
            return f"clean: the calls of all {self.world_size:,} ranks meet"
        return f"clean: the calls of {self.ranks_run:,} ranks meet, of {self.world_size:,}; the others were not run"


def check(config: CheckConfig) -> CheckReport:
    """Run all ranks of a script, or one of each kind and a random sample, and compare what they call."""
    started = time.monotonic()
    launch = config.launch
    plan = RunPlan(rank=0, world_size=launch.world_size, gpus_per_node=launch.gpus_per_node, output="")
    survey = SurveyConfig(
        most_ranks=config.most_ranks, budget_s=config.budget_s, max_live=launch.max_live, steps=config.steps,
        note=config.note, measure=False,
    )  # fmt: skip
    problems: tuple[Problem, ...] = ()
    verdict: Verdict = "clean"
    reason = output = ""
    ran: set[int] = set()
    try:
        with boot_script(launch, plan) as (boot, folder):
            surveyor = Surveyor(boot, folder, launch, plan, survey)
            ran = surveyor.started
            surveyor.run()
    except CallsDifferError as error:
        verdict, problems = error.problem.verdict, (error.problem,)
    except ScriptError as error:
        verdict, reason, output = "unsupported", str(error), error.output
    return CheckReport(
        world_size=launch.world_size, verdict=verdict, ranks_run=len(ran), problems=problems, reason=reason,
        output=output, wall_s=time.monotonic() - started,
    )  # fmt: skip
