"""Collects from a running job on one host: stacks of its ranks, Flight Recorder dumps, RAS. Needs only Python.

`prism investigate --pid/--job` runs this file here and sends it to other hosts through the standard input of their
Python, so nothing is installed there. It reads, sends requests to sockets and pipes that the job opened, and removes
the dumps that it requested. It prints one JSON document.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MOST_RANKS = 64
STACK_S = 8.0
LOOKS_S = (0.0, 1.0, 3.0)  # when stacks are taken; a job that runs stands elsewhere at one of them
DUMP_S = 18.0  # for its first dump a process imports the module that names stack frames, which takes seconds
RAS_S = 8.0
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LIBRARIES = ("gloo", "nccl", "rccl", "mpi")  # of communication; each names the threads that it starts after itself
# What calls of the kernel do, by their numbers on x86-64 and on ARM, with the argument that is a file or a path.
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "reads fd 0": ((0, 17, 19, 45, 47, 217), (63, 67, 65, 207, 212, 61)),
    "writes fd 0": ((1, 18, 20, 44, 46, 74, 75), (64, 68, 66, 206, 211, 82, 83)),
    "locks fd 0": ((72, 73), (25, 32)),
    "connects fd 0": ((42,), (203,)),
    "accepts a connection on fd 0": ((43, 288), (202, 242)),
    "asks a device by fd 0": ((16,), (29,)),
    "opens path 0": ((2, 4), ()),
    "opens path 1": ((257, 262, 332), (56, 79, 291)),
    "sleeps": ((35, 230), (101, 115)),
    "joins a process": ((61, 247), (260, 95)),
    "waits for a lock": ((202,), (98,)),
    "waits for events": ((7, 23, 232, 270, 271, 281), (73, 72, 22)),
}


def collect(pids: list[int], slurm_job: str = "", everything: bool = False) -> dict[str, Any]:
    """What is known of the job's ranks on this host."""
    ranks = find_ranks(pids, slurm_job, everything)[:MOST_RANKS]
    port = int(next((r["env"].get("NCCL_RAS_ADDR", "") for r in ranks), "").rpartition(":")[2] or 28028)
    with ThreadPoolExecutor(16) as pool:
        looks: list[list[Any]] = [[] for _ in ranks]
        ras = pool.submit(ask_ras, port) if ranks else None
        begin = time.monotonic()
        asked = None
        for after in LOOKS_S if ranks else ():
            time.sleep(max(0.0, begin + after - time.monotonic()))
            for own, look in zip(looks, pool.map(lambda r: read_threads(r["pid"]), ranks), strict=True):
                own.append(look)
            # A rank that is asked for a dump takes the interpreter's lock for it, so it is looked at before.
            asked = asked or pool.submit(ask_for_dumps, ranks)
        dumps = asked.result() if asked else {}
        told = [describe_rank(rank, own, dumps) for rank, own in zip(ranks, looks, strict=True)]
        return {
            "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "ranks": told,
            "ras": ras.result() if ras else "",
        }


def describe_rank(rank: dict[str, Any], looks: list[Any], dumps: dict[int, str]) -> dict[str, Any]:
    """One rank as the document names it; what py-spy said where it could not look is its note."""
    notes = [look for look in looks if isinstance(look, str)]
    return {
        "rank": rank["rank"],
        "pid": rank["pid"],
        "job": rank["job"],
        "asked": rank["asked"],
        "guessed": rank["guessed"],
        "state": read_state(rank["pid"]),
        "doing": describe_call(rank["pid"], rank["pid"]),
        "looks": [look for look in looks if not isinstance(look, str)],
        "note": notes[0] if notes else "",
        "dump": dumps.get(rank["pid"], ""),
    }


def find_ranks(pids: list[int], slurm_job: str, everything: bool = False) -> list[dict[str, Any]]:
    """Ranks of the job: processes given, those below them, and those that share their launcher.

    A rank is a process with threads of a communication library, or one that was started with a rank's number in its
    environment. With `everything` also ranks of other jobs, which differ in their `job`.
    """
    parents = {pid: read_parent(pid) for pid in all_pids()}
    above = {pid: ancestors(pid, parents) for pid in parents}
    envs = {pid: read_env(pid) for pid in parents if is_python(pid)}
    told = {pid: find_rank(env) for pid, env in envs.items()}
    talks = {pid for pid in envs if has_group(pid)}
    # Launchers: a rank runs below them that has its own number, or that talks to others while they do not.
    leads = {p for pid in talks for p in above[pid]} - talks
    leads |= {p for pid in envs if told[pid] for p in above[pid] if p in envs and told[p] not in ("", told[pid])}
    ranks = []
    for pid, env in envs.items():
        # Workers of a rank inherit its environment; the first process with a rank is the rank itself.
        worker = any(p in envs and p not in leads and (p in talks or told[p]) for p in above[pid])
        if (pid in talks or (told[pid] and pid not in leads)) and not worker and not is_elsewhere(env):
            ranks.append(pid)
    spawned = {pid for pid in ranks if not told[pid] or any(told.get(p) == told[pid] for p in above[pid])}
    jobs = {pid: name_job(envs[pid]) or f"below {above[pid][0] if above[pid] else pid}" for pid in ranks}
    # A rank's parent is its launcher if siblings are ranks of the same job, so one process number is enough.
    launchers = {(parents[p], jobs[p]) for p in ranks if p in pids and parents[p] > 1}
    found = []
    for pid in sorted(ranks):
        asked = any(p in pids for p in (pid, *above[pid])) or any((p, jobs[pid]) in launchers for p in above[pid])
        asked = asked or bool(slurm_job and envs[pid].get("SLURM_JOB_ID") == slurm_job)
        if asked or everything:
            number = -1 if pid in spawned else int(told[pid].partition("=")[2])
            found.append({"pid": pid, "rank": number, "env": envs[pid], "job": jobs[pid], "asked": asked})
    number_spawned(found)
    return sorted(found, key=lambda r: r["rank"])


