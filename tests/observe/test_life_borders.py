"""What a usual step sends and whether a job rests between steps, exactly at the borders of what is decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from test_life import BEGIN, LAYERS, MS, RANKS, STEPS, S, make_messages, make_plain_template, make_steps, make_streams
from test_life_decisions import CONFIG, make_sent

from prism.observe.steps import life
from prism.observe.steps.life import Life, StepTemplate, breaks_off, make_template, rests_whole

WHOLE = RANKS * LAYERS  # messages of a step


def with_unlike_loads(template: StepTemplate) -> StepTemplate:
    """Each message carries other bytes, so that these show no whole steps."""
    size = 1_000_000 + 7_919 * np.arange(template.load.height) ** 2
    return replace(template, load=template.load.with_columns(bytes=pl.Series(size)))


def test_a_job_of_which_nothing_is_known_runs_since_the_beginning() -> None:
    assert (Life().state, Life().started_ns, Life().ended_ns) == ("running", 0, None)


@pytest.mark.parametrize(("num", "streams"), [(10, RANKS), (9, RANKS - 1)])
def test_a_stream_is_regular_that_sends_a_message_in_just_as_many_steps_as_it_must(num: int, streams: int) -> None:
    messages = make_messages()
    told = make_streams(messages).with_columns(num=pl.when(pl.col("stream") == 1).then(num).otherwise("num"))
    found = make_template(messages, told, make_steps(), replace(CONFIG, regular=0.5))
    assert found is not None and len(found.usual) == streams


def test_whole_steps_differ_by_six_deviations_of_their_counts() -> None:
    # The four steps before the last: of the middle ones either none differs from usual, or all do by two messages.
    lax = replace(CONFIG, missing=1.0, templates=1)
    for messages, slack in (
        (make_messages(lambda rank, step, layer: layer > 0 or step % 4 > 0), 6.0),
        (make_messages(lambda rank, step, layer: layer > 1 or rank != step % 4), 6 * 1.4826 * 2),
    ):
        found = make_template(messages, make_streams(messages), make_steps(), lax)
        assert found is not None and found.usual.sum() == WHOLE and found.slack == pytest.approx(slack)


def test_of_two_steps_the_one_with_fewest_messages_may_have_broken_off() -> None:
    assert not life._do_boundaries_wander(np.array([[8] * 4, [4] * 4]), np.full(4, 6), CONFIG)


@pytest.mark.parametrize(("missing", "wander"), [(0.25, False), (0.24, True)])
def test_boundaries_wander_only_where_steps_differ_by_more_than_whole_ones_do(missing: float, wander: bool) -> None:
    counts = np.array([[0] * 4, [3] * 4, [5] * 4])  # 12 and 20 messages: 4 from their middle
    assert life._do_boundaries_wander(counts, np.full(4, 4), replace(CONFIG, missing=missing)) is wander


@pytest.mark.parametrize(("wandering", "wander"), [(0.25, False), (0.24, True)])
def test_boundaries_wander_only_where_more_streams_send_too_much_than_chance_does(
    wandering: float, wander: bool
) -> None:
    counts = np.array([[0] * 4, [2] * 4, [4] * 4, [8] * 4])  # a quarter have more than four
    assert life._do_boundaries_wander(counts, np.full(4, 4), replace(CONFIG, wandering=wandering)) is wander


def test_whole_steps_after_the_last_boundary_are_set_aside() -> None:
    cut = with_unlike_loads(make_plain_template(make_messages(lambda rank, step, layer: step < STEPS - 1 or layer < 3)))
    early = replace(cut, begin=cut.begin[:-2], until=cut.until[:-2])  # a whole step and a half follow
    assert not rests_whole(early, BEGIN + (STEPS - 1) * S + 400 * MS, config=CONFIG)
    assert rests_whole(early, BEGIN + (STEPS - 1) * S - 1, config=CONFIG)


def test_only_what_was_sent_since_the_last_silence_is_counted_in_whole_steps() -> None:
    broken = with_unlike_loads(make_sent([20, 20, 13, 0, 0, 20, 20]))
    assert life._sent_whole_steps(broken, 7 * S)
    assert not life._sent_whole_steps(with_unlike_loads(make_sent([20, 20, 13, 20, 20])), 5 * S)


def test_parameters_that_are_sent_after_the_first_boundary_are_part_of_what_was_sent() -> None:
    sent = [(s * S + i * 100 * MS, pair, 1_000_000) for s in range(10) for i in range(5) for pair in range(4)]
    for at_ms, whole in ((500, True), (1500, False)):
        rows = [*sent, *[(at_ms * MS, pair, 2_300_000) for pair in range(4)]]
        load = pl.DataFrame(rows, ["start_ns", "pair", "bytes"], orient="row").sort("start_ns")
        template = replace(make_sent([20] * 9 + [15]), load=load)
        assert life._sent_whole_steps(template, 10 * S) is whole


@pytest.mark.parametrize(("least", "broke_off"), [(25_000, False), (25_001, True)])
def test_parts_of_bursts_that_are_no_more_than_may_be_missing_are_none(least: int, broke_off: bool) -> None:
    rows = [(s * S, pair, 100_000) for s in range(10) for pair in range(4)]
    rows += [(9 * S + 500 * MS, pair, part) for pair, part in enumerate((least, least, 70_000, 0))]
    template = replace(make_sent([20] * 10), load=pl.DataFrame(rows, ["start_ns", "pair", "bytes"], orient="row"))
    lax = replace(CONFIG, missing=0.25)
    assert life._breaks_off_bursts(template, 9 * S + 1, 10 * S, lax) is broke_off


def test_nineteen_of_twenty_pairs_that_sent_whole_steps_are_nearly_all() -> None:
    sent = np.ones(20)
    assert life._are_whole(sent, np.ones(20), 0.0)
    sent[0] = 2
    assert life._are_whole(sent, np.ones(20), 0.0)
    sent[1] = 2
    assert not life._are_whole(sent, np.ones(20), 0.0)


def test_a_step_holds_what_starts_from_its_boundary_to_just_before_the_next() -> None:
    template = replace(with_unlike_loads(make_sent([12, 20, 20, 20])), slack=0.5)
    assert breaks_off(template, 800 * MS)
    assert not breaks_off(template, S + 800 * MS)  # not those of the step before, nor the first of the next
    early = replace(template, start=np.where(template.start == 2 * S, 2 * S - 1, template.start))
    assert breaks_off(early, S + 800 * MS)  # one more


@pytest.mark.parametrize(("num", "unlikely"), [(20, False), (21, True)])
def test_streams_differ_by_more_than_chance_only_beyond_a_share(num: int, unlikely: bool) -> None:
    assert life._is_unlikely(np.arange(40) < num, 0.0, replace(CONFIG, disagreeing=0.5)) is unlikely


def test_every_step_before_one_shows_what_was_sent_when_it_had_sent_as_much() -> None:
    template = make_plain_template(make_messages())
    rows = life._count_at(template, 2 * RANKS, 1, CONFIG)
    assert rows.tolist() == [[2] * RANKS]
    assert len(life._count_at(template, 2 * RANKS, 15, CONFIG)) == CONFIG.templates
    assert len(life._count_at(template, WHOLE - 1, 5, CONFIG)) == 5
    assert len(life._count_at(template, WHOLE, 5, CONFIG)) == 0 == len(life._count_at(template, 0, 5, CONFIG))


def test_a_pause_is_longer_than_a_step() -> None:
    messages = make_messages(pause_s=3)
    pause = 3 * S + 150 * MS  # and what every step rests at its end
    assert life._longest_pause(messages, pause - 1.0) == pause
    assert life._longest_pause(messages, float(pause)) == 0.0
