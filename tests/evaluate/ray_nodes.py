"""A Ray cluster of two nodes on this machine, begun with `ray start` as its users do, asking for a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

_START_S = 600.0


@dataclass
class RayNodes:
    """`ray start --block` processes; each has a shelf of its own, as two machines have."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ray-")))  # sockets need a short path
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a user's shell holds besides: the token alone, since showing it is Prism's part."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return kept | {"RAY_AUTH_TOKEN": self.token}

    def start(self) -> None:
        """A head, then a second node."""
        port = self.address.rpartition(":")[2]
        self._start("--head", "--port", port, "--include-dashboard=false")
        self.add()

    def add(self) -> None:
        """One more node."""
        self._start("--address", self.address)

    def shelf(self, node: int) -> Path:
        """Where a node keeps its copies."""
        return self.folder / f"shelf-{node}"

    def raylet(self, node: int) -> int:
        """The process id of a node's raylet."""
        found = [pid for pid, words in self._raylets().items() if f"--temp_dir={self._temporary(node)}" in words]
        assert len(found) == 1, found
        return found[0]

    def node_id(self, node: int) -> str:
        """What Ray calls a node."""
        words = self._raylets()[self.raylet(node)]
        return next(word for word in words if word.startswith("--node_id=")).partition("=")[2]

    def kill(self, node: int) -> None:
        """End a node's raylet without a word."""
        os.kill(self.raylet(node), signal.SIGKILL)

    def stop(self) -> None:
        """End every process that was started here."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in self._left():  # a start that failed half-way, or a node whose `ray start` was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _temporary(self, node: int) -> Path:
        return self.folder / f"n{node}"

    def _start(self, *words: str) -> None:
        node = len(self.processes)
        size = ["--num-cpus", "2", "--object-store-memory", str(80 << 20), "--disable-usage-stats"]
        log = (self.folder / f"log-{node}").open("wb")
        with log:
            self.processes.append(
                subprocess.Popen(
                    [str(Path(sys.executable).parent / "ray"), "start", "--block", *words, *size,
                     "--temp-dir", str(self._temporary(node))],
                    env=self.environment | {"RAY_AUTH_MODE": "token", "PRISM_SHELF": str(self.shelf(node))},
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )  # fmt: skip
        end = time.monotonic() + _START_S
        while "Ray runtime started" not in (told := (self.folder / f"log-{node}").read_text()):
            assert self.processes[-1].poll() is None and time.monotonic() < end, told
            time.sleep(0.1)

    def _left(self) -> list[int]:
        """Processes that still run with the environment of these nodes."""
        ours = f"PRISM_SHELF={self.folder}/shelf-".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if ours in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    @staticmethod
    def _raylets() -> dict[int, list[str]]:
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if words[0].endswith("raylet/raylet"):
                found[int(path.parent.name)] = words
        return found
