"""Silences at the borders of what is decided: what is stuck, which step broke off, and who sent nothing any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import BEGIN, HOSTS, MESSAGES, MS, S, drop_from, make_case, make_ring, name
from test_progress import make_broken
from test_stopped import cut_last

from prism.observe.findings import silence
from prism.observe.findings.case import Case
from prism.observe.findings.silence import Silence, find_hang
from prism.observe.steps.beginnings import Beginning

STEP = 1200 * MS
STUCK = drop_from(3, 14, but=(0, 1, 3))  # the third host does not send the fourth layer of the last step


# -- a step that only some began


def begin(case: Case, *suspects: int, since_s: float, host_ids: tuple[int, ...] = (0, 1, 2, 3)) -> Case:
    begun = Beginning(start_ns=BEGIN + round(since_s * S), began=2, hosts=4, suspects=suspects)
    return replace(case, beginning=begun, endpoints=case.endpoints.with_columns(host_id=pl.Series(host_ids)))


def test_of_two_neighbours_that_began_no_step_both_are_named_since_others_began_it() -> None:
    case = make_case([1.0] * 6, until_s=30.0)
    (found,) = silence._tell_unbegun(begin(case, 1, 2, since_s=6.0))
    assert (found.kind, found.culprit.type, found.culprit.id) == ("hang", "group", "10.0.1.1,10.0.2.1")
    assert (found.start_ns, found.end_ns) == (BEGIN + 6 * S, case.observed_until_ns)
    assert (found.lost_gpu_seconds, found.score) == (24.0 * HOSTS, 0.8)
    assert found.evidence.startswith("2 of 4 hosts began a step, and others wait for 10.0.1.1 and 10.0.2.1;")
    assert silence._tell_unbegun(begin(case, since_s=6.0)) == [] == silence._tell_unbegun(case)


def test_hosts_of_several_endpoints_that_began_no_step_are_named_by_all_of_them_and_cost_a_step_at_least() -> None:
    case = begin(make_case([1.0] * 6, until_s=6.1), 1, 0, since_s=6.0, host_ids=(0, 0, 1, 1))
    (found,) = silence._tell_unbegun(case)
    assert found.culprit.id == "10.0.2.1,10.0.3.1,10.0.0.1,10.0.1.1"
    assert found.lost_gpu_seconds == 1.0 * HOSTS


# -- what is looked at


@pytest.mark.parametrize("seed", range(20))
def test_a_job_that_is_silent_for_longer_than_a_step_is_never_taken_for_one_that_is_not(seed: int) -> None:
    draw = np.random.default_rng(seed)
    start = np.sort(draw.integers(0, 1000, draw.integers(1, 60)))
    end = start + draw.integers(0, 40, len(start))
    gaps = start[1:] - np.maximum.accumulate(end)[:-1]
    order = draw.permutation(len(start))
    for length in (1.0, 10.0, 33.3, 100.0):
        seen = silence._may_be_silent(start[order], end[order], length)
        assert seen or not (gaps > length).any()
        assert not seen or (gaps > length / 3).any()  # less than a cell is no silence


def test_a_record_that_lies_years_after_the_others_needs_no_grid_as_long() -> None:
    start = np.array([0, STEP, 10**18])
    assert silence._may_be_silent(start, start + MS, 1000.0)


def test_three_steps_are_enough_to_see_who_stopped_and_a_job_without_steps_tells_nothing() -> None:
    few = make_ring(3, left_out=drop_from(3, 2, but=(0, 1, 3)), until_s=60, cut=4096)
    assert name(find_hang(few)) == [("hang", "h2")]
    assert find_hang(replace(few, job=replace(few.job, period_ns=None))) == []
    assert find_hang(replace(few, messages=few.messages.clear())) == []
    assert find_hang(replace(few, streams=few.streams.with_columns(num=0))) == []  # no stream sends in most steps


@pytest.mark.parametrize(("silent_s", "told"), [(3.59, 0), (3.6, 1)])
def test_three_steps_of_silence_at_the_end_are_looked_at(silent_s: float, told: int) -> None:
    half = [(h, 14, layer) for h in range(HOSTS) for layer in range(3, 6)]
    case = make_ring(15, left_out=half, until_s=14 * 1.2 + 0.4 + silent_s)
    assert len(silence._find_silences(case)) == told


def test_the_last_whole_step_before_a_silence_is_found_across_several_that_are_not() -> None:
    left = [(h, step, layer) for step in (12, 13, 14) for h in range(HOSTS) for layer in range(3, 6)]
    (found,) = silence._find_silences(make_ring(15, left_out=left, until_s=60))
    assert (found.last, found.ends) == (11, False)


def test_a_silence_that_broke_off_the_first_step_follows_it() -> None:
    left = [(h, step, layer) for step in range(4) for h in range(HOSTS) for layer in range(6) if step or layer > 2]
    (found,) = silence._find_silences(make_ring(15, left_out=left, until_s=18))
    assert (found.last, found.ends) == (0, True)


@pytest.mark.parametrize(("silent_s", "told"), [(1.1, 0), (1.3, 1)])
def test_a_silence_that_ends_is_looked_at_beyond_a_usual_step(silent_s: float, told: int) -> None:
    assert len(silence._find_silences(make_broken(resumed=False, silent_s=silent_s))) == told


def test_a_silence_lasts_from_the_end_of_the_last_message_to_the_start_of_the_next() -> None:
    # Of the third layer of a step one host sends alone, and of the first layer after two steps another does.
    left = [(h, 7, layer) for h in range(HOSTS) for layer in range(2, 6) if (h, layer) != (1, 2)]
    left += [(h, step, layer) for step in (8, 9) for h in range(HOSTS) for layer in range(6)]
    left += [(h, 10, 0) for h in range(HOSTS) if h != 3]
    (found,) = silence._find_silences(make_ring(15, left_out=left, until_s=18))
    assert (found.start_ns, found.end_ns) == (BEGIN + 7 * STEP + 400 * MS, BEGIN + 10 * STEP)
    left = [(h, 14, layer) for h in range(HOSTS) for layer in range(2, 6) if (h, layer) != (1, 2)]
    (found,) = silence._find_silences(make_ring(15, left_out=left, until_s=60))
    assert found.start_ns == BEGIN + 14 * STEP + 400 * MS


def test_a_silence_of_just_a_usual_step_is_none_and_neither_is_any_where_steps_have_no_length() -> None:
    # Steps of 1.2 s, in which the last layer ends after 850 ms: 350 ms are silent, and 550 ms after it lacks two layers.
    case = make_ring(15, left_out=[(h, 7, layer) for h in range(HOSTS) for layer in (4, 5)], until_s=18)
    gap = 350 * MS + 300 * MS
    for usual, told in ((gap, 0), (gap - 2, 1)):
        steps = case.steps.with_columns(end_ns=pl.col("start_ns") + usual)
        assert len(silence._find_silences(replace(case, steps=steps))) == told
    assert silence._find_silences(replace(case, steps=case.steps.with_columns(end_ns="start_ns"))) == []


# -- transfers that were cut


@pytest.mark.parametrize(("num", "cut"), [(40, True), (60, False)])
def test_one_of_twenty_endpoints_must_be_stuck_where_there_are_many(num: int, cut: bool) -> None:
    case = cut_last(100_000, senders=2)
    end = int(case.messages["end_ns"].max())
    many = replace(case, job=replace(case.job, endpoints=np.arange(num)))
    assert silence._is_cut_short(many, end, end + 9_000 * MS, 1.2e9) is cut


@pytest.mark.parametrize(("num", "cut"), [(2, True), (3, False)])
def test_one_endpoint_that_is_stuck_is_enough_of_two_and_not_of_three(num: int, cut: bool) -> None:
    case = cut_last(100_000, senders=1)
    end = int(case.messages["end_ns"].max())
    few = replace(case, job=replace(case.job, endpoints=np.arange(num)))
    assert silence._is_cut_short(few, end, end + 9_000 * MS, 1.2e9) is cut


@pytest.mark.parametrize(("more", "cut"), [(0, True), (98, True), (99, False)])
def test_records_of_different_sizes_that_end_with_the_capture_may_be_cut_by_it(more: int, cut: bool) -> None:
    case = cut_last(100_000)
    end = int(case.messages["end_ns"].max())
    last = (pl.col("start_ns") == pl.col("start_ns").max()) & (pl.col("src") == 1)
    messages = case.messages.with_columns(bytes=pl.when(last).then(pl.col("bytes") + more).otherwise("bytes"))
    assert silence._is_cut_short(replace(case, messages=messages), end, end, 1.2e9) is cut


@pytest.mark.parametrize(("held_ms", "cut"), [(20, True), (36, True), (50, False)])
def test_records_of_one_size_are_a_stop_where_transfers_were_hardly_ever_held_up(held_ms: int, cut: bool) -> None:
    case = cut_last(100_000)
    end = int(case.messages["end_ns"].max())
    late = (pl.col("step") == 5) & (pl.col("src") == 1)
    held = case.messages.with_columns(end_ns=pl.when(late).then(pl.col("end_ns") + held_ms * MS).otherwise("end_ns"))
    assert silence._is_cut_short(replace(case, messages=held), end, end, 1.2e9) is cut


def mark_late(**columns: Any) -> Case:
    """Four transfers are stuck alike at the end; a transfer of the sixth step was held up by 400 ms."""
    case = cut_last(100_000)
    late = (pl.col("step") == 5) & (pl.col("src") == 1)
    changed = {name: pl.when(late).then(value).otherwise(name) for name, value in columns.items()}
    held = case.messages.with_columns(end_ns=pl.when(late).then(pl.col("end_ns") + 400 * MS).otherwise("end_ns"))
    return replace(case, messages=held.with_columns(**changed).cast(MESSAGES))  # type: ignore[arg-type]


@pytest.mark.parametrize(("columns", "cut"), [({}, False), ({"role": pl.lit("rare")}, True), ({"step": -1}, True)])
def test_only_transfers_of_steps_that_come_regularly_show_that_a_job_is_held_up_now_and_then(
    columns: dict[str, Any], cut: bool
) -> None:
    case = mark_late(**columns)
    end = int(case.messages["end_ns"].max())
    assert silence._is_cut_short(case, end, end + 300 * MS, 1.2e9) is cut


def test_that_transfers_are_held_up_shows_in_the_first_step_too_but_not_in_the_one_that_is_cut() -> None:
    case = cut_last(100_000)
    end = int(case.messages["end_ns"].max())
    for step, cut in ((0, False), (13, False), (14, True)):
        late = (pl.col("step") == step) & (pl.col("src") == 1) & (pl.col("bytes") > 500_000)
        held = case.messages.with_columns(end_ns=pl.when(late).then(pl.col("end_ns") + 200 * MS).otherwise("end_ns"))
        assert silence._is_cut_short(replace(case, messages=held), end, end + 150 * MS, 1.2e9) is cut, step


@pytest.mark.parametrize(("after_ms", "cut"), [(1, False), (2, True)])
def test_a_record_that_ends_within_a_thousandth_of_a_step_of_the_end_may_be_cut_by_it(after_ms: int, cut: bool) -> None:
    case = cut_last(100_000, senders=2)
    rare = replace(case, streams=case.streams.with_columns(role=pl.lit("rare")))  # how long they take is not known
    end = int(case.messages["end_ns"].max())
    assert silence._is_cut_short(rare, end, end + after_ms * MS, 1.2e9) is cut


# -- steps that are whole


def test_a_step_is_whole_that_lacks_just_as_many_messages_as_whole_steps_do() -> None:
    template = make_ring(15, until_s=18).template
    assert template is not None
    begin = BEGIN + 5 * STEP
    for slack, whole in ((4.0, True), (3.9, False)):  # the last layer's four messages
        assert silence._is_whole(replace(template, slack=slack), 5, begin + 700 * MS) is whole


def test_a_step_is_finished_that_ends_just_when_a_silence_does() -> None:
    case = make_ring(15, until_s=18)
    begin, end = int(case.steps["start_ns"][5]), int(case.steps["end_ns"][5])
    assert silence._is_resumed(case, Silence(begin + 400 * MS, end, 4, True))
    assert not silence._is_resumed(case, Silence(begin + 400 * MS, end + 1, 4, True))


# -- what is told


def test_the_only_host_that_sent_nothing_since_the_step_began_stopped_where_bytes_alone_are_known() -> None:
    case = replace(make_ring(15, left_out=STUCK, until_s=60), bursts=True)
    last = int(case.steps["start_ns"][13])
    until = np.full(HOSTS, last + 1500 * MS)
    until[2] = last + 100 * MS
    stands: Any = None  # what single messages show
    stopped = Silence(last + STEP + 400 * MS, last + 60 * S, 13, False)
    first = silence._name_first(replace(case, sent_until_ns=until), stopped, stands)
    assert first is not None and (first.culprit.id, first.others_went_on) == ("h2", True)
    assert silence._name_first(case, stopped, stands) is None
    until[2] = last + 1300 * MS  # after the others began the next step
    assert silence._name_first(replace(case, sent_until_ns=until), stopped, stands) is None
    until[2] = last + 100 * MS
    over = replace(stopped, last=14)
    assert silence._name_first(replace(case, sent_until_ns=until), over, stands) is None  # none began another step


def test_a_stop_costs_what_it_lasts_and_at_its_end_a_step_at_least() -> None:
    back = find_hang(make_broken(resumed=False, silent_s=6.0))
    assert [f.lost_gpu_seconds for f in back] == pytest.approx([6.05 * HOSTS], rel=0.02)
    case = make_ring(15, left_out=STUCK, until_s=14 * 1.2 + 0.55 + 0.2, cut=4096)
    short = find_hang(case)
    assert name(short) == [("hang", "h2")]
    assert short[0].lost_gpu_seconds == pytest.approx(1.2 * HOSTS, rel=0.02)


@pytest.mark.parametrize(("lost", "resumed"), [(0, True), (1, False)])
def test_a_step_is_finished_that_sent_nearly_as_much_as_others(lost: int, resumed: bool) -> None:
    left = [(h, 5, 5) for h in range(lost)]
    case = make_ring(15, left_out=left, until_s=18)
    begin = BEGIN + 5 * STEP
    assert silence._is_resumed(case, Silence(begin + 400 * MS, begin + 450 * MS, 4, True)) is resumed
