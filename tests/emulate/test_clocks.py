"""What counts as work on a CPU: running and sleeping on purpose, not waiting for a core."""

from __future__ import annotations

import threading
import time

import pytest

from prism.emulate.inside import clocks
from prism.emulate.inside.clocks import ThreadClock, _Standing

MS = 1_000_000


def test_sleeping_on_purpose_counts() -> None:
    clock = ThreadClock()
    first = clock.mark()
    time.sleep(0.05)
    assert clock.elapsed_ns(first, clock.mark()) >= 0.9 * 50 * MS


@pytest.mark.parametrize(
    ("after", "counted_ms"),
    [
        (_Standing(gave_up=1, pushed_off=9, delay_ns=150 * MS, helpers={7: 9 * MS}), 200),  # ran 150, slept 50
        (_Standing(gave_up=1, pushed_off=9, delay_ns=100 * MS, helpers={7: 59 * MS}), 200),  # a loader waited, too
        (_Standing(gave_up=1, pushed_off=9, delay_ns=100 * MS, helpers={7: 9 * MS, 8: 50 * MS}), 200),  # a new one did
        (
            _Standing(gave_up=1, pushed_off=9, delay_ns=50 * MS, helpers={}, ended_ns=20 * MS),
            170,
        ),  # one ran 20 and ended
        (_Standing(gave_up=0, pushed_off=9, delay_ns=150 * MS, helpers={7: 9 * MS}), 150),  # it never slept
        (_Standing(gave_up=1, pushed_off=9, delay_ns=None, helpers={7: 9 * MS}), 150),  # the kernel says no delays
        (_Standing(gave_up=1, pushed_off=0, delay_ns=None, helpers={7: 9 * MS}), 350),  # but it was never pushed off
    ],
)
def test_waiting_for_a_core_does_not_count_even_beside_a_sleep(
    after: _Standing, counted_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """350 ms by the wall, 150 of them on a core."""
    before = _Standing(0, 0, None if after.delay_ns is None else 0, helpers={7: 9 * MS})
    readings, walls, busy = iter([before, after]), iter([0, 0, 350 * MS, 350 * MS]), iter([0, 0, 150 * MS, 150 * MS])
    monkeypatch.setattr(clocks, "_read_standing", lambda: next(readings))
    monkeypatch.setattr(clocks.time, "perf_counter_ns", lambda: next(walls))
    monkeypatch.setattr(clocks.time, "thread_time_ns", lambda: next(busy))
    monkeypatch.setattr(clocks.torch, "get_num_threads", lambda: 1)
    clock = ThreadClock()
    first, second = clock.mark(), clock.mark()
    counted = clock.elapsed_ns(first, second)
    monkeypatch.undo()
    assert counted == counted_ms * MS


def test_a_core_that_is_lost_while_a_mark_is_taken_costs_the_sleep_before_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sleep of 50 ms; the thread waited 30 ms for a core before the first mark and 20 ms in the middle of each."""
    readings = iter([_Standing(0, 1, (30 + 20) * MS), _Standing(1, 2, (30 + 20 + 20) * MS)])
    walls = iter([0, 20 * MS, 70 * MS, 90 * MS])
    monkeypatch.setattr(clocks, "_read_standing", lambda: next(readings))
    monkeypatch.setattr(clocks.time, "perf_counter_ns", lambda: next(walls))
    monkeypatch.setattr(clocks.time, "thread_time_ns", lambda: 0)
    monkeypatch.setattr(clocks.torch, "get_num_threads", lambda: 1)
    clock = ThreadClock()
    first, second = clock.mark(), clock.mark()
    counted = clock.elapsed_ns(first, second)
    monkeypatch.undo()
    assert counted == 50 * MS


def test_another_thread_is_a_stream_of_its_own_whose_idling_does_not_count() -> None:
    clock, marks = ThreadClock(), []

    def save() -> None:
        marks.append((clock.stream(), clock.mark()))
        time.sleep(0.05)
        marks.append((clock.stream(), clock.mark()))

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    (first, begin), (second, end) = marks
    assert first == second and clock.is_aside(first) and not clock.is_aside(clock.stream())
    assert clock.elapsed_ns(begin, end) < 50 * MS
