"""Where steps begin and end: pauses, restarts, missing marks, micro-batches; and when transfers begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from prism.observe.diagnose import choose_step_streams
from prism.observe.jobs.grouping import find_remnants
from prism.observe.jobs.step_counts import StreamStarts, choose_period
from prism.observe.steps.boundaries import Clock, Spans, choose_clock, list_clocks
from prism.observe.steps.cutting import _open_steps, cut_steps
from prism.observe.steps.marks import end_bursts
from prism.observe.steps.mending import mend_marks
from prism.observe.timeline.drawing import begin_together
from prism.observe.traffic.period import pack_starts

MS = 1_000_000
STEP = 100 * MS
BUCKETS = 5
STREAMS = pl.DataFrame(
    {"stream": [0, 1], "role": "exchange", "kind": "dp", "src": [0, 1], "dst": [1, 0], "src_host": [0, 1],
     "dst_host": [1, 0], "bytes": 1e6}, schema_overrides={"stream": pl.UInt32}
)  # fmt: skip


def send_gradients(begins: NDArray[np.int64], buckets: NDArray[np.int64] | None = None) -> pl.DataFrame:
    """Two ranks that exchange five buckets from 60 to 85 ms after a step begins; `buckets` of it where it is cut."""
    start = begins[:, None] + 60 * MS + 5 * MS * np.arange(BUCKETS)
    if buckets is not None:
        start = np.where(np.arange(BUCKETS) < buckets[:, None], start, -1)
    times = start[start >= 0]
    return pl.concat(
        pl.DataFrame({"stream": np.full(len(times), v, np.uint32), "start_ns": times, "end_ns": times + 4 * MS})
        for v in (0, 1)
    )


def find_steps(
    sent: pl.DataFrame, streams: pl.DataFrame, period_ns: float, saves: pl.DataFrame | None = None
) -> pl.DataFrame:
    return cut_steps(sent, streams, period_ns, saves)[0]


def lengths_ms(steps: pl.DataFrame) -> list[float]:
    return ((steps["end_ns"] - steps["start_ns"]) / MS).round(3).to_list()


def test_a_short_pause_belongs_to_the_step_that_it_follows() -> None:
    begins = STEP * np.arange(12) + np.where(np.arange(12) > 5, 8 * MS, 0)
    found = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP))
    assert found == [100.0] * 5 + [108.0] + [100.0] * 6


def test_messages_that_come_at_any_time_tell_no_steps() -> None:
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(20 * MS, 400)).astype(np.int64)
    sent = pl.DataFrame({"stream": rng.integers(0, 2, 400).astype(np.uint32), "start_ns": times, "end_ns": times + MS})
    assert find_steps(sent, STREAMS, STEP).is_empty()


def test_what_a_job_did_before_it_was_started_again_is_no_step() -> None:
    begins = np.concatenate([STEP * np.arange(6), 1000 * MS + STEP * np.arange(6)])
    cut = np.where(np.arange(12) == 5, 2, BUCKETS)
    steps = find_steps(send_gradients(begins, cut), STREAMS, STEP)
    assert lengths_ms(steps) == [100.0] * 11
    assert steps["start_ns"][5] - steps["end_ns"][4] == 500 * MS


def test_a_missing_mark_is_put_back_where_the_transfer_ended_however_long_the_silence_after_it() -> None:
    silence = np.array([40, 10, 35, 20, 55, 15, 30, 45]) * MS
    first = np.concatenate([[0], np.cumsum(20 * MS + silence)[:-1]])
    start = np.sort((first[:, None] + 5 * MS * np.arange(4)).ravel())
    marks = first + 20 * MS
    assert mend_marks(np.delete(marks, 3), start).tolist() == marks.tolist()


@pytest.mark.parametrize("longer", [107, 102])
def test_two_micro_batches_of_which_one_is_followed_by_the_optimizer_are_one_step(longer: int) -> None:
    # The second half of the capture is slower, so that no period repeats throughout.
    halves = np.where(np.arange(24) % 2, longer, 100) * np.where(np.arange(24) < 14, 1, 1.5) * MS
    begins = np.concatenate([[0], np.cumsum(halves)]).astype(np.int64)
    times = [(begins[:, None] + 2 * MS * np.arange(10) + delay).ravel() for delay in (0, MS)]
    single = [StreamStarts(times=t, klass=k) for k, t in enumerate(times)]
    found = choose_period(pack_starts(times, [0, 1], 1000), single, single, np.zeros(0, np.int64), 1000)
    assert found is not None and 200 * MS < found < 315 * MS


def test_groups_between_rests_are_steps_whatever_repeats_less_often() -> None:
    # A checkpoint that is seen nowhere else after every third step.
    begins = STEP * np.arange(30) + 60 * MS * (np.arange(30) // 3)
    times = [(begins[:, None] + 2 * MS * np.arange(10) + delay).ravel() for delay in (0, MS)]
    single = [StreamStarts(times=t, klass=k) for k, t in enumerate(times)]
    found = choose_period(pack_starts(times, [0, 1], 1000), single, single, np.zeros(0, np.int64), 1000)
    assert found == pytest.approx(STEP, rel=0.01)


def test_a_collective_begins_when_its_last_sender_comes_and_a_send_when_its_receiver_does() -> None:
    messages = pl.DataFrame(
        {
            "kind": ["dp", "dp", "pp", "pp"],
            "stream": [0, 1, 2, 2],
            "step": 0,
            "num": [1, 1, 2, 2],
            "bytes": [1000, 1000, 500, 500],
            "start_ns": [0, 7 * MS, 20 * MS, 30 * MS],
            "end_ns": [10 * MS, 10 * MS, 21 * MS, 35 * MS],
        }
    )
    begun = begin_together(messages).sort("stream", "end_ns")["start_ns"]
    assert begun.to_list() == [7 * MS, 7 * MS, 20 * MS, 34 * MS]


def test_a_mark_that_strays_moves_to_where_as_many_messages_have_been_sent() -> None:
    first = STEP * np.arange(8)
    start = (first[:, None] + 5 * MS * np.arange(10)).ravel()
    marks = first + 50 * MS
    strayed = marks.copy()
    strayed[4] -= 20 * MS
    assert mend_marks(strayed, start).tolist() == marks[: len(strayed)].tolist()


def test_several_marks_in_a_row_that_stray_move_to_where_they_are_due() -> None:
    first = STEP * np.arange(12)
    start = (first[:, None] + 5 * MS * np.arange(10)).ravel()
    marks = first + 50 * MS
    strayed = marks.copy()
    strayed[4:6] -= np.array([20, 10]) * MS
    assert mend_marks(strayed, start).tolist() == marks.tolist()


@pytest.mark.parametrize(("jitter", "chosen"), [(0.002, "dp 1 apart end"), (0.011, "dp None apart end")])
def test_the_last_gradients_close_a_step_where_no_other_clock_is_far_steadier(jitter: float, chosen: str) -> None:
    marks = STEP * np.arange(1, 21)
    clocks = [
        Clock(name="dp None apart end", marks=marks, jitter=0.0005, closing=True, complete=1.0),
        Clock(name="dp 1 apart end", marks=marks, jitter=jitter, closing=True, complete=1.0, gradients=True),
    ]
    found = choose_clock(clocks, marks + 20 * MS, np.ones(20, np.bool_))
    assert found is not None and found.name == chosen


def test_a_clock_is_as_complete_where_a_capture_ends_in_the_middle_of_a_step() -> None:
    sent = send_gradients(STEP * np.arange(9), np.where(np.arange(9) == 8, 3, BUCKETS)).sort("start_ns")
    start, end = sent["start_ns"].to_numpy(), sent["end_ns"].to_numpy()
    none, opening = Spans(start=start[:0], end=start[:0]), np.ones(len(start), np.bool_)
    row = sent["stream"].to_numpy().astype(np.int64)
    clocks = {c.name: c for c in list_clocks(start, end, row, STREAMS, STEP, opening, None, none)}
    assert clocks["dp None apart start"].complete == 1.0


def test_the_last_gradients_are_the_smaller_ones_that_follow_the_largest_at_once() -> None:
    # The largest from 60 to 70 ms, those of experts until 75 ms, and after the update parameters from 80 to 90 ms.
    begins = STEP * np.arange(6)
    start = (begins[:, None] + MS * np.array([60, 70, 80])).ravel()
    end = (begins[:, None] + MS * np.array([70, 75, 90])).ravel()
    assert end_bursts(begins + 70 * MS, start, end, STEP).tolist() == (begins + 75 * MS).tolist()
    # What is sent without a pause tells nothing.
    assert end_bursts(begins + 70 * MS, begins, begins + STEP, STEP).tolist() == (begins + 70 * MS).tolist()


def test_steps_end_where_the_job_pauses_though_another_silence_is_longer() -> None:
    # Parameters are gathered from 15 to 31 ms after a step begins, gradients are summed from 70 to 81 ms after it.
    begins = STEP * np.arange(20) + 60 * MS * (np.arange(20) // 5)
    times = [begins[:, None] + 15 * MS + 5 * MS * np.arange(4), begins[:, None] + 70 * MS + 5 * MS * np.arange(3)]
    sent = pl.concat(
        pl.DataFrame({"stream": np.full(t.size, 2 * i + v, np.uint32), "start_ns": t.ravel(), "end_ns": t.ravel() + MS})
        for i, t in enumerate(times)
        for v in (0, 1)
    )
    other = STREAMS.with_columns(pl.col("stream") + 2, bytes=pl.lit(3e6))
    found = lengths_ms(find_steps(sent, pl.concat([STREAMS, other]), STEP))
    assert found[1:-1] == [100.0] * 3 + ([160.0] + [100.0] * 4) * 2 + [160.0] + [100.0] * 4


def pause_once(pause_ms: int) -> NDArray[np.int64]:
    """Twelve steps with one pause before the seventh."""
    return STEP * np.arange(12) + np.where(np.arange(12) > 5, pause_ms * MS, 0)


def save_before(begins: NDArray[np.int64], rest_ms: int) -> pl.DataFrame:
    """Writes of 200 ms that are done some time before steps begin."""
    ends = begins - rest_ms * MS
    return pl.DataFrame({"start_ns": ends - 200 * MS, "end_ns": ends})


@pytest.mark.parametrize("often", [1, 3])
def test_a_pause_longer_than_a_step_belongs_to_none_unless_the_step_waits_for_storage(often: int) -> None:
    # An evaluation, or a checkpoint, before every fifth step.
    late = 300 * MS * np.minimum(np.arange(20) // 5, often)
    begins = STEP * np.arange(20) + late
    paused = begins[5 * np.arange(1, often + 1)]
    for written in (None, save_before(paused, rest_ms=60)):
        steps = find_steps(send_gradients(begins), STREAMS, STEP, written)
        assert lengths_ms(steps) == [100.0] * 20
        between = (steps["start_ns"][1:] - steps["end_ns"][:-1]).to_numpy()
        assert between[between > 0].tolist() == [300 * MS] * often
    # The job goes on at the moment when all is saved.
    waited = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP, save_before(paused, rest_ms=0)))
    assert waited == [400.0 if i % 5 == 4 and i < 5 * often else 100.0 for i in range(20)]


@pytest.mark.parametrize("held", [1, 2])
def test_a_job_waits_for_storage_in_all_of_its_saves_or_in_none(held: int) -> None:
    # Three saves; the last files of some are written until the job goes on, or those of others are not seen.
    begins = STEP * np.arange(20) + 300 * MS * np.minimum(np.arange(20) // 5, 3)
    paused = begins[[5, 10, 15]]
    saves = pl.concat([save_before(paused[:held], rest_ms=0), save_before(paused[held:], rest_ms=60)])
    found = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP, saves))
    assert found == [400.0 if held == 2 and i in (4, 9, 14) else 100.0 for i in range(20)]


@pytest.mark.parametrize(("written_ms", "last"), [(200, 400.0), (5, 100.0)])
def test_a_pause_after_which_the_job_saves_as_long_is_one_in_which_it_copied_its_weights(
    written_ms: int, last: float
) -> None:
    """A few numbers that are written after an evaluation are no save."""
    begins = pause_once(300)
    saves = pl.DataFrame({"start_ns": [begins[6] + 5 * MS], "end_ns": [begins[6] + (5 + written_ms) * MS]})
    found = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP, saves))
    assert found == [100.0] * 5 + [last] + [100.0] * 6


@pytest.mark.parametrize("saved", [False, True])
def test_a_pause_of_a_fiftieth_of_a_step_is_told_by_what_is_saved_in_it(saved: bool) -> None:
    begins = STEP * np.arange(12) + 2 * MS * (np.arange(12) // 3)
    paused = begins[3::3]
    saves = pl.DataFrame({"start_ns": paused - MS, "end_ns": paused + 50 * MS}) if saved else None
    found = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP, saves))
    assert found[2::3][:3] == ([102.0] * 3 if saved else [100.0] * 3)


def test_what_is_left_after_the_last_boundary_is_what_the_last_step_lacks() -> None:
    # In the last step one bucket comes late, after a silence as long as that between steps.
    sent = send_gradients(STEP * np.arange(20))
    last = pl.col("start_ns") == sent["start_ns"].max()
    late = pl.when(last).then(60 * MS).otherwise(0)
    steps = find_steps(sent.with_columns(pl.col("start_ns") + late, pl.col("end_ns") + late), STREAMS, STEP)
    assert lengths_ms(steps) == [*[100.0] * 19, 160.0]


def test_messages_that_end_when_they_start_come_before_the_end_of_their_step() -> None:
    # Times in milliseconds: three messages of each of two streams at 70, 70 and 71 ms, or all at once.
    last = np.where(np.arange(40) % 3, 71, 70)
    start = np.sort(np.concatenate([STEP * np.arange(40) + MS * at for at in (70, 70, 70, 70, last, last)]))
    none = Spans(start=start[:0], end=start[:0])
    row, opening = np.arange(len(start)) % 2, np.ones(len(start), np.bool_)
    clocks = list_clocks(start, start, row, STREAMS, STEP, opening, None, none)
    assert clocks
    for clock in clocks:
        assert set(np.diff(np.searchsorted(start, clock.marks)).tolist()) == {6}, clock.name


@pytest.mark.parametrize(("share", "chosen"), [(0.97, "dp 1 longest end"), (0.65, "numbers apart end")])
def test_gradients_close_a_step_but_not_where_every_norm_is_summed_far_from_them(share: float, chosen: str) -> None:
    ends = STEP * np.arange(1, 21)
    tensors = ends - STEP + round(share * STEP)
    start = np.sort(np.concatenate([ends + 20 * MS, tensors + 30 * MS]))
    clocks = [
        Clock(name=name, marks=marks, jitter=jitter, closing=True, complete=1.0)
        for name, marks, jitter in (("numbers apart end", ends, 0.0023), ("dp 1 longest end", tensors, 0.0025))
    ]
    found = choose_clock(clocks, start, np.ones(len(start), np.bool_))
    assert found is not None and found.name == chosen


@pytest.mark.parametrize("begun_ms", [590, 620])
def test_a_save_after_the_last_step_holds_the_job_up_as_long_as_the_one_before_did(begun_ms: int) -> None:
    # The job waits for storage, or for a copy that is written while it goes on.
    after = pl.DataFrame({"start_ns": [1250 * MS], "end_ns": [1280 * MS]})
    before = pl.DataFrame({"start_ns": [begun_ms * MS], "end_ns": [begun_ms * MS + 34 * MS]})
    sent = send_gradients(pause_once(40))
    assert lengths_ms(find_steps(sent, STREAMS, STEP, pl.concat([before, after])))[-1] == 140.0
    assert lengths_ms(find_steps(sent, STREAMS, STEP, after))[-1] == 100.0


def test_a_step_ends_with_its_last_gradients_where_layers_are_gathered_all_through_it() -> None:
    begins = STEP * np.arange(12)
    gathers = begins[:, None] + MS * np.array([10, 14, 18, 22, 26, 55, 60, 65, 70, 75])
    sums = begins[:, None] + 80 * MS + np.where(np.arange(12) % 2, MS, 0)[:, None]
    parts = [(0, gathers.ravel(), 2 * MS), (1, sums.ravel(), 3 * MS)]
    sent = pl.concat(
        pl.DataFrame({"stream": np.full(len(t), v, np.uint32), "start_ns": t, "end_ns": t + took})
        for v, t, took in parts
    )
    streams = STREAMS.with_columns(src=pl.lit(0), dst=pl.lit(1), bytes=pl.Series([1e6, 8e6]))
    steps = find_steps(sent, streams, STEP)
    assert (steps["start_ns"][1:] - begins[:-1]).to_list()[:3] == [83 * MS, 84 * MS, 83 * MS]


def test_a_step_ends_with_gradients_that_are_as_large_as_parameters_but_half_as_many() -> None:
    """Six layers gathered in both passes and reduced in the second one, which takes twice as long."""
    rng = np.random.default_rng(1)
    begins = STEP * np.arange(20)
    noise = rng.normal(0, 2e5, (20, 1)).astype(np.int64)
    gathers = begins[:, None] + (MS * np.array([0, 0.5, 6, 11, 16, 22, 33, 44, 55, 66, 77])).astype(np.int64) + noise
    sums = begins[:, None] + (MS * np.array([43.5, 54.5, 65.0, 76.0, 86.5, 97.0])).astype(np.int64) + noise
    sent = pl.concat(
        pl.DataFrame({"stream": np.full(t.size, v, np.uint32), "start_ns": t.ravel(), "end_ns": t.ravel() + MS // 2})
        for v, t in ((0, gathers), (1, sums))
    )
    streams = STREAMS.with_columns(src=pl.lit(0), dst=pl.lit(1))
    ends = find_steps(sent, streams, STEP)["end_ns"].to_numpy()
    assert len(ends) >= 19
    assert np.isin(ends, sums[:, -1] + MS // 2).all()


def test_a_steady_clock_is_kept_where_no_two_steps_have_as_many_messages() -> None:
    marks = STEP * np.arange(1, 21)
    clocks = [
        Clock(name="dp 1 apart end", marks=marks, jitter=0.007, closing=True, complete=0.44),
        Clock(name="dp 2 apart end", marks=marks + 30 * MS, jitter=0.15, closing=True, complete=0.77),
    ]
    found = choose_clock(clocks, marks + 20 * MS, np.ones(20, np.bool_))
    assert found is not None and found.name == "dp 1 apart end"


def test_remnants_of_torn_transfers_tell_no_boundaries_and_norms_do() -> None:
    streams = pl.DataFrame(
        {"stream": range(4), "pair": [0, 0, 0, 1], "bytes": [1e8, 4e6, 8.0, 4e6], "num": [100, 30, 100, 30],
         "role": "oneway", "kind": "dp", "cut": False, "presence": 1.0}
    )  # fmt: skip
    torn = np.sort(np.random.default_rng(1).integers(0, 100 * STEP, 30))
    traffic: Any = SimpleNamespace(
        columns={"start_ns": torn, "end_ns": torn + MS}, rows_of_stream=lambda stream: np.arange(30)
    )
    remnants = find_remnants(traffic, streams)
    assert choose_step_streams(streams, remnants)["role"].to_list() == ["oneway", "rare", "oneway", "oneway"]


def test_the_first_step_of_a_job_needs_no_parameters() -> None:
    begins = STEP * np.arange(12)
    gathers = begins[1:, None] + MS * np.array([5, 8])
    sums = begins[:, None] + MS * np.array([50, 60, 70])
    sent = pl.concat(
        pl.DataFrame({"stream": np.full(t.size, v, np.uint32), "start_ns": t.ravel(), "end_ns": t.ravel() + 3 * MS})
        for v, t in ((0, gathers), (1, sums))
    )
    streams = STREAMS.with_columns(src=pl.lit(0), dst=pl.lit(1), bytes=pl.Series([6e6, 8e6]))
    assert lengths_ms(find_steps(sent, streams, STEP)) == [100.0] * 12


def test_pauses_of_neighbouring_steps_are_told_by_what_is_saved_in_them() -> None:
    late = np.cumsum(np.where(np.isin(np.arange(12), (5, 6)), 30 * MS, 0))
    begins = STEP * np.arange(12) + late
    saves = pl.DataFrame({"start_ns": [495 * MS, 625 * MS], "end_ns": [520 * MS, 650 * MS]})
    found = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP, saves))
    assert found == [100.0] * 4 + [130.0, 130.0] + [100.0] * 6


@pytest.mark.parametrize("saves", [0, 1])
def test_a_lost_first_message_is_no_pause(saves: int) -> None:
    """Not even where the job writes something to storage at that moment."""
    sent = send_gradients(STEP * np.arange(12))
    lost = sent.filter(~pl.col("start_ns").is_between(660 * MS, 668 * MS))
    written = pl.DataFrame({"start_ns": [610 * MS] * saves, "end_ns": [612 * MS] * saves})
    assert lengths_ms(find_steps(lost, STREAMS, STEP, written)) == [100.0] * 12


def test_a_first_step_with_as_many_messages_as_some_others_is_whole() -> None:
    sent = send_gradients(STEP * np.arange(20))
    lost = sent.filter(pl.col("start_ns") % (500 * MS) != 170 * MS)
    assert lengths_ms(find_steps(lost, STREAMS, STEP)) == [100.0] * 20


def test_a_slow_step_among_steps_that_are_alike_by_chance_is_no_pause() -> None:
    longer = np.random.default_rng(1).uniform(-6, 6, 40)
    longer[10:24] = np.where(np.arange(14) == 7, 4, 0)
    longer = (longer * MS).astype(np.int64)
    begins = STEP * np.arange(40) + np.cumsum(longer)
    found = lengths_ms(find_steps(send_gradients(begins), STREAMS, STEP))
    assert found[1:-1] == pytest.approx((100 + longer / MS)[1:-1], abs=0.01)


@pytest.mark.parametrize("most", [None, 40])
def test_steps_whose_transfers_were_torn_into_many_records_are_no_more_steps(most: int | None) -> None:
    """Some of the transfers, or all of them into any number of records."""
    begins = STEP * np.arange(20)
    some = (80, 30, 55, 70, 40, 62) if most is None else np.random.default_rng(1).integers(0, most, 20).tolist()
    many = zip(begins[6:12] if most is None else begins, some, strict=True)
    torn = np.concatenate([begin + 61 * MS + MS // 4 * np.arange(num) for begin, num in many])
    parts = pl.DataFrame({"stream": np.zeros(len(torn), np.uint32), "start_ns": torn, "end_ns": torn})
    sent = pl.concat([send_gradients(begins), parts])
    assert lengths_ms(find_steps(sent, STREAMS, STEP))[1:] == [100.0] * 19


def test_a_mark_that_strays_to_a_longer_silence_of_the_step_is_before_no_pause() -> None:
    """Messages from 0 to 20 and from 40 to 60 ms of every step; the second clock strays three times."""
    begin = STEP * np.arange(20)
    start = np.sort(np.add.outer(begin, np.array([0, 10, 20, 40, 50, 60]) * MS).ravel())
    first, second = begin + 61 * MS, begin + 21 * MS
    second[[5, 10, 15]] += 40 * MS
    clocks = [
        Clock(name=name, marks=marks, jitter=0.01, closing=True, complete=1.0)
        for name, marks in (("dp 1", first), ("dp 2", second))
    ]
    chosen = choose_clock(clocks, start, np.ones(len(start), np.bool_))
    assert chosen is not None and chosen.name == "dp 1"


def test_a_mark_that_makes_a_step_short_is_before_no_pause_where_steps_are_slow() -> None:
    """Steps of 150 instead of 100 ms for a while; the second clock strays in some of these, to their longer silence."""
    slow = (np.arange(30) > 8) & (np.arange(30) < 22)
    begin = np.concatenate([[0], np.cumsum(np.where(slow, 150, 100))[:-1]]) * MS
    later = np.where(slow, 45, 0)[:, None] * (np.arange(6) > 2)
    start = np.sort((begin[:, None] + (np.array([0, 10, 20, 60, 70, 80]) + later) * MS).ravel())
    first, second = (begin + (at + later[:, -1]) * MS for at in (81, 61))
    second[[11, 14, 18]] = begin[[11, 14, 18]] + 21 * MS
    clocks = [
        Clock(name=name, marks=marks, jitter=0.01, closing=True, complete=1.0)
        for name, marks in (("dp 1", first), ("dp 2", second))
    ]
    chosen = choose_clock(clocks, start, np.ones(len(start), np.bool_))
    assert chosen is not None and chosen.name == "dp 1"


def test_a_step_with_few_messages_that_is_as_long_as_others_is_no_part_of_one() -> None:
    first = STEP * np.arange(10)
    num = np.where(np.arange(10) == 4, 2, 10)  # An exporter merged most.
    start = np.concatenate([t + 5 * MS * np.arange(n) for t, n in zip(first, num, strict=True)])
    marks = first + 50 * MS
    assert mend_marks(marks, start).tolist() == marks.tolist()


@pytest.mark.parametrize(("others_ms", "end_ms"), [([53, 59, 66, 72], 74), ([5, 8], 64)])
def test_others_between_the_largest_gradients_are_gradients_where_all_rest(others_ms: list[int], end_ms: int) -> None:
    """Three of the largest gradients; others are smaller ones, or parameters that are gathered after the update."""
    begins = STEP * np.arange(12)
    sums, others = (begins[:, None] + MS * np.array(at) for at in ([50, 56, 62], others_ms))
    sent = pl.concat(
        pl.DataFrame({"stream": np.full(t.size, v, np.uint32), "start_ns": t.ravel(), "end_ns": t.ravel() + 2 * MS})
        for v, t in ((0, others), (1, sums))
    )
    streams = STREAMS.with_columns(src=pl.lit(0), dst=pl.lit(1), bytes=pl.Series([6e6, 8e6]))
    steps = find_steps(sent, streams, STEP)
    assert set((steps["end_ns"][1:-1] % STEP // MS).to_list()) == {end_ms}


def test_a_step_begins_with_the_layer_that_waits_for_the_update_where_each_micro_batch_gathers_all() -> None:
    """Two micro-batches: a large layer, then small ones after compute; the update takes 5 ms between two steps."""
    rng = np.random.default_rng(1)
    begins = STEP * np.arange(20) + rng.normal(0, 3e5, 20).astype(np.int64)
    large = begins[:, None] + MS * np.array([0, 47])
    small = begins[:, None] + MS * np.array([9, 18, 27, 36, 44, 56, 65, 74, 83, 92])
    sent = pl.concat(
        pl.DataFrame({"stream": np.full(t.size, v, np.uint32), "start_ns": t.ravel(), "end_ns": t.ravel() + 3 * MS})
        for v, t in ((0, small), (1, large))
    )
    streams = STREAMS.with_columns(src=pl.lit(0), dst=pl.lit(1), bytes=pl.Series([1e6, 2e6]))
    found = find_steps(sent, streams, STEP)["start_ns"].to_numpy()
    assert np.isin(found[1:], begins).all()


def test_only_what_is_known_to_go_back_does_not_open_a_step() -> None:
    # Hosts 0 and 1 send forward faster than back; of 2 and 3 nothing tells which way is which.
    ends = [(0, 1), (1, 0), (2, 3), (3, 2)]
    begin, apart = (np.array([0, 50, 0, 55]), np.array([10, 25, 25, 25]))
    at = (begin[:, None] + apart[:, None] * np.arange(4)).ravel()
    row = np.repeat(np.arange(4), 4)
    order = np.argsort(at, kind="stable")
    src, dst = zip(*ends, strict=True)
    streams = pl.DataFrame({"role": ["pp"] * 4, "src_host": src, "dst_host": dst})
    opening = _open_steps(pl.DataFrame({"start_ns": at[order] * MS, "row": row[order]}), streams)
    assert [bool(opening[row[order] == r].all()) for r in range(4)] == [True, False, True, True]
    assert not opening[row[order] == 1].any()
