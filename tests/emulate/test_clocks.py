"""What counts as work on a CPU: running and sleeping on purpose, not waiting for a core."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from prism.emulate.inside.clocks import ThreadClock

MS = 1_000_000


def _spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_sleeping_on_purpose_counts() -> None:
    clock = ThreadClock()
    first = clock.mark()
    time.sleep(0.05)
    assert clock.elapsed_ns(first, clock.mark()) >= 0.9 * 50 * MS


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").is_file(), reason="the kernel tells no delays")
def test_waiting_for_a_core_does_not_count_even_beside_a_sleep() -> None:
    """Two threads on one core: half of the time this one is ready and does not run."""
    cores = os.sched_getaffinity(0)
    rival = multiprocessing.get_context("fork").Process(target=_spin, args=(20.0,), daemon=True)
    rival.start()
    assert rival.pid is not None
    try:
        os.sched_setaffinity(rival.pid, {min(cores)})
        os.sched_setaffinity(0, {min(cores)})
        multiprocessing.process._children.discard(rival)  # type: ignore[attr-defined]  # it is no helper of ours
        clock = ThreadClock()
        first, began, busy = clock.mark(), time.perf_counter_ns(), time.thread_time_ns()
        _spin(0.15)
        time.sleep(0.05)
        second, wall, ran = clock.mark(), time.perf_counter_ns() - began, time.thread_time_ns() - busy
    finally:
        os.sched_setaffinity(0, cores)
        rival.kill()
    counted = clock.elapsed_ns(first, second)
    assert wall > 1.4 * (ran + 50 * MS)  # the rival really took the core
    assert counted == pytest.approx(ran + 50 * MS, rel=0.2)
