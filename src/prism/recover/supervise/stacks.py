"""The stacks of a hung attempt's processes: from py-spy, or from /proc without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_MAX_PROCESSES = 32
_TIMEOUT_S = 20.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What py-spy printed about a process."""

    pid: int
    rank: int | None
    state: str
    text: str


def read_stacks_of(pids: list[int]) -> list[Stack]:
    """The stacks of some processes, several at a time."""
    tool = find_py_spy()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        texts = list(pool.map(lambda pid: _stack(tool, pid), pids[:_MAX_PROCESSES]))
    return [Stack(pid=p, rank=_rank(p), state=_state(p), text=t) for p, t in zip(pids, texts, strict=False)]


def take_stacks(pids: list[int], output: Path, ranks: Mapping[int, int] | None = None) -> int:
    """Write the stacks of Python processes to a file; how many were taken. `ranks` by process where they are known."""
    known = {pid: rank for pid in pids if (rank := (ranks or {}).get(pid, _rank(pid))) is not None}
    python = [pid for pid in pids if "python" in _command(pid)]
    chosen = sorted(python, key=lambda pid: (pid not in known, pid))[:_MAX_PROCESSES]
    heads = {pid: f"== process {pid}" + (f" rank {known[pid]}" if pid in known else "") for pid in chosen}
    parts = [f"{heads[s.pid]}: {_command(s.pid)}\nstate: {s.state}\n{s.text}\n" for s in read_stacks_of(chosen)]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(parts) or "no Python process of this attempt was left on this machine\n")
    return len(parts)


def find_py_spy() -> str | None:
    """py-spy on the path, or beside this Python."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)


def _stack(tool: str | None, pid: int) -> str:
    if tool is None:
        return f"waits in: {_read(pid, 'wchan') or 'unknown'} (install py-spy for Python stacks)"
    try:
        # --nonblocking does not pause the process; one that is stopped or in the kernel would never answer.
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    return done.stdout if done.returncode == 0 else f"py-spy failed: {done.stderr.strip()}"


def _state(pid: int) -> str:
    lines = _read(pid, "status").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), "gone")


def _rank(pid: int) -> int | None:
    """The rank that a process was started as, by torchrun's or Slurm's variable."""
    pairs = dict(entry.partition("=")[::2] for entry in _read(pid, "environ").split("\0"))
    told = next((pairs[name] for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK") if name in pairs), "")
    return int(told) if told.isdecimal() else None


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace("\0", " ").strip()[:200]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
