"""Random faults in DDP trainings of 2, 4 and 8 ranks whose loss falls: Prism beside `torchrun --max-restarts`.

    python -m proving.drills.soak [--faults 200] [--seed 0] [--at-once 4] [--ranks 2,4,8] [--output FOLDER]

Both run the same script on the same faults, with default settings. A run is right if it ends with exit code 0, its
weights equal those of the run without faults to the last bit, and Prism pages nobody. Every other run saves with
Prism's TrainingLoop, the others with torch.save; where namespaces can be made, a third has 64 MB of shared memory.
torchrun gets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it torch 2.13 hangs in some restarts of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_TRAINER = Path(__file__).with_name("trainers") / "soak_loop.py"
_STEPS, SAVE_EVERY = 120, 40
_FAULTS_A_RUN = 6
_LIMIT_S = 420.0
KINDS = ("SIGKILL", "SIGSEGV", "SIGTERM", "exit", "TypeError", "OSError", "RuntimeError")
Runner = Literal["alone", "prism", "torchrun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training and what happens to it."""

    seed: int
    ranks: int
    saves: str  # own or loop
    small_memory: bool
    faults: tuple[dict[str, object], ...]

    def command(self, runner: Runner) -> list[str]:
        """The words that run it."""
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks)]
        # A port of its own; torchrun's --standalone makes one store for all restarts.
        own = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        restarts = ["--max-restarts", "100"] if runner == "torchrun" else []
        script = [str(_TRAINER), self.saves]
        words = [*launch, *own, *restarts, *script]
        if runner == "prism":
            words = [sys.executable, "-m", "prism", "supervise", "--run-dir", "run", "--", *words]
        if self.small_memory:
            inside = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
            words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh", *words]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How one run ended."""

    runner: Runner
    code: int | None  # None: it was given up
    result: str
    met: int  # faults that happened
    pages: int
    seconds: float


def draw(seed: int, ranks: tuple[int, ...], *, mounts: bool) -> Training:
    """A training and its faults; kills lie long after saves as often as shortly after them."""
    chance = random.Random(seed)
    world = chance.choice(ranks)
    steps = sorted(chance.sample(range(5, _STEPS - 2), _FAULTS_A_RUN))
    faults = tuple({"step": step, "rank": chance.randrange(world), "kind": chance.choice(KINDS)} for step in steps)
    return Training(
        seed=seed, ranks=world, saves=("own", "loop")[seed % 2], small_memory=mounts and seed % 3 == 0, faults=faults
    )


def run(training: Training, runner: Runner, folder: Path) -> End:
    """One run in a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    faults = [] if runner == "alone" else list(training.faults)
    plan = {"steps": _STEPS, "save_every": SAVE_EVERY, "faults": faults}
    (folder / "plan.json").write_text(json.dumps(plan))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    begin = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            training.command(runner), cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            code: int | None = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = None
    result, decisions = folder / "result", folder / "run" / "decisions.log"
    text = decisions.read_text(errors="replace") if decisions.exists() else ""
    return End(
        runner=runner,
        code=code,
        result=result.read_text() if result.exists() else "",
        met=len(list(folder.glob("fault-*"))),
        pages=sum(line[21:].startswith("page") for line in text.splitlines()),
        seconds=time.monotonic() - begin,
    )


def compare(training: Training, folder: Path) -> list[End]:
    """Alone, then both at the same time."""
    home = folder / f"seed-{training.seed}"
    alone = run(training, "alone", home / "alone")
    runners: tuple[Runner, Runner] = ("prism", "torchrun")
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda runner: run(training, runner, home / runner), runners))
    notes = [
        f"{end.runner} {'right' if is_right(end, alone) else 'WRONG'} (exit {end.code}, {end.met} faults, "
        f"{end.seconds:.0f} s{f', {end.pages} pages' if end.pages else ''})"
        for end in ends
    ]
    memory = ", 64 MB of shared memory" if training.small_memory else ""
    print(
        f"seed {training.seed}: {training.ranks} ranks, saves {training.saves}{memory}: {'; '.join(notes)}", flush=True
    )
    if all(is_right(end, alone) for end in ends):
        shutil.rmtree(home, ignore_errors=True)
    return [alone, *ends]


def is_right(end: End, alone: End) -> bool:
    """Whether it ended well, with the weights of the run without faults, and paged nobody."""
    return end.code == 0 and end.result == alone.result != "" and not end.pages


def main(words: list[str]) -> int:
    """Run until so many faults have happened; exit 1 where a run of Prism was not right."""
    parser = argparse.ArgumentParser(prog="python -m proving.drills.soak", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--output", type=Path, help="folder where what went wrong is kept")
    args = parser.parse_args(words)
    folder = args.output or Path(tempfile.mkdtemp(prefix="prism-soak-"))
    mounts = os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
    ranks = tuple(int(part) for part in args.ranks.split(","))
    trainings = [draw(args.seed + n, ranks, mounts=mounts) for n in range(-(-args.faults // _FAULTS_A_RUN))]
    stop = time.monotonic() + 60 * args.minutes
    with ThreadPoolExecutor(args.at_once) as pool:
        made = list(pool.map(lambda t: compare(t, folder) if time.monotonic() < stop else [], trainings))
    made = [ends for ends in made if ends]
    for place, runner in enumerate(("prism", "torchrun"), start=1):
        ends = [(row[place], row[0]) for row in made]
        right, met = sum(is_right(end, alone) for end, alone in ends), sum(end.met for end, _ in ends)
        seconds = sorted(end.seconds for end, _ in ends)
        median = seconds[len(seconds) // 2] if seconds else 0.0
        print(f"{runner}: {right} of {len(ends)} runs right, {met} faults, {median:.0f} s a run in the middle")
    return 0 if made and all(is_right(row[1], row[0]) for row in made) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
