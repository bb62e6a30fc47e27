"""How long ranks work, read from when messages come and go."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.parallelism.stages import StageMap
from prism.observe.steps.work import measure_work

MS = 1_000_000
STEPS = pl.DataFrame({"index": [0], "start_ns": [0], "end_ns": [100 * MS]})


def write_pipeline(seen: float) -> pl.DataFrame:
    """A first message that is answered after 20 ms, and a second one that waits until then; `seen` of it is seen."""
    sent = [(0, 1, 10.0, 10.1, 0), (0, 1, 12.0, 12.0 + 18.1 * seen, 1), (1, 0, 30.1, 30.2, 0)]
    rows = [(s, d, round(a * MS), round(b * MS), p) for s, d, a, b, p in sent]
    frame = pl.DataFrame(rows, schema=["src", "dst", "start_ns", "end_ns", "place"], orient="row")
    return frame.with_columns(
        pl.col("src", "dst").cast(pl.UInt32), kind=pl.lit("pp"), step=pl.lit(0, pl.Int32), bytes=pl.lit(1 << 20)
    )


def test_a_message_that_waits_for_its_receiver_is_not_what_is_answered() -> None:
    stages = StageMap(stage={0: 0, 1: 1}, chains=((0, 1),), confidence=1.0)
    for seen in (1.0, 0.8):
        work = measure_work(write_pipeline(seen), stages, np.arange(8), STEPS)
        turn = work.filter(pl.col("phase") == "turn")["work_ns"].to_numpy()
        assert np.allclose(turn / MS, 20.0), seen


def test_the_first_stage_works_from_when_anything_last_ended_there_wherever_steps_are_cut() -> None:
    stages = StageMap(stage={0: 0, 1: 1}, chains=((0, 1),), confidence=1.0)
    later = write_pipeline(1.0).with_columns(pl.col("start_ns", "end_ns") + 100 * MS, step=pl.lit(1, pl.Int32))
    found = []
    for cut in (40, 100):  # The last message ends after 30.2 ms, the next one begins after 110 ms.
        steps = pl.DataFrame({"index": [0, 1], "start_ns": [0, cut * MS], "end_ns": [cut * MS, 200 * MS]})
        work = measure_work(pl.concat([write_pipeline(1.0), later]), stages, np.arange(8), steps)
        found.append(work.filter((pl.col("phase") == "forward") & (pl.col("step") == 1))["work_ns"].to_list())
    assert found[0] == found[1] == [round(79.8 * MS)]


def test_a_pause_before_a_step_is_no_work_of_its_first_stage() -> None:
    """Five steps of 100 ms; before the fourth the job saves for 200 ms."""
    stages = StageMap(stage={0: 0, 1: 1}, chains=((0, 1),), confidence=1.0)
    begin = np.array([0, 100, 200, 500, 600]) * MS
    sent = [
        write_pipeline(1.0).with_columns(pl.col("start_ns", "end_ns") + at, step=pl.lit(i, pl.Int32))
        for i, at in enumerate(begin.tolist())
    ]
    steps = pl.DataFrame({"index": range(5), "start_ns": begin, "end_ns": np.append(begin[1:], 700 * MS)})
    work = measure_work(pl.concat(sent), stages, np.arange(8), steps).filter(pl.col("phase") == "forward")
    assert work.filter(pl.col("step") > 0)["work_ns"].to_list() == [round(79.8 * MS)] * 4


def test_ranks_that_pass_blocks_of_a_sequence_come_to_collectives_together() -> None:
    rows = [(h, (h + 1) % 4, kind, (30 + h) * MS, 40 * MS) for h in range(4) for kind in ("cp", "dp")]
    frame = pl.DataFrame(rows, schema=["src", "dst", "kind", "start_ns", "end_ns"], orient="row").with_columns(
        pl.col("src", "dst").cast(pl.UInt32), step=pl.lit(0, pl.Int32), place=pl.lit(0), bytes=pl.lit(1 << 20)
    )
    none = StageMap(stage={}, chains=(), confidence=1.0)
    assert measure_work(frame, none, np.arange(4), STEPS).is_empty()
    assert not measure_work(frame.filter(pl.col("kind") == "dp"), none, np.arange(4), STEPS).is_empty()
