"""How many iterations of all ranks are run to compare their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured import capture, entry

from prism.emulate import survey
from prism.emulate.capture import Capture
from prism.emulate.inside.plan import RunPlan
from prism.emulate.launch import LaunchConfig
from prism.emulate.mailbox import Recording
from prism.emulate.survey import SurveyConfig, Surveyor, describe_calls
from prism.errors import GraphError, ScriptError


def _steps(world: int, step_ms: float, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(2))
    monkeypatch.setattr(survey, "_free_bytes", lambda: 1 << 40)
    launch = LaunchConfig(script=(__file__,), world_size=world)
    surveyor = Surveyor.__new__(Surveyor)
    surveyor._launch, surveyor._config, surveyor._cores = launch, SurveyConfig(), 2
    work = entry("all_reduce", group="0", bytes=8, op=0, gap_ns=round(step_ms * 1e6))
    return surveyor._affordable_steps(replace(capture(0, world, [work]), cpu_s=0.1))


def test_short_iterations_are_run_to_the_end_of_most_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _steps(8, 5.0, monkeypatch) == 32


def test_long_iterations_are_run_as_often_as_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _steps(8, 500.0, monkeypatch) == 8


def test_many_ranks_run_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _steps(256, 20.0, monkeypatch) == 5
    assert _steps(1024, 300.0, monkeypatch) == 0
    assert _steps(256, 8.0, monkeypatch) > 12  # iterations that cost less than starting all ranks


def test_a_deadlock_is_described_by_the_calls_of_the_program() -> None:
    found = (
        "deadlock: rank 2 stream 0 waits for event 7; rank 2 waits in send #1 of group world-0 (a.py:19); rank 3 "
        "stream 0 waits for event 3; rank 3 waits in send #0 of group world-0 (a.py:32); each waits for the next"
    )
    assert describe_calls(found) == (
        "rank 2 waits in send #1 of group world-0 (a.py:19); rank 3 waits in send #0 of group world-0 (a.py:32); "
        "each waits for the next"
    )
    assert describe_calls("rank 1 sends nothing") == "rank 1 sends nothing"


def test_ranks_of_a_gpu_run_alone_where_the_first_could_not_show_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    surveyor = Surveyor.__new__(Surveyor)
    surveyor._launch, surveyor._config = LaunchConfig(script=(__file__,), world_size=8), SurveyConfig()
    small = replace(capture(0, 8, []), device="an H200", device_bytes=140 << 30)
    monkeypatch.setattr(surveyor, "_affordable_steps", lambda probe: 0)
    for status, at_once in (("needs", 1), ("done", 8)):
        monkeypatch.setattr(surveyor, "_probe", lambda recording, status=status: replace(small, status=status))
        monkeypatch.setattr(surveyor, "_sample", lambda captures, recording: captures)
        surveyor.run()
        assert surveyor._at_once == at_once


class _Pipelines:
    """A launcher of ranks that each need the seven other stages of their pipeline."""

    most_needed = 0

    def __init__(self, boot: object, launch: LaunchConfig, plan: RunPlan, *unused: object, **settings: Any) -> None:
        self.recording, self.refused, self.started = Recording(), None, {}
        self._limits = settings["limits"]

    def run(self, ranks: Sequence[int]) -> dict[int, Capture]:
        needed = sorted({rank % 1024 + 1024 * stage for rank in ranks for stage in range(8)})
        if len(needed) > self._limits.most_live:
            self.refused = needed[self._limits.most_live]
            return {}
        self.started = dict.fromkeys(needed, 0)
        _Pipelines.most_needed = max(_Pipelines.most_needed, len(needed))
        call = entry("all_reduce", group="0", bytes=8, op=0)
        return {rank: capture(rank, 8192, [call]) for rank in needed}

    def fork_of(self, rank: int) -> str:
        return ""


def test_ranks_that_need_many_others_run_in_smaller_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(survey, "Launcher", _Pipelines)
    launch = LaunchConfig(script=(__file__,), world_size=8192)
    base = RunPlan(rank=0, world_size=8192, gpus_per_node=8, output="")
    surveyor = Surveyor(None, tmp_path, launch, base, SurveyConfig(max_live=20))  # type: ignore[arg-type]
    captures = surveyor.extend({}, Recording(), [0, 1, 2, 3, 12, 1029])
    assert set(captures) == {rank + 1024 * stage for rank in (0, 1, 2, 3, 12, 5) for stage in range(8)}
    assert _Pipelines.most_needed <= 20
    with pytest.raises(ScriptError, match="more than 7 live ranks"):
        Surveyor(None, tmp_path, launch, base, SurveyConfig(max_live=7)).extend({}, Recording(), [0, 1])  # type: ignore[arg-type]


class _Ring:
    """A launcher of ranks that all send to the next one before they receive from the one before."""

    def __init__(self, boot: object, launch: LaunchConfig, plan: RunPlan, *unused: object, **settings: Any) -> None:
        self.recording, self.refused, self.gave_up, self.started = Recording(), None, False, {}
        self._plan = plan

    def run(self, ranks: Sequence[int]) -> dict[int, Capture]:
        world = self._plan.world_size
        out = {}
        for rank in ranks:
            send = entry("send", group="0", bytes=8, op=0, peer=(rank + 1) % world)
            take = entry("recv", group="0", bytes=8, op=1, peer=(rank - 1) % world)
            out[rank] = capture(rank, world, [send, take])
        return out

    def fork_of(self, rank: int) -> str:
        return ""


def test_a_cycle_that_a_sample_suggests_is_checked_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "Launcher", _Ring)
    monkeypatch.setattr(Surveyor, "_affordable_steps", lambda self, probe: 0)
    launch = LaunchConfig(script=(__file__,), world_size=64)
    base = RunPlan(rank=0, world_size=64, gpus_per_node=8, output="")
    boot: Any = SimpleNamespace(has_gpu=lambda: False)
    surveyor = Surveyor(boot, Path(), launch, base, SurveyConfig(max_live=16))
    with pytest.raises(GraphError, match="rank 0 waits in send of 8 bytes to rank 1 .* each waits for the next"):
        surveyor.run()