def number_spawned(ranks: list[dict[str, Any]]) -> None:
    """Numbers of ranks that were told theirs after their start: by the variables of their stacks, else in order."""
    for job in {r["job"] for r in ranks}:
        own = [r for r in ranks if r["job"] == job and r["rank"] < 0]
        told = [read_rank_variable(r["pid"]) for r in own]
        known = None not in told and len(set(told)) == len(told)
        for order, (rank, number) in enumerate(zip(own, told, strict=True)):
            rank["rank"] = number if known else order
            rank["guessed"] = not known
    for rank in ranks:
        rank.setdefault("guessed", False)


def find_rank(env: dict[str, str]) -> str:
    """The variable and the number that a process was started with as a rank, or nothing."""
    return next((f"{name}={env[name]}" for name in RANK_NAMES if env.get(name, "").isdigit()), "")


def read_rank_variable(pid: int) -> int | None:
    """The variable that names the rank, in the outermost function that has one; no other value is kept."""
    threads = ask_py_spy(pid, "--locals")
    for thread in threads if isinstance(threads, list) else ():
        for frame in reversed(thread.get("frames", [])):
            values = {v.get("name"): str(v.get("repr")) for v in frame.get("locals") or ()}
            spawned = frame.get("short_filename") == "torch/multiprocessing/spawn.py"
            for name in ("global_rank", "rank", *(("i",) if spawned else ())):
                if values.get(name, "").isdigit():
                    return int(values[name])
    return None


def has_group(pid: int) -> bool:
    """Whether a communication library runs threads in a process; a worker that was forked from a rank has none."""
    names = []
    for task in Path(f"/proc/{pid}/task").glob("*/comm"):
        try:
            names.append(task.read_text().lower())
        except OSError:
            continue  # a thread that has just ended
    return any(library in name for name in names for library in LIBRARIES)


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
    """An identifier that the ranks of one job share; empty where their environment has none."""
    for name in ("PRISM_ATTEMPT_KEY", "SLURM_JOB_ID", "RAY_JOB_ID"):
        if env.get(name):
            return f"{name}={env[name]}"
    return f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}".strip(":")


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
    wanted: tuple[str, ...] = (*RANK_NAMES, "SLURM", "MASTER_", "PRISM_ATTEMPT_KEY", "RAY_JOB_ID", "NCCL_RAS_ADDR")
    wanted += ("TORCH_FR_", "TORCH_NCCL_DEBUG_INFO")
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


def read_threads(pid: int) -> list[dict[str, Any]] | str:
    """py-spy's view of a process, with what the kernel does for each thread; or why there is none."""
    threads = ask_py_spy(pid)
    if isinstance(threads, str):
        return threads
    return [
        {
            "name": str(t.get("thread_name") or ""),
            "lock": bool(t.get("owns_gil")),
            "doing": describe_call(pid, int(t.get("os_thread_id") or pid)),
            "frames": [[f.get("name"), f.get("filename"), f.get("line")] for f in t.get("frames", [])],
        }
        for t in threads
    ]


def ask_py_spy(pid: int, *options: str) -> list[dict[str, Any]] | str:
    """The threads of a process, without pausing it; or why there are none."""
    try:
        # Next to the rank's own Python: in a virtual environment by its command, else by its file; or next to ours.
        started = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
        places = [Path(started), Path(os.readlink(f"/proc/{pid}/exe")), Path(sys.executable)]  # noqa: PTH115
    except OSError:
        places = [Path(sys.executable)]
    beside = [str(p.with_name("py-spy")) for p in places if p.is_absolute() and p.with_name("py-spy").exists()]
    tool = shutil.which("py-spy") or os.environ.get("PRISM_PY_SPY") or next(iter(beside), None)
    if tool is None:
        return "install py-spy for Python stacks"
    try:
        command = [tool, "dump", "--nonblocking", "--json", *options, "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STACK_S, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else f"py-spy failed: {done.stderr.strip()[:300]}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"


def describe_call(pid: int, thread: int) -> str:
    """What the kernel does for a thread, such as 'reads /data/shard-7'; empty where that cannot be seen."""
    try:
        words = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
    except OSError:
        return ""
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if not words or not words[0].isdigit() or column is None:
        return "computes" if words == ["running"] else ""
    told = next((name for name, numbers in CALLS.items() if int(words[0]) in numbers[column]), "")
    for kind, read in (("fd", name_file), ("path", read_path)):
        before, found, index = told.partition(f"{kind} ")
        if found:
            return before + read(pid, int(words[1 + int(index)], 16))
    return told or f"is in call {words[0]} of the kernel"


def name_file(pid: int, number: int) -> str:
    """The file, pipe or connection behind a file number."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
        if not name.startswith("socket:"):
            return name
        table = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    except OSError:
        return f"file {number}"
    remote = next((row[2] for row in table if len(row) > 9 and f"socket:[{row[9]}]" == name), "")
    address, _, port = remote.partition(":")
    if not address:
        return "a socket"
    octets = [str(byte) for byte in reversed(bytes.fromhex(address))]
    return f"a connection to {'.'.join(octets)}:{int(port, 16)}"


def read_path(pid: int, address: int) -> str:
    """A path that a process gave to the kernel."""
    try:
        with Path(f"/proc/{pid}/mem").open("rb") as memory:
            memory.seek(address)
            return memory.read(512).split(b"\0")[0].decode("utf-8", "replace")
    except (OSError, ValueError, OverflowError):
        return "a file"


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
