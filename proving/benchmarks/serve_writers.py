"""What writes in a soak of `prism serve`: the real commands, kept going, over flows that are replayed without end."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

PRISM = (sys.executable, "-m", "prism.cli.main")
# Small, because looks at it share the cores with all else; the finding comes and goes in every turn.
SCENARIO = """
about: One GPU of a small job computes at half of its speed for a while.
cluster: {preset: dgx-h100, num_hosts: 2}
duration_s: 240
jobs:
  - {id: job-1, model: gpt-1.3b, dp: 16, microbatches: 4, micro_batch: 4}
faults:
  - {kind: slow_gpu, job: job-1, rank: 5, start_s: 60, end_s: 150, speed: 0.5}
"""
TRAINER = """
import random, sys, time
from prism.recover.progress import Progress, RunOrders
progress, rng = Progress.from_environment(0), random.Random(time.time_ns())
saved = RunOrders.from_environment().run_dir / "saved-step"
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 301):
    time.sleep(1.0)
    progress.step(step, loss=2.0 + rng.random() / 10)
    saved.write_text(str(step))
    if rng.random() < 0.01:
        sys.exit("RuntimeError: NCCL error: unhandled system error, remote process exited")
"""


@dataclass
class Writer:
    """A command of Prism that is started again whenever it has ended."""

    command: Callable[[int], list[str]]
    output: Path  # what it prints
    pause_s: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    number: int = 0
    ended: float = 0.0

    def keep_going(self) -> None:
        """Start it where it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None:
            self.process, self.ended = None, time.monotonic()
        if time.monotonic() - self.ended >= self.pause_s or not self.number:
            self.number += 1
            with self.output.open("ab") as out, self.output.with_suffix(".err").open("ab") as err:
                self.process = subprocess.Popen(self.command(self.number), stdout=out, stderr=err)

    def end(self) -> None:
        """Ask it to stop, and wait."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            if self.process.poll() is None:
                self.process.kill()


def replay(scenario: Path, target: Path, stop: threading.Event) -> None:
    """The flows of a scenario, again and again, each second's into a file of its own when that second is over."""
    flows = pl.read_parquet(scenario / "flows.parquet")
    first, last = int(flows["start_ns"].min()), int(flows["end_ns"].max())  # type: ignore[arg-type]
    target.mkdir(exist_ok=True)
    begin, turn, second = time.time_ns(), 0, 0
    while not stop.is_set():
        shift = begin + turn * (last - first) - first
        at = first + second * 10**9
        part = flows.filter(pl.col("end_ns").is_between(at, at + 10**9, closed="left"))
        if stop.wait(max(0.0, (at + 10**9 + shift - time.time_ns()) / 1e9)):
            return
        if len(part):
            aside = target / f"{turn:06d}-{second:04d}.parquet"
            part.with_columns(pl.col("start_ns", "end_ns") + shift).write_parquet(f"{aside}.tmp")
            Path(f"{aside}.tmp").rename(aside)
        for old in sorted(target.glob("*.parquet"))[:-120]:  # read long ago
            old.unlink()
        second += 1
        if at + 10**9 > last:
            turn, second = turn + 1, 0


def break_and_mend(folder: Path, stop: threading.Event) -> None:
    """A report that is broken half of the time."""
    turn = 0
    while not stop.wait(31.0):
        turn += 1
        text = json.dumps({"schema": "prism.goodput/1", "gpu_hours": 10.0 + turn, "goodput": 0.5})
        (folder / ".goodput.tmp").write_text(text if turn % 2 else text[:-9])
        (folder / ".goodput.tmp").replace(folder / "goodput.json")


def list_writers(work: Path, served: Path) -> list[Writer]:
    """The three commands."""
    trainer = work / "trainer.py"
    trainer.write_text(TRAINER)
    topology, flows = work / "scenario/topology.csv", work / "flows"
    (served / "watch").mkdir(exist_ok=True)
    done = len(list((served / "runs").glob("*"))), len(list((served / "evaluations").glob("*")))
    return [
        Writer(lambda _: [*PRISM, "watch", str(flows), "--topology", str(topology), "--state", str(served / "watch")],
               served / "watch/findings.jsonl", pause_s=5.0),
        Writer(lambda n: [*PRISM, "supervise", "--run-dir", str(served / f"runs/{done[0] + n:05d}"), "--",
                          sys.executable, str(trainer)], work / "supervise.out"),
        Writer(lambda n: [*PRISM, "evaluate", "--demo", "--output", str(served / f"evaluations/{done[1] + n:05d}"),
                          "--engine", "local"], work / "evaluate.out", pause_s=240.0),
    ]  # fmt: skip


@contextlib.contextmanager
def run_writers(
    work: Path, served: Path, stop: threading.Event, *, ready: Callable[[], bool]
) -> Iterator[list[Writer]]:
    """The commands and their flows, from the moment on that all have written something."""
    if not (work / "scenario/flows.parquet").exists():
        (work / "scenario.yaml").write_text(SCENARIO)
        made = [*PRISM, "scenario", str(work / "scenario.yaml"), "--output", str(work / "scenario")]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    writers = list_writers(work, served)
    helpers = [
        threading.Thread(target=replay, args=(work / "scenario", work / "flows", stop)),
        threading.Thread(target=break_and_mend, args=(served, stop)),
    ]
    try:
        for helper in helpers:
            helper.start()
        while not ready():
            for writer in writers:
                writer.keep_going()
            time.sleep(1.0)
        yield writers
    finally:
        stop.set()
        for writer in writers:
            writer.end()
        for helper in helpers:
            helper.join(60)
