"""`python -m proving.drills.place_drill [--jobs 500] [--reach conf|name|ssh]`: jobs dispatched to two real Slurm
clusters.

The clusters are reached by their files, by name (`sbatch -M`, with slurmdbd on MariaDB), or over ssh. slurmctld of one
cluster is killed and started again, that of the other stops answering for a while, and the dispatcher is killed again
and again. Every job must run exactly once.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from proving.drills.slurm_accounting import Accounting, why_no_accounting
from proving.drills.slurm_cluster import SlurmCluster, why_no_slurm
from proving.drills.ssh_login import SshLogin

REACHES = ("conf", "name", "ssh")
_TIMES = {"unit": "node", "timeout_s": 20, "settle_s": 12}


def why_not(reach: str) -> str | None:
    """Why the drill cannot be run here, or None."""
    if reach == "name":
        return why_no_accounting()
    if reach == "ssh" and (shutil.which("ssh") is None or not Path("/usr/sbin/sshd").exists()):
        return "needs openssh-client and openssh-server"
    return why_no_slurm()


@contextmanager
def start_clusters(folder: Path, reach: str) -> Iterator[tuple[SlurmCluster, SlurmCluster, Path]]:
    """Two clusters, and the file that says how they are reached."""
    with ExitStack() as stack:
        shared = stack.enter_context(Accounting(folder / "db", ("east", "west"))) if reach == "name" else None
        found = [SlurmCluster(folder / n, 3, n, alone=False, shared=shared) for n in ("east", "west")]
        east, west = (stack.enter_context(cluster) for cluster in found)
        login = stack.enter_context(SshLogin(folder / "ssh")) if reach == "ssh" else None
        rows = []
        for cluster in (east, west):
            way: dict[str, object] = {"conf": str(cluster.conf)}
            if reach == "name":
                way = {"conf": str(east.conf), "cluster": cluster.name}
            elif login is not None:
                way = {"prefix": [*login.words, "env", f"SLURM_CONF={cluster.conf}"]}
            rows.append({"name": cluster.name, "slurm": {**way, **_TIMES}})
        sites = folder / "live.yaml"
        sites.write_text(yaml.safe_dump({"clusters": rows}))
        yield east, west, sites


def write_jobs(folder: Path, count: int) -> Path:
    """Scripts that leave one line each in one file."""
    scripts = folder / "jobs"
    scripts.mkdir()
    for number in range(count):
        text = f"#!/bin/sh\n#SBATCH --nodes=1 --time=5 --output=/dev/null\necho job-{number:04} >> {folder}/ran.txt\n"
        (scripts / f"job-{number:04}.sh").write_text(text)
    return scripts


def run_drill(folder: Path, count: int, limit_s: float, reach: str = "conf") -> Counter[str]:
    """Dispatch, hurt, wait; how often each job ran."""
    rng = random.Random(0)
    scripts = write_jobs(folder, count)
    ran = folder / "ran.txt"
    kills = hurts = 0
    folder.chmod(0o755)
    with start_clusters(folder, reach) as (east, west, sites):
        words = ["place", "dispatch", str(scripts), "--clusters", str(sites), "--act", "--poll-s", "2"]
        command = [sys.executable, "-m", "prism", *words, "--state", str(folder / "state")]
        end_s = time.monotonic() + limit_s
        log = (folder / "dispatcher.log").open("ab")
        dispatcher = subprocess.Popen(command, stdout=log, stderr=log)
        while time.monotonic() < end_s:
            time.sleep(rng.uniform(3.0, 12.0))
            code = dispatcher.poll()
            if code == 0:
                break
            if code is None:
                dispatcher.kill()
                dispatcher.wait()
                kills += 1
            if hurts == 0:
                # Slurm saves its state every five seconds. What it had not saved when it is killed it loses or runs
                # again by itself, whoever submitted it.
                time.sleep(8.0)
                east.kill_controller()
                time.sleep(5.0)
                east.start_controller()
            elif hurts == 1:
                west.freeze_controller(frozen=True)
            elif hurts == 2:
                west.freeze_controller(frozen=False)
            hurts += 1
            dispatcher = subprocess.Popen(command, stdout=log, stderr=log)
            if hurts > 8:  # then it may finish in peace
                dispatcher.wait(max(1.0, end_s - time.monotonic()))
        while time.monotonic() < end_s and len(set(_lines(ran))) < count:
            time.sleep(1.0)
        time.sleep(3.0)  # a job that ran twice would show
    placed = (folder / "state" / "placements.jsonl").read_text().count('"placed"')
    print(f"{count} jobs, dispatcher killed {kills} times, {hurts} faults, {placed} placements written")
    return Counter(_lines(ran))


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def main() -> int:
    """Run the drill and print how often jobs ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--limit-s", type=float, default=3_600.0)
    parser.add_argument("--reach", choices=REACHES, default="conf")
    options = parser.parse_args()
    reason = why_not(options.reach)
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the daemons end with us
    with tempfile.TemporaryDirectory(prefix="prism-place-") as folder:
        ran = run_drill(Path(folder), options.jobs, options.limit_s, options.reach)
        twice = sorted(name for name, times in ran.items() if times > 1)
        missing = options.jobs - len(ran)
        print(f"ran once: {sum(times == 1 for times in ran.values())}, more than once: {len(twice)}, never: {missing}")
        if twice or missing:
            print(f"twice: {', '.join(twice[:10])}")
            print(Path(folder, "dispatcher.log").read_text()[-3_000:])
        return 1 if twice or missing else 0


if __name__ == "__main__":
    sys.exit(main())
