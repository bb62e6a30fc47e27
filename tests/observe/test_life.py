"""The life of a job from messages that are given by hand: four ranks that send six layers in each step of a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from prism.observe.diagnose import _agree_with
from prism.observe.steps.life import (
    Life,
    LifeConfig,
    StepTemplate,
    Watched,
    _do_boundaries_wander,
    judge_life,
    make_template,
    rests_whole,
)

MS, S = 10**6, 10**9
RANKS, LAYERS, STEPS = 4, 6, 20
BEGIN = 5 * S
LAST = BEGIN + (STEPS - 1) * S + 850 * MS  # the last layer of the last step ends
Sends = Callable[[int, int, int], bool]  # whether a rank sends a layer in a step


@dataclass
class JobDouble:
    """A job with no more than its state."""

    id: str
    life: Life
    observed: Any = field(default_factory=lambda: SimpleNamespace(last_ns=0))


def make_messages(sends: Sends = lambda rank, step, layer: True, *, rest_ms: int = 0, pause_s: int = 0) -> pl.DataFrame:
    """A layer every 150 ms that lasts 100 ms; `rest_ms` comes after the second layer, `pause_s` after the tenth step."""
    rows = []
    for step in range(STEPS):
        for layer in range(LAYERS):
            start = BEGIN + step * S + layer * 150 * MS + (rest_ms * MS if layer > 1 else 0)
            start += pause_s * S if step >= 10 else 0
            rows += [(r, start, start + 100 * MS) for r in range(RANKS) if sends(r, step, layer)]
    found = pl.DataFrame(rows, schema={"stream": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")
    return found.with_columns(pair="stream", bytes=pl.lit(1_000_000, pl.Int64))


def make_streams(messages: pl.DataFrame, sizes: tuple[int, ...] = (1_000_000,) * RANKS) -> pl.DataFrame:
    found = messages.group_by("stream").agg(num=pl.len()).sort("stream")
    return found.with_columns(
        pair="stream",
        cut=pl.lit(False),
        kind=pl.lit("dp"),
        duration_ns=pl.lit(100.0 * MS),
        bytes=pl.Series(sizes[: found.height], dtype=pl.Float64),
    )


def make_steps(shift_ms: int = 0, *, num: int = STEPS) -> pl.DataFrame:
    start = BEGIN + shift_ms * MS + S * np.arange(num)
    return pl.DataFrame({"start_ns": start, "end_ns": start + S})


def judge(messages: pl.DataFrame, silent_s: float, *, steps: pl.DataFrame | None = None, **watched: int) -> Life:
    last = int(messages["end_ns"].max())  # type: ignore[arg-type]
    seen = Watched(**{"begin_ns": 0, "until_ns": last + round(silent_s * S), **watched})
    return judge_life(messages, make_streams(messages), make_steps() if steps is None else steps, seen)


def test_nothing_is_known_of_a_job_without_messages() -> None:
    none = make_messages(lambda rank, step, layer: False)
    assert judge_life(none, make_streams(none), make_steps(), Watched(begin_ns=0, until_ns=9 * S)) == Life()


@pytest.mark.parametrize(("silent_s", "state"), [(0.0, "running"), (2.999, "running"), (3.0, "ended")])
def test_a_job_runs_until_it_was_silent_for_three_steps(silent_s: float, state: str) -> None:
    found = judge(make_messages(), silent_s)
    assert (found.state, found.started_ns) == (state, BEGIN)
    assert found.ended_ns == (LAST if state == "ended" else None)


def test_a_job_whose_ranks_disagree_about_the_step_has_stopped() -> None:
    def sends(rank: int, step: int, layer: int) -> bool:
        return step < STEPS - 1 or layer < 3 or (layer == 3 and rank != 2)

    assert judge(make_messages(sends), 30).state == "stopped"


@pytest.mark.parametrize(("layers", "rest_ms", "state"), [(2, 0, "stopped"), (2, 100, "ended"), (3, 100, "stopped")])
def test_a_job_that_breaks_off_where_steps_rest_may_have_ended(layers: int, rest_ms: int, state: str) -> None:
    messages = make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < layers, rest_ms=rest_ms)
    assert judge(messages, 30).state == state


def test_a_few_missing_records_do_not_break_a_step() -> None:
    many = make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 5 or rank != 2)
    assert judge(many, 30).state == "stopped"  # one of 24 is more than three in a hundred
    config = LifeConfig(missing=0.05)
    template = make_template(many, make_streams(many), make_steps(), config)
    assert template is not None and rests_whole(template, LAST, config=config)


def test_a_step_has_begun_where_more_was_sent_than_whole_steps_differ_by() -> None:
    """However few of a step's messages these are: all other steps have sent exactly as many."""
    begun = make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 2)
    config = LifeConfig(missing=0.5)
    template = make_template(begun, make_streams(begun), make_steps(), config)
    assert template is not None and template.slack == 6.0
    assert not rests_whole(template, BEGIN + (STEPS - 1) * S + 250 * MS, config=config)


