"""Collects from a running job on one host: stacks of its ranks, Flight Recorder dumps, RAS. Needs only Python.

`prism investigate --pid/--job` runs this file here and sends it to other hosts through the standard input of their
Python, so nothing is installed there. It reads, sends requests to sockets and pipes that the job opened, and removes
the dumps that it requested. It prints one JSON document.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MOST_RANKS = 64
STACK_S = 20.0
DUMP_S = 40.0  # for its first dump a process imports the module that names stack frames, which takes seconds
RAS_S = 10.0


def collect(pids: list[int], slurm_job: str = "", everything: bool = False) -> dict[str, Any]:
    """What is known of the job's ranks on this host."""
    ranks = find_ranks(pids, slurm_job, everything)[:MOST_RANKS]
    dumps = ask_for_dumps(ranks)
    port = int(next((r["env"].get("NCCL_RAS_ADDR", "") for r in ranks), "").rpartition(":")[2] or 28028)
    return {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "ranks": [
            {
                "rank": r["rank"],
                "pid": r["pid"],
                "job": r["job"],
                "asked": r["asked"],
                "state": read_state(r["pid"]),
                "stack": read_stack(r["pid"]),
                "dump": dumps.get(r["pid"], ""),
            }
            for r in ranks
        ],
        "ras": ask_ras(port) if ranks else "",
    }


def find_ranks(pids: list[int], slurm_job: str, everything: bool = False) -> list[dict[str, Any]]:
    """Processes of the job that have a rank: those given, all below them, and those that share their launcher.

    With `everything` also ranks of other jobs, which differ in their `job`.
    """
    parents = {pid: read_parent(pid) for pid in all_pids()}
    # A rank's parent is its launcher if siblings have ranks of the same job, so one process number is enough.
    given = [(pid, read_env(pid)) for pid in pids]
    launchers = {(parents[pid], name_job(env)) for pid, env in given if read_rank(env) and parents.get(pid, 0) > 1}
    found = []
    for pid in parents:
        env = read_env(pid)
        above = ancestors(pid, parents)
        asked = any(p in pids for p in (pid, *above)) or any((p, name_job(env)) in launchers for p in above)
        asked = asked or bool(slurm_job and env.get("SLURM_JOB_ID") == slurm_job)
        if not read_rank(env) or not (asked or everything) or not is_python(pid) or is_elsewhere(env):
            continue
        # Data loader workers inherit the rank in their environment; the first process with a rank is the rank itself.
        if not any(read_rank(read_env(p)) == read_rank(env) for p in above if is_python(p)):
            found.append({"pid": pid, "rank": int(read_rank(env)), "env": env, "job": name_job(env), "asked": asked})
    return sorted(found, key=lambda r: r["rank"])


def read_rank(env: dict[str, str]) -> str:
    """The rank of a process by its environment, or nothing; Slurm numbers the tasks of a step."""
    told = env.get("RANK") or env.get("SLURM_PROCID", "")
    return told if told.isdigit() else ""


def is_elsewhere(env: dict[str, str]) -> bool:
    """Whether a process is of another Slurm node than this one, or of the step that this program runs in."""
    node, step = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_STEP_ID")
    if node and env.get("SLURMD_NODENAME", node) != node:
        return True
    same_job = env.get("SLURM_JOB_ID") == os.environ.get("SLURM_JOB_ID")
    return step is not None and same_job and env.get("SLURM_STEP_ID") == step


def is_python(pid: int) -> bool:
    """Whether a process runs Python, and not a shell or a launcher around it."""
    try:
        return "python" in Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115
    except OSError:
        return False


def name_job(env: dict[str, str]) -> str:
    """An identifier that the ranks of one job share."""
    for name in ("PRISM_ATTEMPT_KEY", "SLURM_JOB_ID"):
        if env.get(name):
            return f"{name}={env[name]}"
    return f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"


