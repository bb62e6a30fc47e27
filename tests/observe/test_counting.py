"""Steps by counting: however uneven their lengths, the number of messages between two of them is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.lab.scenarios import make_scenario, random_scenario
from prism.lab.scenarios.measurement import Measurement
from prism.observe.jobs.grouping import recognise_jobs
from prism.observe.jobs.step_counts import StreamStarts, choose_period, count_steps, holds_most, time_rests
from prism.observe.traffic.clock_offsets import align_clocks
from prism.observe.traffic.period import pack_starts as pack_times
from prism.observe.traffic.preparation import prepare_traffic


def pack_starts(lengths_ms: list[int], micro_batches: int) -> list[StreamStarts]:
    """Two pipeline pairs that speak once per micro-batch, two of gradients that speak once at the end of a step."""
    ends = np.cumsum(np.array(lengths_ms) * 1_000_000)
    starts = np.concatenate([[0], ends[:-1]])
    shares = (np.arange(micro_batches) + 0.5) / (micro_batches + 1)
    micro = (starts[:, None] + shares[None, :] * (ends - starts)[:, None]).astype(np.int64).ravel()
    last = ends - 1_000_000
    return [
        StreamStarts(times=micro, klass=1),
        StreamStarts(times=micro + 1000, klass=1),
        StreamStarts(times=last, klass=2),
        StreamStarts(times=last + 500, klass=2),
    ]


@given(st.lists(st.integers(100, 2000), min_size=6, max_size=60), st.integers(2, 16))
def test_the_usual_step_is_found_whatever_the_lengths(lengths: list[int], micro_batches: int) -> None:
    found = count_steps(pack_starts(lengths, micro_batches))
    # Marks at the ends of steps: the first length is before the first mark.
    assert found == np.median(lengths[1:]) * 1_000_000


def test_a_single_stream_tells_nothing() -> None:
    assert count_steps([StreamStarts(times=np.arange(0, 10**9, 10**7), klass=0)]) is None


def test_fewer_messages_than_steps_need_tell_nothing() -> None:
    assert count_steps(pack_starts([100, 100], 4)) is None


def make_pipeline(slower: float) -> list[StreamStarts]:
    """Three pairs of a pipeline with 16 micro-batches, each at distances of its own; the last 3 of 8 steps slower."""
    rest = [(3, 150, 1280), (2, 150, 1000), (0, 440, 440)]
    found = []
    for warm_up, short, wait in rest:
        gaps = [short] * warm_up + [wait] + [440] * (14 - warm_up)
        step = np.array([*gaps, 8390 - sum(gaps)], np.float64)
        every = np.concatenate([step] * 5 + [step * slower] * 3)
        noise = 1 + 0.01 * np.sin(np.arange(len(every)) * 7.0)
        found.append(StreamStarts(times=np.cumsum(every * noise * 1e6).astype(np.int64), klass=1))
    return found


def test_micro_batches_of_a_pipeline_that_slows_down_are_no_steps() -> None:
    single = make_pipeline(slower=2.06)
    assert count_steps(single) == pytest.approx(440e6, rel=0.02)
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    found = choose_period(packed, single, single, np.zeros(0, np.int64), 20_000)
    assert found is not None and abs(found / 8390e6 - 1) < 0.01


def test_a_pipeline_whose_groups_are_unlike_has_the_steps_that_repeat_and_count_alike() -> None:
    # What two ranks of a 1F1B pipeline send onward, and what one gets back; a checkpoint after every fifth step.
    onward, back = [0, 104, 208, 946, 1275, 1604, 1935, 2269], [646, 981, 1305, 1633, 1957, 2293, 2619, 2950]
    begins = 3606 * np.arange(12) + 230 * (np.arange(12) // 5)
    single = []
    for k, inside in enumerate((onward, onward, back)):
        noise = np.random.default_rng(k).normal(0, 5, (12, 8))
        times = np.sort((begins[:, None] + np.array(inside) + noise).ravel() * 1e6).astype(np.int64)
        single.append(StreamStarts(times=times, klass=1))
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    found = choose_period(packed, single, single, np.zeros(0, np.int64), 20_000)
    assert found == pytest.approx(3606e6, rel=0.05)


def choose(streams: list[np.ndarray]) -> float | None:
    """The period of streams of one size each, without saves."""
    single = [StreamStarts(times=times.astype(np.int64), klass=k) for k, times in enumerate(streams)]
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    return choose_period(packed, single, single, np.zeros(0, np.int64), 20_000)


def test_steps_of_two_lengths_are_no_common_multiple_of_them() -> None:
    # Buckets of gradients in one go; a fault makes the later steps half as long again.
    lengths = np.repeat([200e6, 300e6], [15, 20])
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    found = choose([(begins[:, None] + 4e6 * np.arange(10) + late).ravel() for late in (0, 1e6)])
    assert found is not None and 190e6 < found < 310e6


def test_steps_of_two_lengths_that_have_a_common_multiple_are_those_between_groups_of_all_classes() -> None:
    # Two micro-batches onward and back, and a size of its own; two of the longer steps last as three of the others.
    lengths = np.repeat([560e6, 840e6], [40, 20])
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    inside = ([0, 0.25], [0.02, 0.27], [0.9])
    found = choose([(begins[:, None] + np.outer(lengths, one)).ravel() for one in inside])
    assert found is not None and 500e6 < found < 600e6


def test_a_change_of_length_that_is_not_in_the_middle_leaves_no_common_multiple_either() -> None:
    # Three of the short steps last as long as two of the long ones, which take two thirds of the time.
    lengths = np.repeat([555e6, 832e6], [26, 33])
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    inside = np.array([0.0, 0.3])
    found = choose([(begins[:, None] + lengths[:, None] * (inside + late)).ravel() for late in (0, 0.01, 0.02)])
    assert found is not None and 550e6 < found < 840e6


def test_pauses_that_a_fault_brings_after_every_few_steps_do_not_make_these_one_step() -> None:
    """In the second half every seventh step is quick, and in one of the others a pause parts what a step sends."""
    lengths = np.array([317e6] * 45 + [475e6, 473e6, 449e6, 448e6, 475e6, 463e6, 317e6] * 8)
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rng, streams = np.random.default_rng(4), []
    for k in range(3):
        late = 5e6 * k + rng.normal(0, 1e6, len(begins))
        times = begins[:, None] + late[:, None] + 5e6 * np.arange(16)
        times[49::7, 8:] += 150e6
        streams.append(times.ravel())
    found = choose(streams)
    assert found is not None and 310e6 < found < 480e6


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_are_parts_of_a_step_however_quick_the_optimizer_is(parts: int) -> None:
    rng = np.random.default_rng(3)
    lengths = (1e9 + 8e6 * (np.arange(120) % parts == 0)) * rng.normal(1, 0.001, 120)
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    found = choose([begins, begins + 3e8 * rng.normal(1, 0.001, 120)])
    assert found == pytest.approx(parts * 1e9 + 8e6, rel=0.01)


def test_micro_batches_of_a_pipeline_are_parts_of_a_step_though_records_are_lost() -> None:
    rng = np.random.default_rng(5)
    onward, back = np.array([0, 30, *range(90, 450, 60)]), 90 + 60 * np.arange(8)
    streams = []
    for inside in (onward, onward, back, back):
        times = ((540 * np.arange(100)[:, None] + inside) * 1e6 + rng.normal(0, 2e5, (100, 8))).ravel()
        streams.append(StreamStarts(times=np.sort(times[rng.random(800) > 0.02]).astype(np.int64), klass=1))
    packed = pack_times([s.times for s in streams], [1] * 4, 20_000)
    assert choose_period(packed, streams, streams, np.zeros(0, np.int64), 20_000) == pytest.approx(540e6, rel=0.01)


def test_a_clear_rhythm_of_few_steps_outweighs_what_rests_and_counts_of_micro_batches_say() -> None:
    # The first rank of a pipeline of eight stages fills it before answers come; the others answer once a micro-batch.
    onward = np.cumsum([0, *[47] * 6, 383, *[138] * 5, 180, 139, 139])
    single = []
    for k, inside in enumerate((onward, 571 + 139 * np.arange(16), 381 + 139 * np.arange(16))):
        noise = np.random.default_rng(k).normal(0, 1, (4, 16))
        times = ((3217 * np.arange(4)[:, None] + inside + noise) * 1e6).ravel()
        single.append(StreamStarts(times=times.astype(np.int64), klass=1))
    packed = pack_times([s.times for s in single], [1] * 3, 20_000)
    found = choose_period(packed, single, single, np.zeros(0, np.int64), 20_000)
    assert found == pytest.approx(3217e6, rel=0.01)


def test_several_steps_and_a_checkpoint_are_no_step() -> None:
    """Steps that differ within every round of four repeat with the round, at the end of which the job saves."""
    begin = np.cumsum(np.tile([150, 182, 158, 220], 12)) * 1_000_000
    single = [
        StreamStarts(times=(begin[:, None] + np.arange(6) * gap * 1_000_000).ravel() + 1_000_000 * klass, klass=klass)
        for klass, gap in enumerate((19, 20, 21))
    ]
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    saves = begin[3::4] - 30_000_000
    assert choose_period(packed, single, single, saves, 20_000) == pytest.approx(170e6, rel=0.1)


def test_three_steps_and_a_save_that_lasts_longer_than_they_do_are_no_step() -> None:
    """Two writes in a step of the save, which take until the next step begins."""
    begin = np.cumsum(np.tile([1000, 1000, 6000], 8)) * 1e6
    single = [StreamStarts(times=(begin + k * 1e8).astype(np.int64), klass=k) for k in (1, 2)]
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    saves = (begin[1::3, None] + 1e9 + 5e8 * np.arange(10)).ravel().astype(np.int64)
    assert choose_period(packed, single, single, saves, 20_000) == pytest.approx(1e9, rel=0.01)


def test_bursts_of_as_many_messages_are_steps_however_long_they_last() -> None:
    """Gradients of 32 layers in each of eleven steps, which slow down; of two pairs hardly anything is recorded."""
    begin = np.cumsum([0, 434, 434, 434, 719, 443, 487, 606, 890, 613, 606]) * 1e6
    bursts = (begin[:, None] + 4e6 * np.arange(32)).ravel().astype(np.int64)
    found = time_rests([StreamStarts(times=times, klass=0) for times in (bursts, bursts[:4], bursts[:4])])
    assert found is not None and 434e6 < found < 720e6


def test_remnants_that_come_by_ones_twos_and_threes_rest_at_no_steps() -> None:
    """A bucket in every step of 100 ms, and what is left of torn ones now and then."""
    bucket = np.arange(0, 60 * 10**8, 10**8)
    begin = np.cumsum([0, 6, 7, 5, 6, 8, 4, 6, 7, 5, 6]) * 10**8
    many = [2, 1, 3, 2, 1, 2, 3, 1, 2, 3, 2]
    remnant = np.concatenate([t + 10**7 * np.arange(n) for t, n in zip(begin, many, strict=True)])
    assert time_rests([StreamStarts(times=bucket, klass=0), StreamStarts(times=remnant, klass=1)]) == 1e8


def test_the_stream_of_a_size_that_was_torn_least_tells_how_long_it_rests() -> None:
    bucket = np.arange(0, 40 * 10**8, 10**8)
    torn = [bucket[[0, 7, 20, 25, 30, 35]], bucket[[1, 6, 11, 16, 21, 26, 36]]]
    assert time_rests([StreamStarts(times=times, klass=0) for times in (*torn, bucket)]) == 1e8


def test_a_stream_of_torn_messages_that_rests_alike_by_chance_says_nothing_where_one_with_more_does_not() -> None:
    bucket = np.arange(0, 40 * 10**8, 10**8)
    more, fewer = bucket[[0, 1, 4, 6, 7, 11, 12, 18, 19, 27, 30, 38]], bucket[[2, 8, 14, 20, 26, 32, 38]]
    single = [StreamStarts(times=times, klass=klass) for times, klass in ((bucket, 0), (more, 1), (fewer, 1))]
    assert time_rests(single) == 1e8


def test_the_time_of_a_layer_holds_few_of_the_sizes_that_a_step_does() -> None:
    """Tokens of eighty layers in each of four steps of 200 ms, and buckets of two other sizes at their end."""
    begin = 200 * np.arange(4)
    sent = [2.0 * np.arange(80), 175 + 2.0 * np.arange(5), 176 + 2.0 * np.arange(5)]
    single = [
        StreamStarts(times=(np.add.outer(begin, at).ravel() * 1e6).astype(np.int64), klass=k)
        for k, at in enumerate(sent)
    ]
    assert holds_most(2e8, single) and not holds_most(2e6, single)


def test_marks_of_a_burst_leave_what_most_messages_are_between_bursts_and_count_no_steps() -> None:
    """Two sizes of five buckets each, and tokens of many layers before them, in each of five steps."""
    begin = 200 * np.arange(5)
    tokens = (np.add.outer(begin, np.sort(np.random.default_rng(1).uniform(0, 160, 300))).ravel() * 1e6).astype(
        np.int64
    )
    buckets = [(np.add.outer(begin, 170 + 5 * np.arange(5) + k).ravel() * 1e6).astype(np.int64) for k in range(2)]
    streams = [StreamStarts(times=times, klass=k) for k, times in enumerate([tokens, *buckets]) for _ in range(2)]
    found = count_steps(streams)
    assert found is None or found > 1e8


def test_micro_batches_are_parts_of_a_step_though_the_job_saves_after_every_few_steps() -> None:
    """Two micro-batches, of which the second is longer by the optimizer, and a save after every seventh step."""
    halves = np.tile([1250, 1300] * 6 + [1250, 2300], 8) + np.random.default_rng(1).normal(0, 1, 112)
    times = [((np.cumsum(halves) + k) * 1e6).astype(np.int64) for k in range(3)]
    single = [StreamStarts(times=t, klass=k) for k, t in enumerate(times)]
    packed = pack_times(times, [0, 1, 2], 20_000)
    assert choose_period(packed, single, single, np.zeros(0, np.int64), 20_000) == pytest.approx(2.55e9, rel=0.01)


@pytest.mark.parametrize(("num_torn", "jitter_ns"), [(6, 4e6), (0, 1e7)])
def test_steps_between_evaluations_are_no_parts_of_a_step(num_torn: int, jitter_ns: float) -> None:
    """Four buckets and a smaller one in every step, of some a part is torn off; twenty steps, then a few of silence."""
    rng = np.random.default_rng(1)
    silent = np.where(np.arange(140) % 20 == 19, rng.uniform(3e9, 5e9, 140), 0)
    begin = np.cumsum(rng.normal(5e8, jitter_ns, 140) + silent)
    buckets = [np.add.outer(begin, 5e8 * np.array(at)).ravel() for at in ([0.3, 0.4, 0.5, 0.6], [0.75], [0.76])]
    torn = [np.sort(rng.choice(begin, 60, replace=False)) + 4e8 for _ in range(num_torn)]
    single = [
        StreamStarts(times=times.astype(np.int64), klass=klass)
        for times, klass in zip([*buckets, *torn], [0, 1, 1, 2, 2, 2, 3, 3, 3], strict=False)
    ]
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    found = choose_period(packed, single, single, np.zeros(0, np.int64), 20_000)
    assert found == pytest.approx(5e8, rel=0.01)


def test_files_written_at_any_time_are_no_checkpoints() -> None:
    """Layers that are gathered in both passes and reduced in the second; half of the writes are about a step apart."""
    rng = np.random.default_rng(1)
    begin = 1e9 * np.arange(60)[:, None]
    gathers = [0.0, 0.005, 0.059, 0.112, 0.166, 0.22, 0.33, 0.44, 0.55, 0.66, 0.77]
    sums = [0.435, 0.545, 0.65, 0.76, 0.865, 0.97]
    single = [
        StreamStarts(
            times=((begin + 1e9 * np.array(one) + rng.normal(0, 2e6, (60, 1))).ravel()).astype(np.int64), klass=0
        )
        for one in (gathers, sums, sums)
    ]
    apart = [0.744, 0.361, 4.6, 0.27, 1.42, 4.28, 1.478, 3.2, 1.05, 0.6, 0.7, 1.1, 0.8, 2.5, 1.02]
    writes = (1e9 * np.cumsum(apart)).astype(np.int64)
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    assert choose_period(packed, single, single, writes, 20_000) == pytest.approx(1e9, rel=0.01)


def test_what_alternates_by_a_thousandth_of_a_step_is_no_pair_of_micro_batches() -> None:
    rng = np.random.default_rng(1)
    lengths = 4.49e9 + 4e6 * (np.arange(24) % 2) + rng.normal(0, 5e5, 24)
    begin = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    assert choose([begin, begin + 3e8]) == pytest.approx(4.492e9, rel=0.01)


def test_micro_batches_are_no_steps_where_the_job_saves_after_every_few_steps() -> None:
    """Two stages and four micro-batches, an optimizer that takes as long as one of them; a save every fifth step."""
    rng = np.random.default_rng(1)
    begin = np.cumsum(np.tile([2075, 1512, 1512, 1512, 1512], 15)) + np.cumsum(rng.normal(0, 1.5, 75))
    onward, back = np.cumsum([0, 93, 472, 300]), 500 + 299 * np.arange(4)
    single = []
    for k, inside in enumerate((onward, onward, onward + 3, back, back, back + 3)):
        times = ((begin[:, None] + inside + rng.normal(0, 1.5, (75, 4))) * 1e6).ravel()
        times = times[rng.random(300) > 0.01]
        single.append(StreamStarts(times=np.sort(times).astype(np.int64), klass=k // 3))
    packed = pack_times([s.times for s in single], [s.klass for s in single], 20_000)
    saves = ((begin[4::5, None] + 1500 + 4 * np.arange(100)) * 1e6).ravel().astype(np.int64)
    assert choose_period(packed, single, single, saves, 20_000) == pytest.approx(1512e6, rel=0.01)


@pytest.mark.parametrize(
    ("seed", "degraded"),
    [(11473, False), pytest.param(11655, False, marks=pytest.mark.slow), (11754, False), (11833, True)],
    ids=["steps of two lengths", "layers", "interleaved stages", "micro-batches, records lost"],
)
def test_parts_of_steps_and_several_are_no_steps_in_random_clusters(seed: int, degraded: bool) -> None:
    measured = Measurement(lost=0.01, clock_offset_ms=1.0, sampling_rate=10) if degraded else Measurement()
    made = make_scenario(replace(random_scenario(seed), measurement=measured), seed)
    traffic = prepare_traffic(align_clocks(made.flows, made.topology)[0], made.topology)
    jobs = recognise_jobs(traffic)
    assert len(jobs) == len(made.truth["jobs"])
    for job in made.truth["jobs"]:
        own = np.flatnonzero(traffic.endpoints["address"].is_in(job["endpoints"]).to_numpy())
        (found,) = (one for one in jobs if np.isin(own, one.endpoints).any())
        lengths = [step["end_ns"] - step["start_ns"] for step in job["steps"]]
        assert found.period_ns is not None and min(abs(found.period_ns / one - 1) for one in lengths) < 0.15
