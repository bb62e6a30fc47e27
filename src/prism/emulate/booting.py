"""Processes of live ranks: forked from one that booted the script once, or started one by one where that fails."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from prism.emulate.inside.plan import PLAN_VARIABLE, RunPlan
from prism.emulate.journal import Journals
from prism.errors import ScriptError

_END_S = 5.0  # for the process that forks to remove what the script made before the ranks


class Process(Protocol):
    """A live rank's process."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """The exit code, as far as it is known."""
        ...

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...

    def wait(self) -> int | None:
        """Wait for its end."""
        ...


class Boot:
    """Runs the script until it asks for its rank, then forks ranks from there on request."""

    def __init__(self, script: tuple[str, ...], plan: RunPlan, folder: Path, journals: Journals) -> None:
        self._script = script
        self.journals = journals
        self._folder = folder
        self._log = folder / "boot.log"
        self._pids: queue.Queue[int] = queue.Queue()
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._ended_early: tuple[str, str] | None = None
        self.why_not = ""  # why ranks cannot be forked
        self._on_gpu = False
        self._control, theirs = _make_pipe()
        path = folder / "boot.plan.json"
        path.write_text(plan.to_json())
        environment = _environment(path)
        # What torchrun sets alike for every rank may be read before the fork.
        environment.update({k: v for k, v in plan.environment(0).items() if not k.endswith("RANK")})
        environment["PRISM_EMULATE_CONTROL"] = str(theirs.fileno())
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        with self._log.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "prism.emulate.inside.entry", *script],
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        threading.Thread(target=self._listen, daemon=True).start()

    def has_gpu(self) -> bool:
        """Whether ranks will find a GPU, as far as it is known before one runs; waits until the script has booted."""
        self._ready.wait()
        return self._on_gpu

    def start(self, plan: Path, log: Path) -> Process:
        """A process for one rank."""
        self._ready.wait()
        if self._ended_early is not None:
            self._fail_early()
        if self.why_not or self._process.poll() is not None:
            return self._start_alone(plan, log)
        with self._lock:
            self._control.send(("start", str(plan), str(log)))
            return Forked(self._pids.get(), self)

    def kill(self, pid: int) -> None:
        """End a forked rank now."""
        with self._lock, contextlib.suppress(OSError):
            self._control.send(("kill", pid))

    def close(self) -> None:
        """End the process that forks; children end with it."""
        if self._ready.is_set() and self._process.poll() is None:
            with self._lock, contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._control.send(("end",))
                self._process.wait(_END_S)
        self._control.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def code_of(self, pid: int) -> int | None:
        """How a forked rank ended; None while it runs."""
        if self._process.poll() is not None:
            return self._codes.get(pid, -signal.SIGKILL)
        return self._codes.get(pid)

    def _listen(self) -> None:
        while True:
            try:
                what, *values = self._control.recv()
            except (EOFError, OSError, TypeError):
                self._ready.set()
                return
            if what == "pid":
                self._pids.put(values[0])
            elif what == "ended":
                self._codes[values[0]] = values[1]
            elif what == "ended early":
                self._ended_early = (values[0], values[1])
                self._ready.set()
            else:
                self.why_not = values[0] if what == "cannot" else ""
                self._on_gpu = what == "ready" and values[0]
                self._ready.set()

    def _fail_early(self) -> None:
        assert self._ended_early is not None
        status, reason = self._ended_early
        if status == "ended":
            raise ScriptError(
                "the script ended without asking for its rank and never called a collective; there is nothing to "
                "emulate (does it use torch.distributed?)"
            )
        output = self._log.read_text(errors="replace")
        raise ScriptError(f"rank 0 failed in the script: {reason}" if status == "crashed" else reason, output)

    def _start_alone(self, plan: Path, log: Path) -> Process:
        with log.open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "prism.emulate.inside.entry", *self._script],
                env=_environment(plan),
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )


class Forked:
    """A rank that was forked; its parent says when it ends."""

    def __init__(self, pid: int, boot: Boot) -> None:
        self.pid = pid
        self._boot = boot

    @property
    def returncode(self) -> int | None:
        """How it ended."""
        return self._boot.code_of(self.pid)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.returncode

    def kill(self) -> None:
        """End it now."""
        self._boot.kill(self.pid)

    def wait(self) -> int | None:
        """Its parent reaps it; nobody has to wait."""
        return self.returncode


def _make_pipe() -> tuple[Connection, Connection]:
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())


def _environment(plan: Path) -> dict[str, str]:
    environment = {**os.environ, PLAN_VARIABLE: str(plan)}
    # torch reads this when it is imported; torchrun sets it to 1 where it is not set.
    environment.setdefault("OMP_NUM_THREADS", "1")
    source = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    return environment
