"""What a running job shows on one host: stacks of its ranks, Flight Recorder dumps, RAS. Needs nothing but Python.

`prism investigate --pid/--job` runs this file here and sends it to other hosts through the standard input of their
Python, so nothing is installed there. It reads, asks through sockets and pipes that the job itself opened, and removes
the dumps that it asked for. It prints one JSON document.
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
DUMP_S = 20.0
RAS_S = 10.0


def collect(pids: list[int], slurm_job: str = "") -> dict[str, Any]:
    """Everything about the job's ranks on this host."""
    ranks = find_ranks(pids, slurm_job)[:MOST_RANKS]
    dumps = ask_for_dumps(ranks)
    port = int(next((r["env"].get("NCCL_RAS_ADDR", "") for r in ranks), "").rpartition(":")[2] or 28028)
    return {
        "host": socket.gethostname(),
        "ranks": [
            {
                "rank": r["rank"],
                "pid": r["pid"],
                "state": read_state(r["pid"]),
                "stack": read_stack(r["pid"]),
                "dump": dumps.get(r["pid"], ""),
            }
            for r in ranks
        ],
        "ras": ask_ras(port) if ranks else "",
    }


def find_ranks(pids: list[int], slurm_job: str) -> list[dict[str, Any]]:
    """Processes of the job that have a rank: those given, all below them, and those that share their launcher."""
    parents = {pid: read_parent(pid) for pid in all_pids()}
    roots = set(pids)
    # A rank's launcher is its parent where siblings have ranks of the same job, so that one rank's number is enough.
    for pid in pids:
        if "RANK" in read_env(pid) and parents.get(pid, 0) > 1:
            roots.add(parents[pid])
    found = []
    for pid in parents:
        env = read_env(pid)
        below = pid in roots or any(p in roots for p in ancestors(pid, parents))
        if not env.get("RANK", "").isdigit() or not (below or (slurm_job and env.get("SLURM_JOB_ID") == slurm_job)):
            continue
        # Workers of data loaders carry the rank of the process that started them; the first of a rank is the rank.
        if read_env(parents[pid]).get("RANK") != env["RANK"]:
            found.append({"pid": pid, "rank": int(env["RANK"]), "env": env})
    return sorted(found, key=lambda r: r["rank"])


def all_pids() -> list[int]:
    """Processes on this host."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib is slower here


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    """Parents of a process, upwards."""
    found: list[int] = []
    while (pid := parents.get(pid, 0)) > 1 and len(found) < 100:
        found.append(pid)
    return found


def read_parent(pid: int) -> int:
    """The parent of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def read_env(pid: int) -> dict[str, str]:
    """The environment that a process was started with; only what is needed of it."""
    wanted = ("RANK", "SLURM_JOB_ID", "NCCL_RAS_ADDR", "TORCH_FR_", "TORCH_NCCL_DEBUG_INFO")
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
        beside = str(Path(os.readlink(f"/proc/{pid}/exe")).with_name("py-spy"))  # noqa: PTH115
        waits = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        beside, waits = "", "unknown"
    tool = shutil.which("py-spy") or os.environ.get("PRISM_PY_SPY") or (beside if Path(beside).exists() else None)
    if tool is None:
        return f"waits in {waits}; install py-spy for Python stacks"
    try:
        command = [tool, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STACK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    return done.stdout if done.returncode == 0 else f"py-spy failed: {done.stderr.strip()[:300]}"


def ask_for_dumps(ranks: list[dict[str, Any]]) -> dict[int, str]:
    """Write to the pipes that Flight Recorder listens on, and take the dumps that come."""
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
            # Without a reader the pipe would block for ever.
            handle = os.open(f"{pipe}{number}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(handle, "wb", buffering=0) as writer:
            writer.write(b"1\n")
        asked.append((rank["pid"], dump, before > 0, before))
    return {pid: text for pid, text in ((a[0], take_dump(*a[1:])) for a in asked) if text}


def take_dump(path: Path, was_there: bool, before: float) -> str:
    """A dump once it is written and no longer grows; removed unless one was there before."""
    until, size = time.monotonic() + DUMP_S, -1
    while time.monotonic() < until:
        if path.exists() and path.stat().st_mtime > before:
            now = path.stat().st_size
            if now == size and now > 0:
                data = path.read_bytes()
                if not was_there:
                    path.unlink(missing_ok=True)
                return base64.b64encode(data).decode()
            size = now
        time.sleep(0.2)
    return ""


def ask_ras(port: int) -> str:
    """NCCL RAS's answer as it is; nothing where there is no such service."""
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
    """Print the document; arguments are process numbers, or slurm:JOB."""
    pids = [int(word) for word in sys.argv[1:] if word.isdigit()]
    job = next((word[6:] for word in sys.argv[1:] if word.startswith("slurm:")), "")
    json.dump(collect(pids, job), sys.stdout)


if __name__ == "__main__":
    main()
