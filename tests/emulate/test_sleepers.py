"""Ranks that sleep and never call anything end the run with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prism.emulate import launch, sleepers
from prism.emulate.launch import Launcher
from prism.emulate.sleepers import SleepWatch, is_asleep
from prism.errors import ScriptError


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_that_waits_sleeps_and_one_that_computes_or_has_a_child_that_does_not() -> None:
    compute = "while True: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {compute!r}])"
    started = [
        subprocess.Popen([sys.executable, "-c", code]) for code in ("import time; time.sleep(600)", compute, parent)
    ]
    idle, busy, waiting = started
    try:
        while not is_asleep(idle.pid):
            time.sleep(0.01)
        while not _children(waiting.pid):
            time.sleep(0.01)
        assert not is_asleep(busy.pid)
        assert not is_asleep(waiting.pid)
    finally:
        for child in _children(waiting.pid):
            os.kill(child, signal.SIGKILL)
        for process in started:
            process.kill()
            process.wait()


def test_a_rank_that_wakes_up_or_writes_has_not_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    awake: set[int] = set()
    written = {10: 0, 20: 0, 30: 0}
    monkeypatch.setattr(sleepers, "is_asleep", lambda pid: pid not in awake)
    monkeypatch.setattr(sleepers, "count_written", written.__getitem__)
    watch = SleepWatch()
    for now in range(11):
        awake = {20} if now == 5 else set()
        written[30] = int(now > 5)
        watch.look(float(now), {1: 10, 2: 20, 3: 30})
    assert watch.all_slept(10.0, 9.0, [1])
    assert not watch.all_slept(10.0, 9.0, [2]) and not watch.all_slept(10.0, 9.0, [3])
    assert watch.all_slept(10.0, 3.0, [1, 2, 3])


def test_ranks_that_sleep_outside_calls_are_named_with_those_that_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sleepers, "is_asleep", lambda pid: True)
    server = SimpleNamespace(
        quiet_s=lambda: 60.0, standing=lambda: {0}, describe_waits=lambda: "rank 0 waits at train.py:12 for rank 1"
    )
    launcher: Any = SimpleNamespace(_server=server, _sleep=SleepWatch(), log_of=lambda rank: "")
    running: Any = {rank: SimpleNamespace(pid=rank) for rank in (0, 1)}
    Launcher._check_sleep(launcher, 0.0, running)
    Launcher._check_sleep(launcher, launch._MOST_SLEEP_S / 2, running)
    with pytest.raises(ScriptError, match=r"rank 1 did nothing for 120 s .*; meanwhile rank 0 waits at train.py:12"):
        Launcher._check_sleep(launcher, launch._MOST_SLEEP_S + 1, running)
