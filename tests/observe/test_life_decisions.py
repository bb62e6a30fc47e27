"""Ends of jobs and silences at the borders of what is decided, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import BEGIN as START
from test_finding_decisions import HOSTS, make_case, make_ring
from test_life import (
    BEGIN,
    LAST,
    LAYERS,
    MS,
    RANKS,
    STEPS,
    S,
    make_messages,
    make_plain_template,
    make_steps,
    make_streams,
)

from prism.observe import levels
from prism.observe.diagnose import find_last_save
from prism.observe.findings import silence
from prism.observe.findings.silence import Silence
from prism.observe.steps import life
from prism.observe.steps.life import LifeConfig, StepTemplate, are_steps_regular, breaks_off, make_template, rests_whole

CONFIG = LifeConfig()


# -- what a usual step sends


def test_a_usual_step_is_the_middle_of_those_before_the_last() -> None:
    # Since the 33rd step from the end each rank sends twice as much; the last step broke off and does not count.
    def sends(rank: int, step: int, layer: int) -> bool:
        return step < STEPS - 1 or layer < 1

    assert make_plain_template(make_messages(sends)).usual.tolist() == [LAYERS] * RANKS
    one = make_messages(lambda rank, step, layer: step == 0)
    found = make_template(one, make_streams(one), make_steps(num=1), CONFIG)
    assert found is not None and found.usual.tolist() == [LAYERS] * RANKS


def test_only_the_latest_steps_tell_what_is_usual() -> None:
    few = replace(CONFIG, templates=1)  # the four steps before the last

    def sends(rank: int, step: int, layer: int) -> bool:
        return layer < (LAYERS if step < STEPS - 5 else 2)

    messages = make_messages(sends)
    found = make_template(messages, make_streams(messages), make_steps(), few)
    assert found is not None and found.usual.tolist() == [2] * RANKS
    found = make_template(messages, make_streams(messages), make_steps(), replace(CONFIG, templates=2))
    assert found is not None and found.usual.tolist() == [4] * RANKS  # four of six and four of two layers


def test_streams_that_were_cut_are_no_part_of_a_usual_step() -> None:
    messages = make_messages()
    streams = make_streams(messages).with_columns(cut=pl.col("stream") == 1)
    found = make_template(messages, streams, make_steps(), CONFIG)
    assert found is not None and len(found.usual) == RANKS - 1 and found.row.max() == RANKS - 2


def test_steps_are_regular_where_a_template_is_certain_of_its_boundaries() -> None:
    messages, steps = make_messages(), make_steps()
    streams = make_streams(messages)
    for moved in (0, 200_000_000):  # the first layers of a third of the steps are in the one before
        start = pl.col("start_ns") + moved * (pl.int_range(pl.len()) % 3 == 1)
        cut = steps.with_columns(start).with_columns(
            end_ns=pl.col("start_ns").shift(-1, fill_value=int(steps["end_ns"][-1]))
        )
        found = make_template(messages, streams, cut, CONFIG)
        assert found is not None and found.wanders == (moved > 0)
        assert are_steps_regular(messages, streams, cut, CONFIG) == (not found.wanders)
    assert not are_steps_regular(messages, streams, steps.clear(), CONFIG)
    assert not are_steps_regular(messages, streams.clear(), steps, CONFIG)


# -- whether a job rests between steps


def make_step_template(layers_of_last: int, *, usual: int = LAYERS, differing: float = 0.0, longest_ns: float = 100.0 * MS) -> StepTemplate:  # fmt: skip
    template = make_plain_template(make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < layers_of_last))
    return replace(template, differing=differing, longest_ns=longest_ns, usual=np.full(RANKS, usual))


@pytest.mark.parametrize(
    ("sent", "differing", "disagree"),
    [
        ([3, 3, 3, 3], 0.0, False),
        ([3, 3, 3, 2], 0.0, False),  # one of four is what chance does: 0 + 3 * sqrt(1/4 / 4) is 0.75
        ([3] * 36 + [2] * 4, 0.0, True),  # 0.1 of 40 is more than 3 * sqrt(1/40 / 40), 0.075
        ([3] * 38 + [2] * 2, 0.0, False),
        ([3] * 36 + [2] * 4, 0.1, False),
        ([3] * 24 + [2] * 16, 0.1, True),  # 0.4 is more than 0.1 + 3 * sqrt(0.09 / 40), 0.24
        ([3] * 31 + [2] * 9, 0.1, False),
        ([3] * 12 + [2] * 14 + [4] * 14, 0.4, True),  # 0.7 is more than 0.4 + 3 * sqrt(0.24 / 40), 0.63
    ],
)
def test_ranks_disagree_by_more_than_lost_records_explain(sent: list[int], differing: float, disagree: bool) -> None:
    template = replace(make_step_template(3, differing=differing), alike=np.zeros(len(sent), np.int64))
    assert life._ranks_disagree(template, np.array(sent), 0, replace(CONFIG, disagreeing=0.09)) is disagree


def test_ranks_are_compared_with_those_that_do_the_same() -> None:
    template = replace(make_step_template(3), alike=np.repeat([0, 1], 20))
    assert not life._ranks_disagree(template, np.repeat([3, 1], 20), 0, CONFIG)
    assert life._ranks_disagree(template, np.r_[np.repeat([3, 1], 20)[:-6], [2] * 6], 0, CONFIG)


@pytest.mark.parametrize(
    ("sent", "disagree"),
    [
        ((8, 2), True),  # 8 of 32 streams between stages; of all 128 they are 6 of 100
        ((7, 6), False),  # as when any step has sent as much
    ],
)
def test_few_stages_that_disagree_are_seen_in_a_job_of_many_gradients(sent: tuple[int, int], disagree: bool) -> None:
    """32 streams pass eight messages on in each step, one after the other, then 96 sum gradients."""
    rows = np.tile(np.r_[np.tile(np.arange(32), 8), np.arange(32, 128)], 4)
    begin = len(rows) // 4 * np.arange(4)
    template = replace(
        make_step_template(3), start=np.arange(len(rows)), row=rows, begin=begin, until=begin + len(rows) // 4,
        usual=np.repeat([8, 1], [32, 96]), alike=np.repeat([0, 1], [32, 96]),
    )  # fmt: skip
    assert life._ranks_disagree(template, np.repeat([*sent, 0], [24, 8, 96]), 3, CONFIG) is disagree
    # Four of 32 that lack one message of a whole step, at its start in the records or not, say nothing of its middle.
    for step in (0, 1, 3):
        assert not life._ranks_disagree(template, np.repeat([-1, 0], [4, 124]), step, CONFIG)


def test_a_job_may_end_where_usual_steps_rest_half_as_long_as_ever() -> None:
    # Layers rest for 50 ms, after the last one for 150 ms.
    template = make_plain_template(make_messages())
    at = RANKS * np.arange(1, LAYERS + 1)
    assert [life._may_end_at(template, int(p), 10, CONFIG) for p in at] == [False] * 5 + [True]
    lax = replace(CONFIG, restful=50 / 150)
    assert [life._may_end_at(template, int(p), 10, lax) for p in at] == [True] * 6
    assert not life._may_end_at(template, RANKS - 1, 10, lax)  # between two that start at once
    assert life._may_end_at(template, RANKS, 0, CONFIG)  # nothing is known before the first step
    assert life._may_end_at(template, RANKS * LAYERS + 1, 10, CONFIG)  # no step sends as much
    broken = make_plain_template(make_messages(lambda rank, step, layer: step != 2 or layer < 2))
    assert not life._may_end_at(broken, RANKS * 4, 10, CONFIG)  # the first step that is looked at is too short
    inside = make_plain_template(make_messages(rest_ms=100))  # the longest rest is after the second layer
    assert life._may_end_at(inside, RANKS * LAYERS, 10, CONFIG)


def test_whole_steps_since_the_start_are_those_of_nearly_every_stream() -> None:
    template = make_plain_template(make_messages())
    assert life._sent_whole_steps(template, LAST)
    assert life._sent_whole_steps(template, BEGIN + 3 * S - 1)
    assert not life._sent_whole_steps(template, BEGIN + 3 * S)
    assert not life._sent_whole_steps(template, BEGIN)
    none = replace(template, usual=np.where(np.arange(RANKS) == 0, 0, LAYERS))
    assert life._sent_whole_steps(none, LAST)  # what is usually not sent does not count


@pytest.mark.parametrize(
    ("small", "size", "wanders", "bursts", "bytes_show"),
    [
        (5, 0, True, False, True),  # acknowledgements, and boundaries that wander: TCP
        (5, 0, False, False, False),
        (0, 0, True, False, False),
        (3, 0, True, False, False),  # no more than a few
        (0, 0, False, True, True),
        (5, levels.SMALL_MESSAGE_BYTES, True, False, False),  # these are not small
    ],
)
def test_bytes_show_how_far_a_step_went_in_bursts_and_over_tcp(
    small: int, size: int, wanders: bool, bursts: bool, bytes_show: bool
) -> None:
    load = pl.DataFrame({"bytes": [size] * small + [1_000_000] * (10 - small)})
    template = replace(make_step_template(3), load=load, wanders=wanders, bursts=bursts)
    assert life.counts_bytes(template) is bytes_show


@pytest.mark.parametrize(
    ("sent", "whole"), [(1000.0, True), (3000.0, True), (3003.0, True), (3004.0, False), (0.0, False)]
)
def test_bytes_are_of_whole_steps_but_for_a_share_of_one(sent: float, whole: bool) -> None:
    assert life._are_whole(np.full(4, sent), np.full(4, 1000.0), 0.003) is whole
    assert not life._are_whole(np.full(4, sent), np.zeros(4), 0.003)  # nothing is usual


@pytest.mark.parametrize(("longest_ms", "whole"), [(299.0, False), (301.0, True)])
def test_records_that_last_for_a_third_of_a_step_hide_where_it_ends(longest_ms: float, whole: bool) -> None:
    template = make_step_template(3, longest_ns=longest_ms * MS)
    at = BEGIN + (STEPS - 1) * S + 400 * MS
    assert rests_whole(template, at, config=CONFIG) is whole


@pytest.mark.parametrize(("odd", "whole"), [(1, False), (2, True)])
def test_where_steps_differ_in_length_a_cut_may_be_a_part_of_one(odd: int, whole: bool) -> None:
    template = make_step_template(3)
    until = template.until.copy()
    until[:odd] += round(0.31 * S)
    at = BEGIN + (STEPS - 1) * S + 400 * MS
    assert rests_whole(replace(template, until=until), at, config=CONFIG) is whole


def test_ranks_that_disagree_have_stopped_whatever_records_hide() -> None:
    template = make_plain_template(make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < rank))
    template = replace(template, longest_ns=400.0 * MS)
    at = BEGIN + (STEPS - 1) * S + 400 * MS
    assert not rests_whole(template, at, config=CONFIG)


def test_nothing_is_broken_off_before_the_first_step_or_where_nothing_is_usual() -> None:
    template = make_step_template(3)
    assert rests_whole(template, BEGIN - 1, config=CONFIG)
    at = BEGIN + (STEPS - 1) * S + 400 * MS
    assert not rests_whole(template, at, config=CONFIG)
    assert rests_whole(replace(template, usual=np.zeros(RANKS, np.int64)), at, config=CONFIG)


def test_after_the_last_step_what_was_sent_since_its_end_counts() -> None:
    cut = make_plain_template(make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 3))
    early = replace(cut, begin=cut.begin[:-1], until=cut.until[:-1])
    at = BEGIN + (STEPS - 1) * S + 400 * MS
    assert not rests_whole(early, at, config=CONFIG)
    assert rests_whole(early, int(early.until[-1]) - 1, config=CONFIG)


# -- steps that broke off


def make_sent(sent: list[int]) -> StepTemplate:
    """Four ranks that send one message after the other; steps of one second, of which each sends so many."""
    start = [s * S + i * 40 * MS for s, num in enumerate(sent) for i in range(num)]
    begin = np.arange(len(sent)) * S
    row = np.array([i % 4 for n in sent for i in range(n)])
    return StepTemplate(
        start=np.array(start), end=np.array(start) + 30 * MS, row=row,
        load=pl.DataFrame({"start_ns": start, "pair": row, "bytes": np.full(len(row), 1_000_000)}),
        alike=np.zeros(4, np.int64), usual=np.full(4, 5), longest_ns=3e7, pair=np.arange(4), differing=0.0,
        wanders=False, slack=2.0, begin=begin,
        until=np.r_[begin[1:], int(start[-1]) + 30 * MS],
    )  # fmt: skip


def test_a_step_that_is_cut_where_it_broke_off_is_no_whole_step() -> None:
    for sent, whole in ((20, True), (12, False)):
        template = make_sent([20] * 9 + [sent])
        assert rests_whole(template, int(template.end[-1]) + 1, config=CONFIG) == whole


@pytest.mark.parametrize(("last", "whole"), [(5, True), (3, False)])
def test_parameters_that_are_sent_once_at_the_start_do_not_make_whole_steps_broken(last: int, whole: bool) -> None:
    """Idle timeouts merge records, so that bytes alone show whether a step is whole."""
    template = make_sent([20] * 9 + [15])
    sent = [(s * S + i * 100 * MS, pair) for s in range(10) for i in range(last if s == 9 else 5) for pair in range(4)]
    rows = [(at, pair, 1_000_000) for at, pair in sent] + [(0, pair, 7_300_000) for pair in range(4)]
    load = pl.DataFrame(rows, ["start_ns", "pair", "bytes"], orient="row")
    assert rests_whole(replace(template, load=load), int(template.end[-1]) + 1, config=CONFIG) is whole


@pytest.mark.parametrize(
    ("sent", "breaks"),
    [
        ([20, 20, 20, 20], False),  # a pause, wherever boundaries lie
        ([20, 12, 20, 20], True),  # the step that broke off is never finished
        ([20, 23, 20, 20], True),  # another step was begun, and begun again after the silence
        ([20, 18, 20, 20], False),  # two records are lost
        ([20, 20, 20, 12], False),  # nothing follows
    ],
)
def test_a_job_that_begins_another_step_after_a_silence_broke_off(sent: list[int], breaks: bool) -> None:
    template = make_sent(sent)
    at = 3 if sent[-1] < 20 else 1
    assert breaks_off(template, at * S + 40 * MS * sent[at]) == breaks


def test_only_the_messages_between_the_boundaries_around_a_silence_count() -> None:
    template = replace(make_sent([12, 20, 20, 20]), slack=0.5)
    assert not breaks_off(template, 1 * S + 800 * MS)  # not those of the step before nor the first of the next
    assert breaks_off(template, 800 * MS)


def test_a_silence_breaks_nothing_off_where_boundaries_wander_or_pairs_have_sent_whole_steps() -> None:
    broken = make_sent([20, 12, 20, 20])
    at = S + 12 * 40 * MS
    assert breaks_off(broken, at) and not breaks_off(replace(broken, wanders=True), at)
    cut = np.array([0, 300 * MS, 2 * S, 3 * S])  # a boundary in the middle of a step
    whole, early = make_sent([20] * 4), make_sent([20, 20, 12, 20])
    assert not breaks_off(replace(whole, begin=cut), S + 800 * MS)
    assert breaks_off(early, 2 * S + 12 * 40 * MS)


@pytest.mark.parametrize(
    ("sent", "whole"),
    [
        ((1.0, 1.0, 1.0, 1.0), True),
        ((2.0, 2.0, 1.0, 1.0), True),  # an exporter cut a burst in two
        ((0.5, 0.5, 0.5, 0.5), True),  # what a job gathers at its end
        ((0.5, 0.5, 0.5, 0.0), False),
        ((0.5, 0.2, 0.0, 0.0), False),
        ((1.5, 1.2, 1.0, 1.0), False),
        ((0.5, 0.0, 0.0, 0.0), True),  # one part alone
        ((0.02, 0.01, 0.0, 0.0), True),  # a few headers
        ((1.02, 1.01, 0.98, 0.99), True),
    ],
)
@pytest.mark.parametrize("scale", [1, 1000])
def test_bursts_broke_off_where_pairs_that_send_alike_have_sent_other_parts_of_one(
    sent: tuple[float, ...], whole: bool, scale: int
) -> None:
    """Ten steps in which each of four pairs sends a burst, and parts of one after the last."""
    size = [scale * (100_000 + 100 * pair) for pair in range(4)]  # nearly equal
    rows = [(s * S, pair, size[pair]) for s in range(10) for pair in range(4)]
    rows += [(9 * S + 500 * MS, pair, round(share * size[pair])) for pair, share in enumerate(sent)]
    load = pl.DataFrame(rows, ["start_ns", "pair", "bytes"], orient="row").filter(pl.col("bytes") > 0)
    begin, row = S * np.arange(10), np.tile(np.arange(4), 10)
    template = replace(
        make_sent([20] * 10), bursts=True, load=load, start=np.repeat(begin, 4), end=np.repeat(begin, 4) + 100 * MS,
        row=row, usual=np.ones(4, np.int64), until=begin + 300 * MS,
    )  # fmt: skip
    assert rests_whole(template, 9 * S + 600 * MS, config=CONFIG) is whole


def test_pairs_that_usually_send_other_amounts_are_not_compared() -> None:
    rows = [(s * S, pair, 100_000 * (1 + pair // 2)) for s in range(10) for pair in range(4)]
    rows += [(9 * S + 500 * MS, pair, part) for pair, part in enumerate((50_000, 50_000, 20_000, 20_000))]
    template = replace(make_sent([20] * 10), load=pl.DataFrame(rows, ["start_ns", "pair", "bytes"], orient="row"))
    assert not life._breaks_off_bursts(template, 9 * S + 1, 10 * S, CONFIG)
    apart = [*rows[:-1], (9 * S + 500 * MS, 3, 40_000)]
    template = replace(template, load=pl.DataFrame(apart, ["start_ns", "pair", "bytes"], orient="row"))
    assert life._breaks_off_bursts(template, 9 * S + 1, 10 * S, CONFIG)


def test_ranks_that_disagree_in_the_first_step_have_stopped() -> None:
    messages = make_messages(lambda rank, step, layer: step > 0 or layer < (3 if rank < 2 else 1))
    assert not rests_whole(make_plain_template(messages), BEGIN + 400 * MS, config=CONFIG)


def test_three_steps_show_that_boundaries_wander() -> None:
    usual = np.full(4, 6)
    assert life._do_boundaries_wander(np.array([[8] * 4, [4] * 4, [6] * 4]), usual, CONFIG)
    assert not life._do_boundaries_wander(np.array([[6] * 4, [4] * 4, [6] * 4]), usual, CONFIG)
    assert not life._do_boundaries_wander(np.array([[6] * 4]), np.zeros(4, np.int64), CONFIG)


def test_numbers_are_part_of_a_step_where_it_has_no_tensors() -> None:
    tensors = make_messages()
    numbers = tensors.with_columns(pl.col("stream", "pair") + RANKS, bytes=pl.lit(48, pl.Int64))
    both = pl.concat([tensors, numbers])
    for messages, sizes, streams in (
        (both, (levels.SMALL_MESSAGE_BYTES,) * RANKS + (levels.SMALL_MESSAGE_BYTES - 1,) * RANKS, RANKS),
        (tensors.with_columns(bytes=pl.lit(48, pl.Int64)), (48,) * RANKS, RANKS),
    ):
        template = make_plain_template(messages, sizes=sizes)
        assert len(template.usual) == streams and template.usual.tolist() == [LAYERS] * streams
        assert np.bincount(template.row).tolist() == [LAYERS * STEPS] * streams


# -- silences


def test_a_step_is_whole_that_sent_nearly_all_before_a_moment() -> None:
    case = make_ring(15, until_s=18)
    template = make_template(case.messages, case.streams, case.steps, CONFIG)
    assert template is not None
    begin = START + 5 * 1200 * MS
    assert silence._is_whole(template, 5, begin + 1200 * MS)
    assert silence._is_whole(template, 5, begin + 750 * MS) and not silence._is_whole(template, 5, begin + 749 * MS)


def test_a_silence_at_the_end_is_reported_with_the_last_whole_step_before_it() -> None:
    left = [(h, 14, layer) for h in range(HOSTS) for layer in range(3, 6)]
    case = make_ring(15, left_out=left, until_s=60)
    (found,) = silence._find_silences(case)
    assert found == Silence(START + 14 * 1200 * MS + 400 * MS, case.observed_until_ns, 13, False)
    assert silence._find_silences(make_ring(15, left_out=left, until_s=14 * 1.2 + 0.4 + 3.59)) == []


def whole(*steps: int) -> list[tuple[int, int, int]]:
    return [(h, step, layer) for step in steps for h in range(HOSTS) for layer in range(6)]


def half(*steps: int) -> list[tuple[int, int, int]]:
    return [(h, step, layer) for step in steps for h in range(HOSTS) for layer in range(3, 6)]


def test_a_silence_between_whole_steps_does_not_hide_one_that_broke_a_step_off() -> None:
    (found,) = silence._find_silences(make_ring(15, left_out=[*whole(7, 8), *half(14)], until_s=60))
    assert (found.last, found.ends) == (13, False)
    assert silence._find_silences(make_ring(15, left_out=[*whole(7, 8), *half(14)], until_s=14 * 1.2 + 1.4)) == []


def test_a_silence_may_follow_the_first_step() -> None:
    (found,) = silence._find_silences(make_ring(15, left_out=[*half(1), *whole(2, 3)], until_s=18))
    assert (found.last, found.ends) == (0, True)


def test_silences_that_come_again_and_again_are_part_of_how_a_job_works() -> None:
    often = [*half(2, 7, 12, 17), *whole(3, 8, 13, 18)]
    assert silence._find_silences(make_ring(25, left_out=often, until_s=30)) == []
    few = [*half(2, 7, 12), *whole(3, 8, 13)]
    assert len(silence._find_silences(make_ring(25, left_out=few, until_s=30))) == 3


def test_a_step_is_resumed_that_a_silence_broke_off_and_that_sent_all_in_the_end() -> None:
    case = make_ring(15, until_s=18)
    begin = START + 5 * 1200 * MS
    assert silence._is_resumed(case, Silence(begin + 400 * MS, begin + 450 * MS, 4, True))
    assert not silence._is_resumed(case, Silence(begin + 400 * MS, begin + 1300 * MS, 4, True))  # the step is over
    assert not silence._is_resumed(case, Silence(START - 5, START + 100 * MS, 0, True))  # before the first
    cut = make_ring(15, left_out=[(h, 5, layer) for h in range(HOSTS) for layer in (4, 5)], until_s=18)
    assert not silence._is_resumed(cut, Silence(begin + 400 * MS, begin + 450 * MS, 4, True))
    first = Silence(START + 100 * MS, START + 150 * MS, 0, True)
    assert silence._is_resumed(case, first)


def test_a_host_has_the_address_that_is_named_first() -> None:
    case = make_case([1.0] * 6)
    assert silence._has(case, "h1", "10.0.1.1,10.0.2.1") and not silence._has(case, "h2", "10.0.1.1,10.0.2.1")


@pytest.mark.parametrize(("after", "saved"), [(20, 0), (1000, 79)])
def test_a_silent_job_saves_if_it_writes_faster_than_before(after: int, saved: int) -> None:
    # A host answers whoever watches it every 10 s, before and after the job's last message at 40 s.
    job = replace(make_case([1.0] * 40).job, first_ns=0, last_ns=40 * S)
    saves = pl.DataFrame({"start_ns": np.arange(0, 80, 10) * S, "bytes": [20] * 4 + [after] * 4})
    saves = saves.with_columns(end_ns=pl.col("start_ns") + 9 * S)
    assert find_last_save(saves, job, 80 * S) == saved * S
    assert find_last_save(saves.clear(), job, 80 * S) == 0
