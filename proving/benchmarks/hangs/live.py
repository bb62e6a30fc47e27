"""Whether `prism investigate --pid` names who stopped a job.

    python -m proving.benchmarks.hangs.live [--seeds 0:30] [--fit]

Each case hangs for real over gloo on this machine, with nothing prepared. With --fit the likelihoods are printed that
prism.evidence.traces.consensus holds: how often clusters that waited, and those that were waited for, stood in whose
code and did what, each count plus one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch._inductor  # noqa: F401 - imported once here and not by every rank

from prism.errors import BadConfigError
from prism.evidence.fusion.live import LiveJob, collect_live, conclude_live
from prism.evidence.traces.stacks import RankStack
from proving.benchmarks.hangs.programs import Program, draw_program, train
from proving.benchmarks.hangs.roles import Roles

_QUIET_S, _LIMIT_S = 4.0, 120.0


def main() -> None:
    """Run the cases, print a line each and the share that was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:30")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    first, last = (int(word) for word in options.seeds.split(":"))
    roles = Roles()
    named, sure_and_wrong, hung = 0, 0, 0
    for seed in range(first, last):
        program = draw_program(seed)
        try:
            ranks, confidence, stacks, took = look_at(program)
        except BadConfigError:
            # Where ranks call different collectives, gloo ends them: a job that failed, and no hang.
            print(f"{seed:3d} {program.shape:9s}{program.fault:8s} ended and does not hang", flush=True)
            continue
        hung += 1
        named += ranks == {str(program.victim)}
        sure_and_wrong += bool(ranks - {str(program.victim)}) and confidence >= 0.7
        told = ",".join(sorted(ranks)) or "-"
        right = "right" if ranks == {str(program.victim)} else "WRONG" if ranks else "none"
        print(f"{seed:3d} {program.shape:9s}{program.fault:8s} rank {program.victim}: {right} {told} "
              f"({confidence:.2f}) in {took:.0f} s", flush=True)  # fmt: skip
        roles.add(stacks, program.victim)
    print(f"named {named} of {hung}, wrong and sure {sure_and_wrong}")
    if options.fit:
        roles.show()


def look_at(program: Program) -> tuple[set[str], float, list[RankStack], float]:
    """Start a case, wait until it hangs, and ask about the process that started its ranks."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        launcher = os.fork()
        if launcher == 0:
            os.setpgid(0, 0)
            launch(program, folder)
        try:
            wait_for_hang(program, folder)
            begin = time.monotonic()
            answer = collect_live(LiveJob(pids=(launcher,)))
            found = conclude_live(answer)
            took = time.monotonic() - begin
            ranks = {s.id for s in found.fused.culprits if s.type == "rank"}
            return ranks, found.fused.confidence, answer.ranks, took
        finally:
            os.killpg(launcher, signal.SIGKILL)
            os.waitpid(launcher, 0)
            shutil.rmtree(folder, ignore_errors=True)


def launch(program: Program, folder: Path) -> None:
    """Fork the ranks and wait; this process ends with its group."""
    for rank in range(program.ranks):
        if os.fork() == 0:
            log = os.open(folder / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            train(program, rank, folder)
            os._exit(1)
    while True:
        time.sleep(3600)


def wait_for_hang(program: Program, folder: Path) -> None:
    """Until the ranks have begun and no step was finished for some seconds."""
    begin = moved = time.monotonic()
    before = -1
    while time.monotonic() - begin < _LIMIT_S:
        done = [p.stat().st_size for p in folder.glob("steps_*")]
        if sum(done) != before or len(done) < program.ranks or min(done) < 4:
            before, moved = sum(done), time.monotonic()
        if time.monotonic() - moved > _QUIET_S:
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main()
