"""The connections of a process group, and how to end a collective that waits for a rank that is gone.

NCCL can be aborted. gloo cannot: a rank that waits for a living peer, which itself waits for a dead one, would wait for
its timeout. So the sockets that a group opened are remembered, and shut down when the group is given up; gloo then
raises in the waiting thread at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


class Connections:
    """Sockets that were opened while groups were made."""

    def __init__(self) -> None:
        self._inodes: set[int] = set()
        self._before: frozenset[int] | None = None  # sockets that were open when a recording began

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Remember what is opened inside; no other thread may open sockets meanwhile."""
        self._before = frozenset(_sockets())
        try:
            yield
        finally:
            self._inodes |= set(_sockets()) - self._before
            self._before = None

    @contextlib.contextmanager
    def recording_groups(self) -> Iterator[None]:
        """Remember also the sockets of groups that the program makes itself."""
        plain: Callable[..., Any] = dist.new_group

        def new_group(*args: Any, **kwargs: Any) -> Any:
            with self.recorded():
                return plain(*args, **kwargs)

        dist.new_group = distributed_c10d.new_group = new_group
        try:
            yield
        finally:
            dist.new_group = distributed_c10d.new_group = plain

    def shut_down(self) -> None:
        """End every collective that is under way in this process."""
        with contextlib.suppress(Exception):  # no group yet, or a backend that has nothing to abort
            distributed_c10d._abort_process_group()
        before = self._before  # a group that is still being made waits for a rank that may be gone
        for inode, descriptor in _sockets().items():
            if inode in self._inodes or (before is not None and inode not in before):
                _shut(descriptor)


def _sockets() -> dict[int, int]:
    """Open sockets of this process: descriptors by inode."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            about = os.fstat(int(entry.name))
            if stat.S_ISSOCK(about.st_mode):
                found[about.st_ino] = int(entry.name)
    return found


def _shut(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        # gloo ends the process when a socket on which it listens is shut down.
        if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            one.shutdown(socket.SHUT_RDWR)
