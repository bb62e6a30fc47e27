"""The process that writes one rank's checkpoints: started apart, so that it never runs the user's program again.

    python -P -c '...main()' SOCKET PARENT_PID CPUS

Orders arrive over a socket as open files: the order and the plan in one, the staged bytes in the other, so it does not
matter whether the staged files still have a name. When its trainer is gone, it writes what it was given, commits if it
is rank 0's, and leaves. It says nothing to anybody but its trainer.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch

from prism.recover.checkpoint.planning import SharePlan
from prism.recover.checkpoint.writer import PARTS_LIMIT_S, PartWriter, WriteJob, WriteOrder

_NICENESS = 10  # at 19 a host whose cores are all busy would hardly write at all
_ORPHAN_PARTS_LIMIT_S = 60.0
_ORPHAN_LIMIT_S = 300.0  # a process whose trainer is gone must end
_POLL_S = 0.5
_LENGTH = struct.Struct("<QQ")
MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One order as it arrived."""

    order: WriteOrder
    plan: bytes  # empty: the previous plan is still valid
    memory: mmap.mmap


class Trainer:
    """The trainer that this process writes for."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid

    @property
    def gone(self) -> bool:
        """Whether it has died: its sockets may live on in loader workers that it had forked."""
        return os.getppid() != self._pid

    def tell(self, **document: Any) -> None:
        """Answer, if the trainer still lives."""
        with contextlib.suppress(OSError):
            self._connection.send(json.dumps(document).encode())

    def next_delivery(self) -> Delivery | None:
        """Wait for an order; None when there will be no more."""
        while True:
            # Checked before the socket is read, so that the last orders of a dead trainer are still read.
            gone = self.gone
            ready, _, _ = select.select([self._connection], [], [], 0.0 if gone else _POLL_S)
            if ready:
                try:
                    _, descriptors, _, _ = socket.recv_fds(self._connection, MESSAGE_BYTES, 2)
                except ConnectionResetError:
                    continue  # It died with unread answers, which the kernel reports once; its orders are still there.
                return open_delivery(descriptors) if len(descriptors) == 2 else None
            if gone:
                return None

    def parts_limit_s(self) -> float:
        """How long to wait for the other ranks' shares."""
        return _ORPHAN_PARTS_LIMIT_S if self.gone else PARTS_LIMIT_S


def pack_delivery(order: WriteOrder, plan: bytes) -> int:
    """An open file in memory with an order and its plan; the caller closes it."""
    text = json.dumps(order.to_document()).encode()
    descriptor = os.memfd_create("prism-order", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as handle:
        handle.write(_LENGTH.pack(len(text), len(plan)) + text + plan)
    return descriptor


def open_delivery(descriptors: list[int]) -> Delivery:
    """Read what `pack_delivery` wrote, and map the staged bytes."""
    try:
        with os.fdopen(os.dup(descriptors[0]), "rb") as handle:
            handle.seek(0)
            text_bytes, plan_bytes = _LENGTH.unpack(handle.read(_LENGTH.size))
            order = WriteOrder.from_document(json.loads(handle.read(text_bytes)))
            plan = handle.read(plan_bytes)
        memory = mmap.mmap(descriptors[1], 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return Delivery(order=order, plan=plan, memory=memory)


def main() -> None:
    """Write until the trainer has no more to write."""
    number, parent, cpus = sys.argv[1:4]
    settle_background_process(frozenset(int(cpu) for cpu in cpus.split(",")))
    trainer = Trainer(socket.socket(fileno=int(number)), int(parent))
    threading.Thread(target=_leave_in_time, args=(trainer,), daemon=True).start()
    trainer.tell(kind="ready")
    writer = PartWriter()
    plan: SharePlan | None = None
    while (delivery := trainer.next_delivery()) is not None:
        if delivery.plan:
            plan = SharePlan.from_bytes(delivery.plan)
        assert plan is not None
        job = WriteJob(order=delivery.order, plan=plan, memory=delivery.memory)
        job.serve(writer, trainer.tell, trainer.parts_limit_s)
        del delivery, job


def _leave_in_time(trainer: Trainer) -> None:
    while not trainer.gone:
        time.sleep(_POLL_S)
    time.sleep(_ORPHAN_LIMIT_S)
    os._exit(0)


def settle_background_process(trainer_cpus: frozenset[int]) -> None:
    """Use low priority and, if the trainer is bound to cores, other cores; ignore the job's signals."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if os.nice(0) < _NICENESS:
        os.nice(_NICENESS - os.nice(0))
    others = set(range(os.cpu_count() or 1)) - trainer_cpus
    if others:
        with contextlib.suppress(OSError):  # a container may allow none of them
            os.sched_setaffinity(0, others)
    torch.set_num_threads(1)
    torch.serialization.set_crc32_options(False)  # every byte is hashed here already


if __name__ == "__main__":
    main()
