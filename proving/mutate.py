"""Mutation testing: change one thing in a module, run the tests that execute that line, and see whether one fails.

    python proving/mutate.py                      every target, a sample of each
    python proving/mutate.py schedule --sample 0  every mutant of one target

A mutant that no test notices is printed with its line. Every mutant lives in a forked process; the files are not
touched. Strings are left alone: they are mostly messages.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "proving")]

from mutation.mutants import find_mutants  # noqa: E402
from mutation.running import score_mutants  # noqa: E402

GOAL = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Source files and the tests that should notice when one of them is wrong."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    compiled: bool = True  # false: kernels run as plain Python, because a changed kernel would be compiled anew
    leave_out: tuple[str, ...] = field(default=())  # ids of tests, by a part of their name


TARGETS = {
    "kernel": Target(
        sources=("src/prism/simulate/solving/kernel.py",),
        tests=("tests/simulate/test_kernel.py",),
        compiled=False,
    ),
    "records": Target(
        sources=("src/prism/records/*.py",),
        tests=("tests/records", "tests/collect/test_flow_inputs.py"),  # the latter read what tools wrote with it
        compiled=False,
        # They start other processes, which have no mutants, or read captures, which compiled code alone can.
        leave_out=("trace_processor", "numba_is_loaded", "sflowtool", "capture", "passed_over"),
    ),
    "state": Target(
        sources=("src/prism/recover/supervise/{state,job,running,endings,following}.py",),
        tests=(
            "tests/recover/test_supervisor_decisions.py",
            "tests/recover/test_supervisor_boundaries.py",
            "tests/recover/test_supervisor_hosts.py",
            "tests/recover/test_risks.py",
        ),
    ),
    "schedule": Target(
        sources=(
            "src/prism/evaluate/schedule/{bound,cutting,dispatch,fair_share,learning,ledger,packing,planner}.py",
            "src/prism/evaluate/schedule/{pools,priors,cluster,scheduler,score_queue,standing,transfers,trials}.py",
        ),
        tests=(
            "tests/evaluate/test_scheduler.py",
            "tests/evaluate/test_packing.py",
            "tests/evaluate/test_priors.py",
            "tests/evaluate/test_schedule_parts.py",
            "tests/evaluate/test_schedule_borders.py",
            "tests/evaluate/test_planner.py",
            "tests/evaluate/test_learning.py",
        ),
    ),
    "decisions": Target(
        sources=(
            "src/prism/observe/findings/{causes,progress,ranking,scoring,stages,suspects,verdicts,windows}.py",
            "src/prism/observe/parallelism/layout_model.py",
        ),
        tests=(
            "tests/observe/test_cause_borders.py",
            "tests/observe/test_causes.py",
            "tests/observe/test_finding_decisions.py",
            "tests/observe/test_late_decisions.py",
            "tests/observe/test_layout_model.py",
            "tests/observe/test_place_decisions.py",
            "tests/observe/test_progress.py",
            "tests/observe/test_ranking.py",
            "tests/observe/test_suspects.py",
            "tests/observe/test_verdicts.py",
        ),
        compiled=False,
    ),
    "endings": Target(
        sources=("src/prism/observe/findings/silence.py", "src/prism/observe/steps/life.py"),
        tests=(
            "tests/observe/test_finding_decisions.py",
            "tests/observe/test_life.py",
            "tests/observe/test_life_borders.py",
            "tests/observe/test_life_decisions.py",
            "tests/observe/test_progress.py",
            "tests/observe/test_silence_borders.py",
            "tests/observe/test_stopped.py",
        ),
        compiled=False,
    ),
}


def main() -> int:
    """Print the score of each target, and the mutants that survived; exit 1 where a target misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--sample", type=int, default=100, help="mutants per target, drawn at random; 0 takes all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then score what was drawn first, at random")
    parser.add_argument("--goal", type=float, default=GOAL)
    asked = parser.parse_args()
    unknown = [name for name in asked.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}; known are {', '.join(TARGETS)}")
    if len(asked.targets) == 1:
        return mutate(asked.targets[0], asked)
    # One process per target, so that each imports only what its tests need.
    names = asked.targets or list(TARGETS)
    flags = [f"--sample={asked.sample}", f"--seed={asked.seed}", f"--goal={asked.goal}", f"--only={asked.only}"]
    flags.append(f"--minutes={asked.minutes}")
    return max(subprocess.run([sys.executable, __file__, name, *flags], check=False).returncode for name in names)


def mutate(name: str, asked: argparse.Namespace) -> int:
    """Score one target."""
    target = TARGETS[name]
    if not target.compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    os.environ["POLARS_MAX_THREADS"] = "1"
    os.chdir(ROOT)
    files = [file for pattern in target.sources for file in _expand(pattern) if asked.only in str(file)]
    tests = [test for test in target.tests if (ROOT / test).exists()]
    mutants = [mutant for file in files for mutant in find_mutants(file)]
    if asked.sample:
        mutants = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    print(f"{name}: {len(mutants)} mutants", flush=True)
    score = score_mutants(mutants, tests, target.leave_out, 60 * asked.minutes)
    print(
        f"{name}: {len(score.killed)} of {score.num_mutants} killed, {100 * score.share:.1f} % "
        f"({score.tests} tests of {score.cpu_s:.1f} CPU-s)",
        flush=True,
    )
    return int(score.share < asked.goal)


def _expand(pattern: str) -> list[Path]:
    if "{" in pattern:
        head, _, rest = pattern.partition("{")
        names, _, tail = rest.partition("}")
        return [file for name in names.split(",") for file in _expand(head + name + tail)]
    return sorted(file for file in ROOT.glob(pattern) if file.name != "__init__.py")


if __name__ == "__main__":
    sys.exit(main())
