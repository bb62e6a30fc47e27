"""Compiled passes over groups agree with numpy and Polars."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.observe.findings.collectives import number_units
from prism.observe.timeline.spans import join_touching, reach_before
from prism.observe.traffic.clock_offsets import _settle
from prism.observe.traffic.medians import (
    find_median,
    interpolate_quantile,
    median_groups,
    quantile_groups,
    scatter,
    take_median,
)
from prism.observe.traffic.numbering import (
    begin_together,
    mark_overlapping,
    number_again,
    number_calls,
    number_keys,
    number_places,
)
from prism.observe.traffic.threads import do_each

NUMBERS = st.lists(st.integers(-5, 5), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(NUMBERS)
def test_medians_are_those_of_numpy(values: list[int]) -> None:
    assert find_median(np.array(values, np.float64)) == np.median(values)
    given_order = np.array(values)
    assert take_median(given_order) == np.median(values)
    assert scatter(given_order) == np.median(np.abs(values - np.median(values)))
    assert given_order.tolist() == values


@pytest.mark.parametrize("shift", [0, 32, 40])
@pytest.mark.parametrize("different", [3, 512, 513, 3000])
def test_keys_are_numbered_in_order_of_appearance_wherever_their_bits_lie(shift: int, different: int) -> None:
    keys = np.random.default_rng(different).integers(-different, different, 8000) << shift
    numbers, found = number_keys(keys)
    assert found.tolist() == list(dict.fromkeys(keys.tolist()))
    assert (found[numbers] == keys).all()


def test_hops_of_connected_ranks_are_one_unit_and_pairs_of_a_pipeline_are_each_their_own() -> None:
    rows = [(0, 0, 1, "dp"), (1, 4, 5, "dp"), (2, 5, 6, "dp"), (3, 1, 0, "dp"), (4, 0, 1, "ep"), (5, 0, 4, "pp"),
            (6, 4, 0, "pp"), (7, 0, 1, "unknown"), (8, 1, 2, "unknown")]  # fmt: skip
    frame = pl.DataFrame(rows, schema=["pair", "src", "dst", "kind"], orient="row")
    assert number_units(frame).tolist() == [0, 1, 1, 0, 2, 3, 4, 5, 6]
    assert number_units(frame.clear()).tolist() == []


@settings(max_examples=60, deadline=None)
@given(NUMBERS, st.floats(0, 1))
def test_quantiles_between_two_values_are_those_of_numpy(values: list[int], share: float) -> None:
    found = interpolate_quantile(np.array(values, np.float64), share)
    assert found == pytest.approx(np.quantile(np.array(values, np.float64), share), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=1, max_size=60), st.floats(0, 1))
def test_quantiles_of_groups_are_those_of_polars(rows: list[tuple[int, int]], share: float) -> None:
    group, value = (np.array(c) for c in zip(*rows, strict=True))
    found = quantile_groups(value.astype(np.float64), group, 5, share)
    frame = pl.DataFrame({"group": group, "value": value.astype(np.float64)})
    for g, wanted in frame.group_by("group").agg(pl.col("value").quantile(share, "lower")).iter_rows():
        assert found[g] == wanted
    assert np.isnan(found[[g for g in range(5) if g not in group]]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=60))
def test_places_count_the_records_of_a_group_in_each_part(rows: list[tuple[int, int]]) -> None:
    group = np.array([g for g, _ in rows], np.int64)
    part = np.cumsum([p for _, p in rows], dtype=np.int64)
    place, num = number_places(group, part, 4)
    frame = pl.DataFrame({"group": group, "part": part})
    over = ("group", "part")
    assert place.tolist() == frame.select(pl.int_range(pl.len()).over(over)).to_series().to_list()
    assert num.tolist() == frame.select(pl.len().over(over)).to_series().to_list()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_new_numbers_come_in_order_of_appearance(old: list[int]) -> None:
    numbers, found = number_again(np.array(old, np.int64), 10)
    assert found.tolist() == list(dict.fromkeys(old))
    assert found[numbers].tolist() == old


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=1, max_size=60))
def test_medians_of_groups_are_those_of_numpy(rows: list[tuple[int, int]]) -> None:
    group, value = (np.array(c) for c in zip(*rows, strict=True))
    found = median_groups(value.astype(np.float64), group, 5)
    for g in range(5):
        assert found[g] == np.median(value[group == g]) if (group == g).any() else np.isnan(found[g])


def test_calls_are_those_of_one_group_step_and_place() -> None:
    stream, step = np.array([0, 1, 0, 0, 1, 2, 0]), np.array([0, 0, 0, 1, 1, 1, 1])
    place, num = np.array([0, 0, 1, 0, 0, 0, 1]), np.array([2, 1, 2, 2, 1, 1, 2])
    call, count = number_calls(np.array([0, 0, -1]), stream, step, place, num)
    assert call.tolist() == [0, 0, 1, 2, 2, -1, 3]
    assert count == 4


def test_only_what_overlaps_begins_with_the_last_of_its_call() -> None:
    call, start, end = np.array([0, 0, 1, 1, -1]), np.array([5, 7, 0, 9, 3]), np.array([9, 8, 4, 12, 5])
    begin, final = start.copy(), end.copy()
    begin_together(call, 2, start, end, begin, final)
    assert (begin.tolist(), final.tolist()) == ([7, 7, 0, 9, 3], [9, 9, 4, 12, 5])


def test_a_crew_keeps_the_order_and_passes_errors_on() -> None:
    assert do_each(lambda x: x * x, range(50)) == [x * x for x in range(50)]
    with pytest.raises(ZeroDivisionError):
        do_each(lambda x: 1 // x, [1, 0])


def test_messages_of_a_connection_that_touch_are_one_span_with_both_directions() -> None:
    out, into = np.array([0, 1, 0, 0]), np.array([1, 0, -1, 1])  # 0 sends, 1 answers, 0 sends to a stranger, and again
    start, end = np.array([0, 5, 12, 30]), np.array([10, 9, 20, 40])
    connection, begin, final, size, verb = join_touching(out, into, 2, start, end, np.array([1, 2, 4, 8]), 2)
    assert connection.tolist() == [0, 0, 1, 1]
    assert list(zip(begin.tolist(), final.tolist(), strict=True)) == [(0, 20), (30, 40), (0, 10), (30, 40)]
    assert size.tolist() == [7, 8, 3, 8]
    assert verb.tolist() == [3, 1, 3, 2]


def test_what_comes_before_a_row_reaches_to_the_latest_end_of_its_rank() -> None:
    assert reach_before(np.array([0, 0, 0, 1, 1]), np.array([9, 4, 12, 3, 5])).tolist() == [-1, 9, 9, -1, 3]


def test_differences_that_contradict_each_other_are_not_those_of_clocks() -> None:
    around = {("a", "b"): [4e5], ("b", "c"): [3e5], ("a", "c"): [7e5]}
    assert _settle(around) == {"a": -4e5, "b": 0.0, "c": 3e5}
    assert _settle(around | {("a", "c"): [-5e5, 6e5, 1e5], ("c", "b"): [2e5]}) == {}


def test_records_that_begin_inside_an_earlier_one_of_their_connection_overlap() -> None:
    connection = np.array([0, 0, 1, 0, 0, 0])
    start, end = np.array([0, 1, 2, 10, 14, 30]), np.array([8, 20, 20, 20, 20, 40])
    none = np.zeros(6, np.bool_)
    assert mark_overlapping(connection, 2, start, end, none).tolist() == [False, True, False, False, True, False]
    # A record that is left out covers nothing.
    left_out = np.array([False, False, False, True, False, False])
    assert mark_overlapping(connection, 2, start, end, left_out).tolist() == [False, True, False, False, False, False]
