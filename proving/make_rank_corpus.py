"""Write a corpus of really failed jobs: torch processes over gloo, the full log of every rank, and the truth.

    python proving/make_rank_corpus.py OUTPUT [--only NAME ...] [--ranks 8] [--large-ranks 64] [--steps 400]

Every job gets OUTPUT/<job>/logs/node-<n>_rank_<r>.log and OUTPUT/<job>/truth.json. Ranks are forked from one
process that has loaded torch, so that sixty-four of them start in seconds; what they run is proving/corpus/train.py.
Jobs named torchrun-* are started by torchrun itself, with all ranks in one interleaved log.
Dropping packets and filling /dev/shm need root (they happen in namespaces of their own); without it they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent / "corpus"
sys.path.insert(0, str(HERE))

NEEDS_ROOT = frozenset({"packets_dropped", "shm_full"})
GPUS_PER_NODE = 8
JOB_LIMIT_S = 180.0
LARGE = ("kill_rank", "hang", "key", "wrong_path")  # also run with many ranks
TORCHRUN = ("kill_rank", "value", "module_missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to make fail."""

    name: str
    fault: str
    num_ranks: int
    faulty_rank: int
    steps: int
    launcher: str = "fork"


def plan(args: argparse.Namespace) -> list[Job]:
    """Every fault once on a few ranks, some on many, some under torchrun."""
    from faults import FAULTS

    names = [n for n in FAULTS if n != "none" and (not args.only or n in args.only)]
    jobs = [
        Job(name=f"{n}-{args.ranks}", fault=n, num_ranks=args.ranks, steps=args.steps,
            faulty_rank=0 if n == "store_missing" else (3 * i + 1) % args.ranks)
        for i, n in enumerate(names)
    ]  # fmt: skip
    large = [n for n in LARGE if n in names and args.large_ranks]
    jobs += [
        Job(name=f"{n}-{args.large_ranks}", fault=n, num_ranks=args.large_ranks, steps=args.steps // 4,
            faulty_rank=(17 * i + 5) % args.large_ranks)
        for i, n in enumerate(large)
    ]  # fmt: skip
    jobs += [
        Job(name=f"torchrun-{n}-4", fault=n, num_ranks=4, steps=args.steps, faulty_rank=2, launcher="torchrun")
        for n in TORCHRUN
        if n in names and not args.no_torchrun
    ]
    return [j for j in jobs if os.geteuid() == 0 or j.fault not in NEEDS_ROOT]


def arguments_of(job: Job, scratch: str) -> list[str]:
    """The command line of the trainer; many ranks get more time, they share few cores."""
    timeout_s = 6.0 + job.num_ranks / 4
    return ["--fault", job.fault, "--faulty-rank", str(job.faulty_rank), "--steps", str(job.steps),
            "--fault-step", str(max(2, job.steps * 3 // 4)), "--timeout-s", str(timeout_s),
            "--scratch", scratch]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_forked(job: Job, logs: Path, scratch: str) -> None:
    """Fork every rank, each with its own log, and wait for all to end."""
    port = free_port()
    pids = [_fork_rank(job, rank, logs, scratch, port) for rank in range(job.num_ranks)]
    deadline = time.monotonic() + JOB_LIMIT_S
    waiting = set(pids)
    while waiting and time.monotonic() < deadline:
        for pid in list(waiting):
            done, _ = os.waitpid(pid, os.WNOHANG)
            waiting -= {done}
        time.sleep(0.05)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_rank(job: Job, rank: int, logs: Path, scratch: str, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    target = os.open(logs / f"node-{rank // GPUS_PER_NODE}_rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(job.num_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      LOCAL_RANK=str(rank % GPUS_PER_NODE))  # fmt: skip
    code = 0
    try:
        import train

        train.main(arguments_of(job, scratch))
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_torchrun(job: Job, logs: Path, scratch: str) -> None:
    """Start the job with torchrun and keep its interleaved output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(job.num_ranks), "--tee", "3",
               "--master-port", str(free_port()), str(HERE / "train.py"), *arguments_of(job, scratch)]  # fmt: skip
    with (logs / "job.log").open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=JOB_LIMIT_S, check=False)


def run_in_own_network(job: Job, logs: Path, scratch: str) -> None:
    """Fork once into a new network namespace, so that dropping packets drops only this job's."""
    pid = os.fork()
    if pid == 0:
        os.unshare(os.CLONE_NEWNET) if hasattr(os, "unshare") else _unshare_network()
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        run_forked(job, logs, scratch)
        os._exit(0)
    os.waitpid(pid, 0)


def _unshare_network() -> None:
    import ctypes

    if ctypes.CDLL(None).unshare(0x40000000):
        raise OSError("cannot make a network namespace")


def make(job: Job, output: Path) -> None:
    """Run one job and write its truth beside its logs."""
    from faults import FAULTS

    folder = output / job.name
    shutil.rmtree(folder, ignore_errors=True)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    fault = FAULTS[job.fault]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        if job.launcher == "torchrun":
            run_torchrun(job, logs, scratch)
        elif job.fault == "packets_dropped":
            run_in_own_network(job, logs, scratch)
        else:
            run_forked(job, logs, scratch)
    named = not fault.everywhere and job.fault != "packets_dropped"
    truth = {
        "job": job.name,
        "fault": job.fault,
        "reason": fault.reason,
        "restarts": fault.restarts,
        "num_ranks": job.num_ranks,
        "faulty_rank": job.faulty_rank if named else None,
        "faulty_host": f"node-{job.faulty_rank // GPUS_PER_NODE}" if named and job.launcher == "fork" else None,
        "root": fault.root,
        "speaks": fault.speaks,
    }
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def main() -> None:
    """Make the jobs one after the other."""
    parser = argparse.ArgumentParser(description="Write a corpus of really failed jobs.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--large-ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--no-torchrun", action="store_true")
    args = parser.parse_args()
    for job in plan(args):
        started = time.monotonic()
        make(job, args.output)
        print(f"{job.name}: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