@pytest.mark.parametrize("since_ns", [0, BEGIN])
def test_whole_steps_since_the_first_message_are_an_end_wherever_steps_are_cut(since_ns: int) -> None:
    # Steps are cut in the middle of the true ones, and the true ones rest longer inside than at their end.
    messages, steps = make_messages(rest_ms=400), make_steps(950, num=STEPS - 1)
    assert judge(messages, 30, steps=steps, begin_ns=since_ns).state == "ended"
    broken = make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 3, rest_ms=400)
    assert judge(broken, 30, steps=steps, begin_ns=since_ns).state == "stopped"


def test_records_that_hold_what_is_left_of_a_step_end_it_and_half_of_it_does_not() -> None:
    """In the last step a timeout merged three layers of two ranks of four, which nothing else tells from a stop."""
    kept = make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 3 or rank > 1, rest_ms=400)
    begin = BEGIN + (STEPS - 1) * S + (450 + 400) * MS
    watched = Watched(begin_ns=0, until_ns=BEGIN + 60 * S)
    for layers, state in ((3, "ended"), (2, "stopped")):
        merged = [(RANKS + r, begin, begin + 400 * MS, r, layers * 1_000_000) for r in range(2)]
        messages = pl.concat([kept, pl.DataFrame(merged, schema=kept.schema, orient="row")])
        streams = make_streams(messages, (1_000_000,) * 6)
        assert judge_life(messages, streams, make_steps(950, num=STEPS - 1), watched).state == state


def test_a_barrier_at_the_end_is_not_part_of_a_step() -> None:
    """Each step ends with two norms of each rank; the last one is followed by four more numbers of two ranks.

    In its first step two ranks also pass weights on, so that what the job sent in all is no whole number of steps.
    """
    tensors = make_messages()
    sent = [(r, s, k) for s in range(STEPS) for r in range(RANKS) for k in range(2)]
    sent += [(r, STEPS - 1, 2 + k) for r in range(2) for k in range(4)]
    at = [BEGIN + s * S + (900 + 10 * k) * MS for _, s, k in sent]
    norms = [(RANKS + r, t, t + MS, r, 48) for (r, _, _), t in zip(sent, at, strict=True)]
    weights = [(2 * RANKS + r, BEGIN + 110 * MS, BEGIN + 140 * MS, r, 2_500_000) for r in range(2)]
    messages = pl.concat([tensors, pl.DataFrame(norms + weights, schema=tensors.schema, orient="row")])
    streams = make_streams(messages, (1_000_000,) * RANKS + (48,) * RANKS + (2_500_000,) * 2)
    watched = Watched(begin_ns=0, until_ns=LAST + 60 * S)
    assert judge_life(messages, streams, make_steps(), watched).state == "ended"


@pytest.mark.parametrize(
    ("kind", "job", "state"),
    [("hang", "job-1", "stopped"), ("hang", "job-2", "ended"), ("slow_step", "job-1", "ended")],
)
def test_a_job_of_which_a_hang_is_told_has_not_ended(kind: str, job: str, state: str) -> None:
    told: Any = JobDouble("job-1", Life(state="ended", started_ns=1, ended_ns=2))
    findings: Any = [SimpleNamespace(kind=kind, job=job, score=0.9, end_ns=2**62)]
    assert _agree_with(findings, set(), told).life.state == state


def test_messages_of_one_pair_are_counted_together_whichever_stream_they_are_in() -> None:
    messages, steps = make_messages(rest_ms=400), make_steps(950, num=STEPS - 1)
    # Every other layer is of another size; one message is taken for the other size.
    layer = (pl.col("start_ns").rank("dense") - 1) % 2
    halves = messages.with_columns(stream=(2 * pl.col("stream") + layer).cast(pl.UInt32))
    streams = make_streams(messages)
    streams = pl.concat([streams.with_columns(stream=2 * pl.col("stream") + k, num=pl.lit(3 * STEPS)) for k in (0, 1)])
    mixed = halves.with_columns(stream=pl.when(pl.int_range(pl.len()) == 0).then(1).otherwise("stream").cast(pl.UInt32))
    watched = Watched(begin_ns=0, until_ns=LAST + 31 * S)
    assert judge_life(halves, streams, steps, watched).state == "ended"
    assert judge_life(mixed, streams, steps, watched).state == "ended"


