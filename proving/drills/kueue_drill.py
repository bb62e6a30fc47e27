"""`python -m proving.drills.kueue_drill [--jobs 100]`: jobs dispatched to two real API servers with Kueue's kinds of
objects.

One API server is killed and started again, the other stops answering for a while, and the dispatcher is killed again
and again. Every job must be taken, and run, exactly once. See `kueue_bench` for what is real.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from proving.drills.kube_cluster import why_no_kubernetes
from proving.drills.kueue_bench import KueueBench

_SITES = """\
clusters:
  - {{name: east, kueue: {{kubeconfig: {east}, queue: team, timeout_s: 5}}}}
  - {{name: west, kueue: {{kubeconfig: {west}, queue: team, timeout_s: 5}}}}
"""
_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: job-{number:04}}}
spec:
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: main, image: train, resources: {{limits: {{nvidia.com/gpu: 4}}}}}}]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """How often each job was held and run over both clusters, and what was done to them."""

    held: Counter[str]
    ran: Counter[str]
    by_cluster: dict[str, int]
    kills: int
    faults: int


def why_not() -> str | None:
    """Why the drill cannot be run here, or None."""
    return why_no_kubernetes() or (None if shutil.which("kubectl") else "needs kubectl")


def run_drill(folder: Path, count: int, limit_s: float, *, pause_s: tuple[float, float] = (3.0, 8.0)) -> Drilled:
    """Dispatch, hurt, wait."""
    rng = random.Random(0)
    jobs = folder / "jobs"
    jobs.mkdir()
    for number in range(count):
        (jobs / f"job-{number:04}.yaml").write_text(_JOB.format(number=number))
    ran = folder / "ran.txt"
    kills = faults = 0
    with KueueBench(folder / "east", 32, ran) as east, KueueBench(folder / "west", 32, ran) as west:
        sites = folder / "live.yaml"
        sites.write_text(_SITES.format(east=east.kubeconfig, west=west.kubeconfig))
        words = ["place", "dispatch", str(jobs), "--clusters", str(sites), "--act", "--poll-s", "1"]
        command = [sys.executable, "-m", "prism", *words, "--state", str(folder / "state")]
        end_s = time.monotonic() + limit_s
        with (folder / "dispatcher.log").open("ab") as log:
            for hurt in ("kill east", "start east", "freeze west", "let west go", "", ""):
                dispatcher = subprocess.Popen(command, stdout=log, stderr=log)
                time.sleep(rng.uniform(*pause_s))
                if dispatcher.poll() is None:
                    dispatcher.kill()
                    kills += 1
                dispatcher.wait()
                faults += bool(hurt)
                match hurt:
                    case "kill east":
                        east.kill_server()
                    case "start east":
                        east.start_server()
                    case "freeze west" | "let west go":
                        west.freeze_server(frozen=hurt == "freeze west")
            subprocess.run(command, stdout=log, stderr=log, timeout=max(1.0, end_s - time.monotonic()), check=True)
        while time.monotonic() < end_s and len(set(_lines(ran))) < count:
            time.sleep(0.5)
        time.sleep(2.0)  # a job that ran twice would show
        names = {bench.folder.name: [job["metadata"]["name"] for job in bench.jobs()] for bench in (east, west)}
    return Drilled(
        held=Counter(name for found in names.values() for name in found),
        ran=Counter(_lines(ran)),
        by_cluster={name: len(found) for name, found in names.items()},
        kills=kills,
        faults=faults,
    )


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def main() -> int:
    """Run the drill and print how often jobs were held and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=900.0)
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end with us
    with tempfile.TemporaryDirectory(prefix="prism-kueue-") as folder:
        found = run_drill(Path(folder), options.jobs, options.limit_s)
    good = len(found.held) == options.jobs and set(found.held.values()) == {1} == set(found.ran.values())
    good = good and len(found.ran) == options.jobs
    print(
        f"{options.jobs} jobs, dispatcher killed {found.kills} times, {found.faults} faults; taken {found.by_cluster}"
    )
    for what, counts in (("held", found.held), ("ran", found.ran)):
        more = sum(times > 1 for times in counts.values())
        once, never = sum(times == 1 for times in counts.values()), options.jobs - len(counts)
        print(f"{what} once: {once}, more than once: {more}, never: {never}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
