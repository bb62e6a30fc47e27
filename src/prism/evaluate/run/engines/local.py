"""Workers as processes of this machine, for where Ray is not installed."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prism.evaluate.run.engines.engine import EngineNode, Gone, Job, Report, Returned, WorkerSpec

_GRACE_S = 5.0


class LocalEngine:
    """One process per worker, spoken to over a socket; a worker ends when this process does."""

    name = "local"

    def __init__(self, nodes: Sequence[EngineNode] | None = None, log: Path | None = None) -> None:
        """`log` is where all that workers print is appended to; without it, it is lost."""
        self._nodes = tuple(nodes) if nodes is not None else (describe_machine(),)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._connections: dict[str, Connection[Any, Any]] = {}
        self._lost: list[str] = []  # given a job after they were gone
        self._log = log or Path(os.devnull)
        self._where = f"; {log} holds what it printed" if log else ""

    def nodes(self) -> Sequence[EngineNode]:
        """This machine, or those that a test made up."""
        return self._nodes

    def start(self, spec: WorkerSpec) -> None:
        """Start a Python that runs jobs."""
        ours, theirs = socket.socketpair()
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.gpus))}
        with theirs, self._log.open("ab") as printed:
            self._processes[spec.id] = subprocess.Popen(
                [sys.executable, "-P", "-m", "prism.evaluate.run.engines.local_worker", str(theirs.fileno()), spec.id],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env=os.environ | gpus | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the coordinator, which then ends its workers
            )
        self._connections[spec.id] = Connection(ours.detach())

    def submit(self, worker: str, job: Job) -> None:
        """Send a job; a worker that is gone is found by `wait`."""
        if (connection := self._connections.get(worker)) is None:
            self._lost.append(worker)
            return
        with contextlib.suppress(OSError):
            connection.send(job)

    def wait(self, timeout_s: float) -> list[Report]:
        """Collect what the sockets have, at the latest after `timeout_s`."""
        if self._lost:
            lost, self._lost = self._lost, []
            return [Gone(worker=worker, text="before its job") for worker in lost]
        names = {connection: worker for worker, connection in self._connections.items()}
        reports: list[Report] = []
        for connection in multiprocessing.connection.wait(list(names), timeout_s):
            worker = names[connection]  # type: ignore[index]
            try:
                reports.append(Returned(worker=worker, outcome=self._connections[worker].recv()))
            except (EOFError, OSError):
                code = self._processes[worker].wait()
                self._forget(worker)
                reports.append(Gone(worker=worker, text=_describe_exit(code) + self._where))
        return reports

    def stop(self, worker: str) -> None:
        """Kill a worker with all that it started."""
        process = self._processes.get(worker)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._forget(worker)

    def close(self) -> None:
        """Let workers end by themselves, so that they clear what they hold; kill those that do not."""
        for connection in self._connections.values():
            connection.close()
        for process in self._processes.values():
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()
        self._connections.clear()

    def _forget(self, worker: str) -> None:
        self._connections.pop(worker).close()
        self._processes.pop(worker)


def describe_machine() -> EngineNode:
    """This machine as a node; its GPUs are counted without touching them."""
    cpus = len(os.sched_getaffinity(0))
    return EngineNode(id=socket.gethostname(), cpus=cpus, gpus=count_gpus())


def count_gpus() -> int:
    """GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def _describe_exit(code: int) -> str:
    return f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
