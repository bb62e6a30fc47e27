"""Jobs on a real Slurm of three nodes on this machine; its daemons' logs are not kept, the job's own file is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from launch import PROGRAM
from way import CannotMake, Place, Way

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from proving.drills.slurm_cluster import SlurmCluster, why_no_slurm

_ALIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
_READY_S, _END_S = 40.0, 140.0
_TASK = """\
import os, sys, time

rank = int(os.environ["SLURM_PROCID"])
for step in range(1, {shown} + 1):
    print(f"step {{step}}/{steps} loss {{4 / step:.3f}}", flush=True)
{last}
"""
_LONG = "time.sleep(200)"
Act = Callable[[SlurmCluster, str], None]


class _Job:
    """One batch job in a cluster of its own; `act` happens to it once it prints."""

    def __init__(self, last: str, *, options: tuple[str, ...] = (), steps: int = 900, act: Act | None = None,
                 start: str = "srun --label {python} train.py") -> None:  # fmt: skip
        shown = min(steps, 25)
        self._text = _TASK.format(shown=shown, steps=steps, last=last)
        self._options, self._act, self._start = options, act, start.format(python=sys.executable)

    def __call__(self, place: Place) -> None:
        if why := why_no_slurm():
            raise CannotMake(why)
        (place.scratch / PROGRAM).write_text(self._text)
        (place.scratch / "job.sh").write_text(f"#!/bin/bash\n{self._start}\n")
        output = place.logs / "slurm-1.out"
        with tempfile.TemporaryDirectory(prefix="slurm-") as folder, SlurmCluster(Path(folder)) as cluster:
            where = ["-N", "3", "--ntasks-per-node", "1", "-D", str(place.scratch), "-o", str(output)]
            command = ["sbatch", "--parsable", *where, *self._options, str(place.scratch / "job.sh")]
            job = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
            if self._act is not None:
                self._wait(lambda: _says(output, "step 25/"), _READY_S)
                self._act(cluster, job)
            self._wait(lambda: self._state(job) not in _ALIVE or _says(output, "CANCELLED AT"), _END_S)
            time.sleep(2)

    @staticmethod
    def _wait(done: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not done() and time.monotonic() < deadline:
            time.sleep(0.5)

    @staticmethod
    def _state(job: str) -> str:
        shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, timeout=60).stdout
        return shown.partition("JobState=")[2].split(" ")[0]


def _says(output: Path, text: str) -> bool:
    return output.exists() and text in output.read_text()  # a job that waits has no file yet


def _cancel(cluster: SlurmCluster, job: str) -> None:
    subprocess.run(["scancel", job], check=True, timeout=60)


def _requeue(cluster: SlurmCluster, job: str) -> None:
    subprocess.run(["scontrol", "requeuehold", job], check=True, timeout=60)


def _lose(cluster: SlurmCluster, job: str) -> None:
    cluster.lose_node("n2")


_ENDED = {"family": "slurm", "reason": "Unknown"}

WAYS = [
    Way(name="slurm-task-raises", family="slurm", reason="ZeroDivisionError", proof=r"ZeroDivisionError", rank=2,
        make=_Job("1 / (rank - 2)\n" + _LONG, start="srun --label --kill-on-bad-exit=1 {python} train.py")),
    Way(name="slurm-node-lost", family="slurm", reason="NodeFailure", restarts=True, host="n2",
        proof=r"NODE FAILURE|Node failure|Socket timed out|node failed", make=_Job(_LONG, act=_lose)),
    Way(name="slurm-cancelled", restarts=None, proof=r"CANCELLED AT", make=_Job(_LONG, act=_cancel), **_ENDED),
    Way(name="slurm-requeued", restarts=True, proof=r"CANCELLED AT", make=_Job(_LONG, act=_requeue), **_ENDED),
    Way(name="slurm-command-missing", family="slurm", reason="FileNotFoundError", proof=r"No such file",
        also=("OSError",), make=_Job(_LONG, start="srun --label ./pretrain_gpt")),
    Way(name="slurm-time-limit", restarts=True, proof=r"TIME LIMIT",
        make=_Job(_LONG, options=("-t", "0:05"), start="srun --label {python} train.py"), **_ENDED),
    Way(name="finished-slurm", family="slurm", reason="none", restarts=None, proof=r"training finished",
        make=_Job("print('training finished')", steps=25)),
]  # fmt: skip
