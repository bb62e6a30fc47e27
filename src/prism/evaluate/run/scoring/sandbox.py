"""Run a program that a model wrote: limited in time, memory, files and processes, with no network and no privileges.

The program can still read files that everybody may read: a sandbox for mistakes and mischief, not for secrets.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from prism.errors import PrismError
from prism.evaluate.run.scoring import sandbox_child

Ending = Literal["passed", "failed", "timeout", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Limits of one program."""

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    processes: int = 64
    allow_network: bool = False  # where the kernel allows no namespaces: run anyway, told in the docs


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a program ended, and the last line it wrote on stderr."""

    ending: Ending
    text: str

    @property
    def passed(self) -> bool:
        """Whether it ran to its end."""
        return self.ending == "passed"


def run_sandboxed(program: str, config: SandboxConfig) -> SandboxResult:
    """Run Python source; raises PrismError where it cannot be kept off the network."""
    if not config.allow_network and (reason := why_no_isolation()) is not None:
        raise PrismError(
            f"code of a model is not run with a network at hand ({reason}); run as root or allow namespaces"
        )
    with tempfile.TemporaryDirectory(prefix="prism-sandbox-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)  # the program runs as nobody where we are root
        return _run(program, config, folder)


@cache
def why_no_isolation() -> str | None:
    """Why a process cannot be cut off from the network here, or None; found out by doing it once."""
    if sys.platform != "linux":
        return "it needs Linux namespaces"
    with tempfile.TemporaryDirectory(prefix="prism-sandbox-") as folder:
        Path(folder).chmod(0o777)
        done = _run("", SandboxConfig(), folder)
    return None if done.passed else f"namespaces are refused: {done.text}"


def _run(program: str, config: SandboxConfig, folder: str) -> SandboxResult:
    # A code that the program cannot know: one that exits by itself, with 0 say, has not run its test.
    done = 64 + secrets.randbelow(60)
    limits = (config.cpu_s, config.memory_bytes, config.file_bytes, config.processes, int(config.allow_network), done)
    source = Path(sandbox_child.__file__).read_text()  # as text: nobody may not be able to read our folder
    process = subprocess.Popen(
        [_interpreter(), "-I", "-S", "-c", source, *map(str, limits)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": folder}, start_new_session=True,
    )  # fmt: skip
    try:
        _, told = process.communicate(program, timeout=config.wall_s)
    except subprocess.TimeoutExpired:
        return SandboxResult(ending="timeout", text=f"stopped after {config.wall_s:g} s")
    finally:
        # The child dies with its parent, and with it, as the first of its namespace, all that it started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.close() if stream else None
    last = (told.strip().splitlines() or [""])[-1][:500]
    if process.returncode == done:
        return SandboxResult(ending="passed", text="")
    if process.returncode == sandbox_child.TIME_CODE:
        return SandboxResult(ending="timeout", text=f"used {config.cpu_s} s of CPU")
    return SandboxResult(ending="memory" if "MemoryError" in last else "failed", text=last)


def _interpreter() -> str:
    """A Python that every user can start; the one of a virtual environment may lie in a closed folder."""
    for path in (sys.executable, "/usr/bin/python3"):
        if Path(path).exists() and _open_to_all(Path(path).resolve()):
            return path
    return sys.executable


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)
