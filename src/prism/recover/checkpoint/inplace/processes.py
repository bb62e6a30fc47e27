"""The members of one host as processes: forked by a nursery, or each booted alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod

from prism.errors import PrismError
from prism.recover.checkpoint.inplace.board import MEMBER, STORE
from prism.recover.checkpoint.inplace.nursery import MESSAGE_BYTES, can_fork

_POLL_S = 0.05


class Host(ABC):
    """The processes of this host, by the names of their members."""

    def __init__(self, address: str, index: int) -> None:
        self._address = address
        self._index = index
        self._started = 0

    def start(self) -> None:
        """Boot one more member."""
        self._started += 1
        name = f"{self._index}-{self._started}"
        self._boot(name, {STORE: self._address, MEMBER: name})

    @abstractmethod
    def _boot(self, name: str, variables: dict[str, str]) -> None: ...

    @abstractmethod
    def collect_dead(self) -> list[str]:
        """Members whose processes have ended since the last call."""

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that are known to run."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether every member has ended."""

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, limit_s: float) -> None:
        """Wait for the members to leave; those that do not are ended."""
        deadline = time.monotonic() + limit_s
        while not self.empty:
            self.collect_dead()
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
            time.sleep(_POLL_S)


class BootedHost(Host):
    """Every member is an interpreter that imports everything itself."""

    def __init__(self, program: list[str], address: str, index: int) -> None:
        super().__init__(address, index)
        self._program = program
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def _boot(self, name: str, variables: dict[str, str]) -> None:
        self._children[name] = subprocess.Popen([sys.executable, *self._program], env=os.environ | variables)

    def collect_dead(self) -> list[str]:
        """Members whose processes have ended since the last call."""
        dead = [name for name, child in self._children.items() if child.poll() is not None]
        for name in dead:
            del self._children[name]
        return dead

    def pids(self) -> list[int]:
        """The processes that run."""
        return [child.pid for child in self._children.values()]

    @property
    def empty(self) -> bool:
        """Whether every member has ended."""
        return not self._children


class ForkedHost(Host):
    """One process imports torch; members are its forks."""

    def __init__(self, program: list[str], address: str, index: int) -> None:
        super().__init__(address, index)
        self._connection, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", f"{__package__}.nursery", str(there.fileno()), *program]
        self._nursery = subprocess.Popen(command, pass_fds=[there.fileno()])
        there.close()
        self._connection.setblocking(False)
        self._members: dict[str, int | None] = {}  # None: asked for, not forked yet

    def _boot(self, name: str, variables: dict[str, str]) -> None:
        self._members[name] = None
        with contextlib.suppress(OSError):  # collect_dead finds out that the nursery is gone
            self._connection.send(json.dumps({"name": name, "variables": variables}).encode())

    def collect_dead(self) -> list[str]:
        """Members whose processes have ended since the last call."""
        dead = []
        with contextlib.suppress(BlockingIOError):
            while message := self._connection.recv(MESSAGE_BYTES):
                told = json.loads(message)
                self._members[told["name"]] = told["pid"]
                if told["pid"] is None:
                    dead.append(told["name"])
                    del self._members[told["name"]]
            self.signal(signal.SIGTERM)
            raise PrismError(
                "the process that starts the members has ended; its last lines are above. Try --no-preload"
            )
        return dead

    def pids(self) -> list[int]:
        """The processes that run."""
        return [pid for pid in self._members.values() if pid is not None]

    @property
    def empty(self) -> bool:
        """Whether every member has ended."""
        return not self._members

    def wait(self, limit_s: float) -> None:
        """Wait for the members, then for the nursery."""
        super().wait(limit_s)
        self._connection.close()
        self._nursery.wait()


def open_host(program: list[str], address: str, index: int, *, preload: bool) -> Host:
    """A host whose members start in the quickest way that the program allows."""
    kind = ForkedHost if preload and can_fork(program) else BootedHost
    return kind(program, address, index)
