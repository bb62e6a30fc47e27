"""Several sets of processes on one machine that work in turns: while one set runs, all others wait and use no core."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from prism.emulate.launch import choose_core

_GO, _DONE = b"g", b"d"
_START_S, _BLOCK_S = 240.0, 120.0


class Turns:
    """The side that says who may go on. A member that leaves has had its last turn."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="turns-")
        self.address = str(Path(self._folder.name) / "gate")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(512)
        self._members: dict[str, list[socket.socket]] = {}

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.dismiss()
        self._listener.close()
        self._folder.cleanup()

    def dismiss(self) -> None:
        """Nobody gets another turn: those at the gate end."""
        for member in (m for members in self._members.values() for m in members):
            member.close()

    def gather(self, expected: dict[str, int], are_well: Callable[[], bool]) -> None:
        """Wait until every set has all its members at the gate."""
        until = time.monotonic() + _START_S
        self._listener.settimeout(1)
        while any(len(self._members.get(name, ())) < count for name, count in expected.items()):
            try:
                member, _ = self._listener.accept()
            except TimeoutError:
                if not are_well() or time.monotonic() > until:
                    raise SystemExit(f"came: { {n: len(m) for n, m in self._members.items()} } of {expected}") from None
                continue
            member.settimeout(_START_S)
            self._members.setdefault(member.recv(200).decode(), []).append(member)
        for name in expected:
            self._wait(name)

    def run(self, name: str) -> None:
        """Let one set work until all its members are back at the gate, or gone."""
        for member in self._members[name]:
            member.settimeout(_BLOCK_S)
            member.sendall(_GO)
        self._wait(name)

    def _wait(self, name: str) -> None:
        for member in self._members[name]:
            with contextlib.suppress(ConnectionResetError):  # it has ended
                member.recv(1)


class Dismissed(SystemExit):
    """No turn will come any more."""


class Gate:
    """The side that waits."""

    def __init__(self, address: str, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._socket.sendall(name.encode())

    def wait(self) -> None:
        """Report back and wait for the next turn."""
        self._socket.sendall(_DONE)
        if not self._socket.recv(1):
            raise Dismissed


def pin() -> None:
    """One core for all threads of this process, by its LOCAL_RANK; neighbours are often one core's threads.

    To be called once everything is started: a hundred processes that import torch on the same few cores take minutes.
    """
    core = choose_core(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def probe_pinning() -> bool:
    """Whether two busy processes on one core really share it; some sandboxes take the mask and ignore it."""
    return _time_on_one_core(2) > 1.4 * _time_on_one_core(1)


def _time_on_one_core(count: int) -> float:
    """The quickest of several equal processes that were given the same core."""
    core = min(os.sched_getaffinity(0))
    burn = f"import os, time; os.sched_setaffinity(0, {{{core}}}); began = time.perf_counter(); x = 0\n"
    burn += "while x < 2_000_000: x += 1\nprint(time.perf_counter() - began)"
    runs = [subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) for _ in range(count)]
    return min(float(run.communicate()[0]) for run in runs)