def all_pids() -> list[int]:
    """Processes on this host."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib is slower here


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    """The ancestors of a process, nearest first."""
    found: list[int] = []
    while (pid := parents.get(pid, 0)) > 1 and len(found) < 100:
        found.append(pid)
    return found


def read_parent(pid: int) -> int:
    """The parent of a process; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def read_env(pid: int) -> dict[str, str]:
    """The variables needed here from the environment that a process was started with."""
    wanted = ("RANK", "SLURM", "MASTER_", "PRISM_ATTEMPT_KEY", "NCCL_RAS_ADDR", "TORCH_FR_", "TORCH_NCCL_DEBUG_INFO")
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if name.startswith(wanted)}


def read_state(pid: int) -> str:
    """Such as S (sleeping), T (stopped), D (in the kernel)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "gone"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), "unknown")


def read_stack(pid: int) -> str:
    """py-spy's view of a process, or where it waits in the kernel."""
    try:
        # Next to the rank's own Python: in a virtual environment by its command, else by its file.
        started = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        places = [Path(started), Path(os.readlink(f"/proc/{pid}/exe"))]  # noqa: PTH115
        waits = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        places, waits = [], "unknown"
    beside = [str(p.with_name("py-spy")) for p in places if p.is_absolute() and p.with_name("py-spy").exists()]
    tool = shutil.which("py-spy") or os.environ.get("PRISM_PY_SPY") or next(iter(beside), None)
    if tool is None:
        return f"waits in {waits}; install py-spy for Python stacks"
    try:
        command = [tool, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STACK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    return done.stdout if done.returncode == 0 else f"py-spy failed: {done.stderr.strip()[:300]}"


def ask_for_dumps(ranks: list[dict[str, Any]]) -> dict[int, str]:
    """Write to the pipes that Flight Recorder reads, and collect the dumps that it writes."""
    asked: list[tuple[int, Path, bool, float]] = []
    for rank in ranks:
        env, number = rank["env"], rank["rank"]
        pipe = env.get("TORCH_FR_DEBUG_INFO_PIPE_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
        prefix = (
            env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or "/tmp/nccl_trace_rank_"
        )
        if not pipe:
            continue
        dump = Path(f"{prefix}{number}")
        before = dump.stat().st_mtime if dump.exists() else 0.0
        try:
            # Opening a pipe without a reader would block for ever.
            handle = os.open(f"{pipe}{number}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(handle, "wb", buffering=0) as writer:
            writer.write(b"1\n")
        asked.append((rank["pid"], dump, before > 0, before))
    until = time.monotonic() + DUMP_S  # for all ranks together
    return {pid: text for pid, text in ((a[0], take_dump(*a[1:], until)) for a in asked) if text}


def take_dump(path: Path, was_there: bool, before: float, until: float) -> str:
    """A dump, once it no longer grows; it is removed unless the file existed before."""
    size = -1
    while True:
        if path.exists() and path.stat().st_mtime > before:
            now = path.stat().st_size
            if now == size and now > 0:
                data = path.read_bytes()
                if not was_there:
                    path.unlink(missing_ok=True)
                return base64.b64encode(data).decode()
            size = now
        if time.monotonic() > until:
            return ""
        time.sleep(0.2)


def ask_ras(port: int) -> str:
    """The unchanged answer of NCCL RAS; empty if there is no such service."""
    try:
        with socket.create_connection(("localhost", port), timeout=RAS_S) as link, link.makefile("rwb") as lines:
            for line in (b"CLIENT PROTOCOL 2\n", b"SET FORMAT json\n"):
                lines.write(line)
                lines.flush()
                lines.readline()
            lines.write(b"VERBOSE STATUS\n")
            lines.flush()
            return lines.read(256 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def main() -> None:
    """Print the document; arguments are process numbers, slurm:JOB, or all."""
    pids = [int(word) for word in sys.argv[1:] if word.isdigit()]
    job = next((word[6:] for word in sys.argv[1:] if word.startswith("slurm:")), "")
    json.dump(collect(pids, job, "all" in sys.argv[1:]), sys.stdout)


if __name__ == "__main__":
    main()
