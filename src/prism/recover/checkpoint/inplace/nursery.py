"""A process that has imported torch and forks members, which then need not import it.

    python -m prism.recover.checkpoint.inplace.nursery SOCKET PROGRAM...

Takes a message per member to start (its name and variables), and answers when it has started and when it has ended. It
has no threads of its own and touches no device, so that a member may use both as if it had booted alone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 16


def can_fork(program: list[str]) -> bool:
    """Whether a program is a script or a module; with other flags of Python it needs an interpreter of its own."""
    return not program[0].startswith("-") or (program[0] == "-m" and len(program) > 1)


class Nursery:
    """The members that were forked here."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(launcher, selectors.EVENT_READ)
        self._members: dict[int, tuple[str, int]] = {}  # name and process id, by the descriptor that tells its end

    def serve(self) -> bool:
        """Fork and collect until the launcher is gone: False here, True in each member."""
        while True:
            for key, _ in self._waiting.select():
                if key.fd in self._members:
                    self._collect(key.fd)
                    continue
                message = self._launcher.recv(MESSAGE_BYTES)
                if not message:
                    for _, pid in self._members.values():
                        os.kill(pid, signal.SIGTERM)
                    return False
                if self._fork(**json.loads(message)):
                    return True

    def _fork(self, name: str, variables: dict[str, str]) -> bool:
        pid = os.fork()
        if pid == 0:
            for descriptor in self._members:
                os.close(descriptor)
            self._waiting.close()
            self._launcher.close()
            os.environ |= variables
            return True
        descriptor = os.pidfd_open(pid)
        self._members[descriptor] = (name, pid)
        self._waiting.register(descriptor, selectors.EVENT_READ)
        self._tell(name=name, pid=pid)
        return False

    def _collect(self, descriptor: int) -> None:
        self._waiting.unregister(descriptor)
        os.close(descriptor)
        name, pid = self._members.pop(descriptor)
        os.waitpid(pid, 0)
        self._tell(name=name, pid=None)

    def _tell(self, **document: Any) -> None:
        self._launcher.send(json.dumps(document).encode())


def run_program(words: list[str]) -> None:
    """What `python WORDS` does, in this interpreter."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Import torch, then fork members on request."""
    launcher = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the members through the launcher
    importlib.import_module(f"{__package__}.member")  # and torch with it
    gc.collect()
    gc.freeze()  # so that the garbage collector of members skips these objects
    if Nursery(launcher).serve():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_program(sys.argv[2:])


if __name__ == "__main__":
    main()
