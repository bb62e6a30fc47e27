"""Replaying captured ranks over gloo: the plan has every call, steps are read from the ends, few cores are no reason to guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captured import capture, entry

from prism.emulate import emulation
from prism.emulate.capture import cut_all
from prism.emulate.launch import LaunchConfig
from prism.emulate.replaying import ReplayConfig, can_replay, read_ends, replay, write_plan


def _captures(world: int = 2):
    calls = [
        entry("all_reduce", group="0", bytes=64, op=0, gap_ns=1000),
        entry("all_reduce", group="0", bytes=64, op=1, gap_ns=2000, lane=-1),
        entry("wait", op=1, gap_ns=3000),
    ]
    return {rank: capture(rank, world, calls) for rank in range(world)}


def test_the_plan_has_work_calls_and_waits_in_order() -> None:
    captures = _captures()
    plan = write_plan(captures, cut_all(captures))
    assert plan["groups"] == [[0, 1]]
    first = plan["ranks"][1][0]
    assert [op[0] for op in first] == ["work", "call", "work", "call", "work", "wait"]
    assert [op[7] for op in first if op[0] == "call"] == [False, True]


def test_uneven_parts_are_what_the_others_send() -> None:
    def exchange(sizes: tuple[int, ...]):
        return [replace(entry("all_to_all", group="0", bytes=sum(sizes), op=0), sizes=sizes)]

    captures = {0: capture(0, 2, exchange((4, 8))), 1: capture(1, 2, exchange((12, 16)))}
    plan = write_plan(captures, cut_all(captures))
    calls = [iterations[0][0] for iterations in plan["ranks"]]
    assert [call[8:] for call in calls] == [[[4, 8], [4, 12]], [[12, 16], [8, 16]]]


def test_steps_are_medians_over_rounds_without_the_first() -> None:
    one_round = [10.0, 30.0]
    steps = np.array([500.0, 500.0, *one_round * 4])
    ends = np.cumsum(np.stack([steps, steps]), axis=1).astype(np.int64)
    found = read_ends(ends, 2)
    assert found.step_ns == (10, 30)
    assert found.spread_pct == 0


def test_ranks_of_a_gpu_or_more_ranks_than_cores_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert can_replay(_captures(2))
    assert not can_replay(_captures(4))
    assert not can_replay({rank: replace(c, device="NVIDIA H200") for rank, c in _captures(2).items()})


def test_real_gloo_ranks_run_the_plan() -> None:
    captures = _captures()
    notes: list[str] = []
    found = replay(captures, cut_all(captures), 1e6, ReplayConfig(budget_s=0.1, note=notes.append))
    assert found is not None, notes
    assert all(step > 6000 for step in found.step_ns)  # the work alone


def test_no_step_is_predicted_where_ranks_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    script = (str(Path(__file__)),)
    crowded = LaunchConfig(script=script, world_size=8, gpus_per_node=8)
    assert "8 ranks of a host share 2 cores" in emulation._why_not_predicted(crowded)
    assert emulation._why_not_predicted(replace(crowded, gpus_per_node=2)) == ""


def test_the_outer_loop_is_the_whole_repeating_unit() -> None:
    from prism.emulate.units import summarize

    rounds = summarize(["local", "local", "outer"] * 2, [10.0, 10.0, 40.0] * 2, [""] * 6)
    assert rounds.unit == 3 and rounds.loop_ms == pytest.approx(60.0)
    assert summarize(["a", "b", "c"], [1.0, 2.0, 3.0], [""] * 3).loop_ms is None