def test_boundaries_that_wander_do_not_tell_that_a_job_stopped() -> None:
    broken = make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 4)
    steps = make_steps()
    wanders = pl.int_range(pl.len()) % 3 == 1  # 200 ms later: the first layers of a step are in the one before
    start = pl.when(wanders).then(pl.col("start_ns") + 200 * MS).otherwise("start_ns")
    wandering = steps.with_columns(start_ns=start).with_columns(
        end_ns=pl.col("start_ns").shift(-1, fill_value=int(steps["end_ns"][-1]))
    )
    assert judge(broken, 30, steps=steps).state == "stopped"
    assert judge(broken, 30, steps=wandering).state == "ended"


def test_one_step_that_broke_off_is_no_boundary_that_wanders() -> None:
    steady = np.full((8, 4), 6)
    broken, moved = steady.copy(), steady.copy()
    broken[3] = 1
    broken[4:6, :2] += 1  # a few messages at a boundary
    moved[[1, 4]], moved[[2, 5]] = 8, 4
    usual = np.full(4, 6)
    found = [_do_boundaries_wander(counts, usual, LifeConfig()) for counts in (steady, broken, moved)]
    assert found == [False, False, True]


@pytest.mark.parametrize(("silent_s", "state"), [(5.0, "paused"), (6.2, "paused"), (6.3, "ended")])
def test_a_silence_hardly_longer_than_an_earlier_one_is_a_pause(silent_s: float, state: str) -> None:
    messages = make_messages(pause_s=4)  # with the end of the step before it, 4.15 s
    steps = pl.concat([make_steps(num=10), make_steps(14_000, num=10)])
    assert judge(messages, silent_s, steps=steps).state == state


@pytest.mark.parametrize(("saved_s", "state"), [(16, "paused"), (15, "ended")])
def test_a_job_that_writes_to_storage_for_most_of_its_silence_pauses(saved_s: int, state: str) -> None:
    assert judge(make_messages(), 30, saved_ns=LAST + saved_s * S).state == state


@pytest.mark.parametrize(("silent_s", "state"), [(10.5, "running"), (10.7, "ended")])
def test_without_steps_a_job_is_over_after_a_third_of_the_observation(silent_s: float, state: str) -> None:
    found = judge(make_messages(), silent_s, steps=make_steps(num=0))  # 24.85 s until then
    assert found.state == state and found.ended_ns == (LAST if state == "ended" else None)


# -- what a usual step sends


def make_plain_template(messages: pl.DataFrame, **sizes: tuple[int, ...]) -> StepTemplate:
    template = make_template(messages, make_streams(messages, **sizes), make_steps(), LifeConfig())
    assert template is not None
    return template


def test_a_template_holds_regular_streams_alone() -> None:
    def sends(rank: int, step: int, layer: int) -> bool:
        return rank < 3 or (step < 11 and layer == 0)  # the last one sends in 11 of 20 steps, less than six tenths

    found = make_plain_template(make_messages(sends))
    assert found.usual.tolist() == [LAYERS] * 3 and len(found.start) == 3 * LAYERS * STEPS
    assert found.longest_ns == 100 * MS and found.differing == 0.0
    none = make_messages(lambda rank, step, layer: step == 0)
    assert make_template(none, make_streams(none), make_steps(), LifeConfig()) is None
    assert make_template(none, make_streams(none), make_steps(num=0), LifeConfig()) is None


def test_streams_of_one_size_are_alike() -> None:
    found = make_plain_template(make_messages(), sizes=(1_000_000, 1_000_000, 9_000_000, 9_000_000))
    first, second, third, fourth = found.alike.tolist()
    assert first == second != third == fourth


def test_a_lost_record_differs_in_one_step_of_one_stream() -> None:
    found = make_plain_template(make_messages(lambda rank, step, layer: (rank, step, layer) != (2, 7, 3)))
    assert found.usual.tolist() == [LAYERS] * RANKS
    assert found.differing == pytest.approx(1 / (RANKS * (STEPS - 1)))  # the last step may have broken off


def test_messages_are_counted_from_their_start_to_the_end_of_a_stretch() -> None:
    found = make_plain_template(make_messages())
    assert found.count_since(BEGIN, BEGIN + 150 * MS).tolist() == [2] * RANKS
    assert found.count_since(BEGIN + 1, BEGIN + 150 * MS - 1).tolist() == [0] * RANKS
