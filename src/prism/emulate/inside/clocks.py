"""Clocks for the work between communication calls: a thread's own time on CPU, events on CUDA streams."""

from __future__ import annotations

import multiprocessing.process
import resource
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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

    def is_aside(self, stream: int) -> bool:
        """Whether a stream is another thread's, which runs when it likes."""
        ...


@dataclass(frozen=True, slots=True)
class _Standing:
    """Why a thread does not run: how often it gave its core up or lost it, and how long it waited for one."""

    gave_up: int
    pushed_off: int
    delay_ns: int | None  # None where the kernel does not say
    helpers: Mapping[int, int] = field(default_factory=dict)  # delays of processes it started, such as loaders of data
    ended_ns: int = 0  # processor time of those that have ended

    def sleep_since(self, before: _Standing, slept_ns: int) -> int:
        """How much of the time off the core was sleep: what this thread or a helper waited for a core is taken off."""
        if self.gave_up <= before.gave_up:
            return 0
        if before.delay_ns is not None and self.delay_ns is not None:
            slept_ns -= self.delay_ns - before.delay_ns
            slept_ns -= max((ns - before.helpers.get(pid, 0) for pid, ns in self.helpers.items()), default=0)
        elif self.pushed_off > before.pushed_off:
            return 0
        if before.helpers.keys() - self.helpers.keys():
            # What a helper that has ended waited for a core is unknown, but it ran no longer than in all its life.
            slept_ns = min(slept_ns, self.ended_ns - before.ended_ns)
        return slept_ns if slept_ns > _LONG_GAP_NS else 0


class ThreadClock:
    """CPU: the thread's own running time plus the time it slept on purpose; waiting for a core is left out.

    Sleeping shows as voluntary switches of context. What the thread, or a process that it sleeps for, waited for a core
    is taken off. Where the kernel does not say how long that was, sleep counts only if the thread was never pushed off.
    Other threads, such as one that saves a checkpoint, are streams of their own; they idle between tasks, so that their
    sleep does not count. An unmeasured rank does not ask the kernel about sleep, which takes longer than a call.
    """

    def __init__(self, *, counts_sleep: bool = True) -> None:
        self._counts_sleep = counts_sleep
        self._wall: list[int] = []
        self._busy: list[int] = []
        # What follows a mark begins when the mark was taken: asking the kernel takes longer than many a program's call.
        self._wall_after: list[int] = []
        self._busy_after: list[int] = []
        self._standing: list[_Standing] = []  # of what precedes a mark
        self._standing_after: list[_Standing] = []
        self._known = _Standing(0, 0, None)
        self._threads = {threading.get_ident(): 0}
        self._streams: list[int] = []
        self._lock = threading.Lock()

    def mark(self, stream: Any = None) -> int:
        """Read the thread's clocks."""
        with self._lock:
            wall, busy = time.perf_counter_ns(), time.thread_time_ns()
            asked = self._counts_sleep and (
                not self._wall or (wall - self._wall_after[-1]) - (busy - self._busy_after[-1]) > _LONG_GAP_NS
            )
            if asked:
                self._known = _read_standing()
            self._wall.append(wall)
            self._busy.append(busy)
            self._streams.append(self.stream())
            self._busy_after.append(time.thread_time_ns())
            self._wall_after.append(time.perf_counter_ns())
            # The thread may have lost its core while the mark was taken, which costs what precedes it nothing.
            lost_ns = (self._wall_after[-1] - wall) - (self._busy_after[-1] - busy)
            known = self._known
            if asked and known.delay_ns is not None:
                known = replace(known, delay_ns=known.delay_ns - max(lost_ns, 0))
            self._standing.append(known)
            self._standing_after.append(self._known)
            return len(self._wall) - 1

    def stream(self, stream: Any = None) -> int:
        """The thread that made the clock is the first stream."""
        return self._threads.setdefault(threading.get_ident(), len(self._threads))

    def elapsed_ns(self, first: int, second: int) -> int:
        """Running and sleeping time; with several threads the wall is all that can be read."""
        wall = self._wall[second] - self._wall_after[first]
        busy = self._busy[second] - self._busy_after[first]
        aside = self._streams[first] and self._streams[first] == self._streams[second]
        if (torch.get_num_threads() > 1 and not aside) or busy < 0:  # busy < 0: the marks are of two threads
            return max(wall, 0)
        if self._streams[first]:
            return busy
        return busy + self._standing[second].sleep_since(self._standing_after[first], wall - busy)

    def wall_ns(self, first: int, second: int) -> int:
        """By the clock on the wall."""
        return max(0, self._wall[second] - self._wall_after[first])

    def is_aside(self, stream: int) -> bool:
        """Every thread but the first."""
        return stream > 0


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

    def is_aside(self, stream: int) -> bool:
        """Streams of a device are ordered by events."""
        return False


def _read_standing() -> _Standing:
    usage, ended = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_CHILDREN)
    children = {child.pid for child in multiprocessing.process._children}  # type: ignore[attr-defined]
    return _Standing(
        gave_up=usage.ru_nvcsw,
        pushed_off=usage.ru_nivcsw,
        delay_ns=_read_delay("/proc/thread-self/schedstat"),
        helpers={pid: _read_delay(f"/proc/{pid}/schedstat") or 0 for pid in children if pid is not None},
        ended_ns=round((ended.ru_utime + ended.ru_stime) * 1e9),
    )


def _read_delay(path: str) -> int | None:
    """How long a thread was ready to run and had no core, in all its life."""
    try:
        return int(Path(path).read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
