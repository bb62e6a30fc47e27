"""Which GPUs of this machine other programs use, so that an evaluation beside training keeps off them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable

from prism.machine.processes import read_stat

_EVERY_S = 2.0
_TIMEOUT_S = 10.0


class BusyGpus:
    """Asks the driver every two seconds; where it does not answer, what it said last holds."""

    def __init__(
        self, ask: Callable[[str, str], str] | None = None, clock: Callable[[], float] = time.monotonic, own: int = 0
    ) -> None:
        self._ask = ask or _ask_driver
        self._clock = clock
        self._own = own or os.getpid()
        self._asked_s = float("-inf")
        self._busy: frozenset[int] = frozenset()

    def __call__(self) -> frozenset[int]:
        """GPUs, by number, that hold a process which this evaluation did not start."""
        if self._clock() - self._asked_s >= _EVERY_S:
            self._asked_s = self._clock()
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # then nothing changes
                self._busy = self._look()
        return self._busy

    def _look(self) -> frozenset[int]:
        numbers = dict(_rows(self._ask("--query-gpu", "uuid,index")))
        found = set()
        for uuid, pid in _rows(self._ask("--query-compute-apps", "gpu_uuid,pid")):
            if uuid in numbers and not is_descendant(int(pid), self._own):
                found.add(int(numbers[uuid]))
        return frozenset(found)


def is_descendant(pid: int, ancestor: int) -> bool:
    """Whether a process was started, however indirectly, by another; one that is gone was not."""
    for _ in range(64):
        if pid == ancestor:
            return True
        fields = read_stat(pid)
        if not fields or int(fields[1]) <= 1:
            return False
        pid = int(fields[1])
    return False


def _rows(text: str) -> list[tuple[str, str]]:
    pairs = [line.split(",", 1) for line in text.splitlines() if "," in line]
    return [(first.strip(), second.strip()) for first, second in pairs]


def _ask_driver(what: str, columns: str) -> str:
    command = ["nvidia-smi", f"{what}={columns}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
