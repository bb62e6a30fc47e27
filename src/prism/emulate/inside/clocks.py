"""Clocks for the work between communication calls: a thread's own time on CPU, events on CUDA streams."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any, Protocol

import torch

from prism.emulate.inside.streams import record_event

_LONG_GAP_NS = 500_000  # shorter stretches off the core are noise, and not worth asking the kernel about


class Clock(Protocol):
    """Marks are taken while the program runs and become times when all is over."""

    def mark(self, stream: Any = None) -> int:
        """Note a point on a stream, the current one if none is named; returns its number."""
        ...

    def stream(self, stream: Any = None) -> int:
        """A number for a stream, the current one if none is named; 0 is the first one met."""
        ...

    def elapsed_ns(self, first: int, second: int) -> int:
        """Working time between two marks of one stream."""
        ...

    def wall_ns(self, first: int, second: int) -> int:
        """All the time between two marks of one stream."""
        ...


class ThreadClock:
    """CPU: the thread's own running time plus the time it slept on purpose; waiting for a core is left out.

    Sleeping shows as voluntary switches of context. Where the thread was also pushed off its core in the same stretch,
    the two cannot be told apart and only running time counts.
    """

    def __init__(self) -> None:
        self._wall: list[int] = []
        self._busy: list[int] = []
        self._switches: list[tuple[int, int]] = []
        self._known = _switches()

    def mark(self, stream: Any = None) -> int:
        """Read the thread's clocks."""
        wall, busy = time.perf_counter_ns(), time.thread_time_ns()
        if self._wall and (wall - self._wall[-1]) - (busy - self._busy[-1]) > _LONG_GAP_NS:
            self._known = _switches()
        self._wall.append(wall)
        self._busy.append(busy)
        self._switches.append(self._known)
        return len(self._wall) - 1

    def stream(self, stream: Any = None) -> int:
        """The CPU is one stream."""
        return 0

    def elapsed_ns(self, first: int, second: int) -> int:
        """Running and sleeping time; with several threads the wall is all that can be read."""
        wall = self._wall[second] - self._wall[first]
        busy = self._busy[second] - self._busy[first]
        if torch.get_num_threads() > 1 or busy < 0:  # busy < 0: the marks are of two threads
            return max(wall, 0)
        gave_up, pushed_off = (b - a for a, b in zip(self._switches[first], self._switches[second], strict=True))
        slept = wall - busy
        return busy + (slept if slept > _LONG_GAP_NS and gave_up and not pushed_off else 0)

    def wall_ns(self, first: int, second: int) -> int:
        """By the clock on the wall."""
        return max(0, self._wall[second] - self._wall[first])


class StreamClock:
    """CUDA: timing events on the stream that is current."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._streams: dict[int, int] = {}
        self._lock = threading.Lock()

    def mark(self, stream: Any = None) -> int:
        """Record a timing event; the host does not wait."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        record_event(event, stream or torch.cuda.current_stream())
        with self._lock:
            self._events.append(event)
            return len(self._events) - 1

    def stream(self, stream: Any = None) -> int:
        """Streams are numbered as they are met."""
        handle = int((stream or torch.cuda.current_stream()).cuda_stream)
        return self._streams.setdefault(handle, len(self._streams))

    def elapsed_ns(self, first: int, second: int) -> int:
        """Time between two events; asks only after the device is done."""
        return max(0, round(float(self._events[first].elapsed_time(self._events[second])) * 1e6))

    wall_ns = elapsed_ns


def _switches() -> tuple[int, int]:
    """How often this thread gave its core up, and how often it was pushed off."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw, usage.ru_nivcsw
