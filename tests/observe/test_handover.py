"""How far consecutive steps overlap: ranks end one and begin the next each on its own."""

from __future__ import annotations

import polars as pl
import pytest

from prism.observe.handover import expect_latest, overlap_steps
from prism.observe.steps import CUT
from prism.records.layout import Degree, Layout

MS = 1_000_000


def cut_steps(pause_ms: int = 0, rest_ms: int = 5000) -> pl.DataFrame:
    """Three steps of a second each, the last after a pause; 500 ms until the first message."""
    rows = {"index": [0, 1, 2], "start_ns": [0, 1000 * MS, (2000 + pause_ms) * MS]}
    return pl.DataFrame(
        {**rows, "end_ns": [t + 1000 * MS for t in rows["start_ns"]], "pause_ns": [0, 0, pause_ms * MS],
         "lead_ns": 500 * MS, "apart_ns": 7 * MS, "rest_ns": rest_ms * MS}, schema=CUT,
    )  # fmt: skip


def gradients(sizes: list[float]) -> pl.DataFrame:
    """Two hosts of eight ranks each that sum gradients in messages of these sizes."""
    return pl.concat(
        pl.DataFrame({"src": [0, 8], "dst": [8, 0], "src_host": [0, 1], "dst_host": [1, 0], "kind": "dp", "unit": [0, 1],
                      "bytes": size, "per_step": 1.0})
        for size in sizes
    )  # fmt: skip


def lay_out(dp: int, tp: int = 1) -> Layout:
    return Layout(dp=Degree(dp), tp=Degree(tp), pp=Degree(1), cp=Degree(1), ep=Degree(1))


def overlap_ns(steps: pl.DataFrame) -> int:
    return int(steps["end_ns"][0] - steps["start_ns"][1])


def test_steps_overlap_by_how_far_ranks_are_apart_after_the_update_that_their_gradients_tell() -> None:
    parameters = 7e9
    steps = overlap_steps(cut_steps(), gradients([4 * parameters]), lay_out(dp=16))
    update_ns = 30 * parameters / 2e3
    assert overlap_ns(steps) == pytest.approx(2 * expect_latest(16) * 0.01 * update_ns, rel=1e-3)


def test_ranks_that_gather_what_they_updated_each_update_a_share() -> None:
    shared = overlap_steps(cut_steps(), gradients([2e9, 1e9]), lay_out(dp=16))
    whole = overlap_steps(cut_steps(), gradients([4e9]), lay_out(dp=16))
    assert overlap_ns(shared) == pytest.approx(overlap_ns(whole) / 16, rel=0.01)


def test_an_update_is_over_before_the_first_message_of_the_next_step() -> None:
    steps = overlap_steps(cut_steps(), gradients([1e15]), lay_out(dp=16))
    assert overlap_ns(steps) == pytest.approx(2 * expect_latest(16) * 0.01 * 500 * MS, rel=1e-3)


def test_after_a_pause_the_first_rank_begins_before_its_team_is_seen() -> None:
    paused = cut_steps(pause_ms=400)
    moved = paused["start_ns"] - overlap_steps(paused, gradients([4e9]), lay_out(dp=2, tp=8))["start_ns"]
    alone = paused["start_ns"] - overlap_steps(paused, gradients([4e9]), lay_out(dp=16))["start_ns"]
    assert moved[:2].to_list() == [0, 0]
    assert moved[2] > 4 * MS  # at least one standard deviation of the pause
    assert alone.to_list() == [0, 0, 0]


def test_ranks_are_apart_by_what_they_gather_only_if_it_follows_the_update_at_once() -> None:
    later, at_once = (overlap_steps(cut_steps(rest_ms=ms), gradients([4e9]), lay_out(dp=16)) for ms in (5000, 1))
    assert overlap_ns(at_once) - overlap_ns(later) == 7 * MS
