"""Windows of a timeline: what is drawn is what is there, at every zoom."""

from __future__ import annotations

import base64

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.errors import BadFileError
from prism.records import SPANS
from prism.records.spans import SPAN_KINDS
from prism.serve.sources.diagnosed import STEPS
from prism.serve.timeline import Overlay, WindowQuery, align_steps, build_index, draw_window, list_spans, measure_ranks
from prism.serve.timeline.picture import draw_pixels, open_window
from prism.serve.timeline.raster import compile_kernels

KINDS = ("compute", "dp", "pp", "wait")


def make_spans(rows: list[tuple[int, str, str, int, int]]) -> pl.DataFrame:
    """Rank, lane, kind, start, end."""
    columns = {
        "rank": pl.Int32,
        "lane": pl.String,
        "kind": pl.Enum(SPAN_KINDS),
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return SPANS.conform(frame.with_columns(job=pl.lit("j"), name=pl.col("kind").cast(pl.String)), "spans")


spans = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["a", "b"]),
        st.sampled_from(KINDS),
        st.integers(0, 1_000),
        st.integers(0, 300),
    ).map(lambda t: (t[0], t[1], t[2], t[3], t[3] + t[4])),
    min_size=1,
    max_size=60,
)


@settings(max_examples=80)
@given(rows=spans, start=st.integers(-100, 1_200), length=st.integers(1, 1_500))
def test_time_by_kind_is_the_sum_of_what_lies_in_the_window(rows: list, start: int, length: int) -> None:
    index = build_index(make_spans(rows))
    measured = measure_ranks(index, start, start + length)
    for rank in index.ranks.tolist():
        row = measured.row(by_predicate=pl.col("rank") == rank, named=True)
        for kind in KINDS:
            expected = sum(
                max(0, min(e, start + length) - max(s, start)) for r, _, k, s, e in rows if (r, k) == (rank, kind)
            )
            assert row.get(kind, 0.0) == expected


@settings(max_examples=80)
@given(rows=spans, start=st.integers(-100, 1_200), length=st.integers(1, 1_500), width=st.integers(1, 40))
def test_a_pixel_is_filled_where_a_span_is_and_empty_where_none_is(
    rows: list, start: int, length: int, width: int
) -> None:
    index = build_index(make_spans(rows))
    query = WindowQuery(start_ns=start, end_ns=start + length, width=width)
    first, last = index.rows_of_ranks(index.ranks)
    pixels = draw_pixels(index, first, last, query)
    step = length / width
    for shown, rank in enumerate(index.ranks.tolist()):
        own = [(k, s, max(e, s + 1)) for r, _, k, s, e in rows if r == rank and e > start]
        for p in range(width):
            left, right = start + p * step, start + (p + 1) * step
            inside = {k for k, s, e in own if min(e, right) - max(s, left) > 1e-3}
            touched = {k for k, s, e in own if min(e, right) - max(s, left) > -1e-3}
            cell = int(pixels[shown, p])
            assert not inside or cell & 15, "something is there and nothing is drawn"
            assert not cell or SPAN_KINDS[cell >> 4] in touched, "drawn in the colour of something that is not there"
            full = any(s <= left and e >= right for _, s, e in own)
            assert not full or cell & 15 == 15


@settings(max_examples=60)
@given(rows=spans, start=st.integers(-100, 1_200), length=st.integers(1, 1_500), shift=st.integers(-(10**15), 10**18))
def test_shifting_time_shifts_the_picture(rows: list, start: int, length: int, shift: int) -> None:
    moved = [(r, lane, k, s + shift, e + shift) for r, lane, k, s, e in rows]
    here, there = build_index(make_spans(rows)), build_index(make_spans(moved))
    query = WindowQuery(start_ns=start, end_ns=start + length, width=31, most_spans=0)
    later = WindowQuery(start_ns=start + shift, end_ns=start + shift + length, width=31, most_spans=0)
    assert draw_window(here, query).pixels == draw_window(there, later).pixels


@settings(max_examples=60)
@given(rows=spans, start=st.integers(-100, 1_200), length=st.integers(1, 1_500))
def test_few_spans_are_sent_exactly_as_they_are(rows: list, start: int, length: int) -> None:
    index = build_index(make_spans(rows))
    picture = draw_window(index, WindowQuery(start_ns=start, end_ns=start + length))
    assert picture.pixels == ""
    columns = picture.spans
    sent = sorted(
        (picture.ranks[row], index.kinds[kind], columns.names[name], begin, end)
        for row, kind, name, begin, end in zip(
            columns.row, columns.kind, columns.name, columns.from_ns, columns.to_ns, strict=True
        )
    )
    touched = [row for row in rows if row[3] < start + length and row[4] > start]
    assert sent == sorted((rank, kind, kind, begin, end) for rank, _, kind, begin, end in touched)


@settings(max_examples=60)
@given(rows=spans, start=st.integers(-100, 1_200), length=st.integers(1, 1_500))
def test_the_count_is_never_less_than_what_the_window_touches(rows: list, start: int, length: int) -> None:
    index = build_index(make_spans(rows))
    first, last = index.rows_of_ranks(index.ranks)
    query = WindowQuery(start_ns=start, end_ns=start + length)
    count = compile_kernels().count(open_window(index, first, last, query))
    assert count >= sum(1 for row in rows if row[3] < start + length and row[4] > start)


def test_hidden_kinds_are_not_drawn() -> None:
    index = build_index(make_spans([(0, "a", "compute", 0, 100), (0, "b", "dp", 40, 60)]))
    query = WindowQuery(start_ns=0, end_ns=100, width=10, most_spans=0, hidden=frozenset({"compute"}))
    pixels = np.frombuffer(base64.b64decode(draw_window(index, query).pixels), dtype=np.uint8)
    assert (pixels > 0).tolist() == [False] * 4 + [True] * 2 + [False] * 4


def test_lanes_can_have_rows_of_their_own() -> None:
    index = build_index(make_spans([(0, "a", "compute", 0, 100), (0, "b", "dp", 40, 60), (1, "a", "pp", 0, 9)]))
    picture = draw_window(index, WindowQuery(start_ns=0, end_ns=100, by="lane"))
    assert picture.labels == ("rank 0  a", "rank 0  b", "rank 1  a")
    assert picture.num_rows == 3


def test_rows_asked_for_beyond_the_last_are_none() -> None:
    index = build_index(make_spans([(0, "a", "compute", 0, 100)]))
    picture = draw_window(index, WindowQuery(start_ns=0, end_ns=100, first_row=7))
    assert picture.labels == () and picture.num_rows == 1


def test_what_lies_under_the_pointer_is_listed_longest_first() -> None:
    index = build_index(make_spans([(0, "a", "compute", 0, 100), (0, "b", "dp", 40, 60), (0, "b", "dp", 70, 71)]))
    found, count = list_spans(index, 0, None, 50, 51)
    assert [span.kind for span in found] == ["compute", "dp"] and count == 2
    assert list_spans(index, 9, None, 50, 51) == ([], 0)


def test_steps_of_the_first_rank_stand_for_all() -> None:
    rows = [
        (0, "steps", "step", 0, 50),
        (0, "steps", "step", 50, 100),
        (1, "steps", "step", 1, 51),
        (0, "a", "dp", 1, 2),
    ]
    index = build_index(make_spans(rows))
    assert index.steps.rows() == [(0, 0, 50), (1, 50, 100)]
    assert index.num_spans == 1


def test_spans_that_end_before_they_start_are_refused() -> None:
    with pytest.raises(BadFileError, match="end before they start"):
        build_index(make_spans([(0, "a", "dp", 10, 9)]))


def test_a_prediction_is_laid_at_the_start_of_every_observed_step() -> None:
    observed = pl.DataFrame([(0, 1_000, 1_100), (1, 1_100, 1_300)], schema=STEPS, orient="row")
    predicted = pl.DataFrame([(0, 0, 40), (1, 40, 80)], schema=STEPS, orient="row")
    index = build_index(make_spans([(0, "a", "dp", 40, 60), (0, "a", "compute", 60, 80)]))
    overlay = Overlay(index=index, rank_of={0: 0}, aligned="step", shifts=align_steps(observed, predicted))
    picture = overlay.draw(np.array([0]), WindowQuery(start_ns=1_000, end_ns=1_200, width=20))
    assert picture is not None
    kinds = [SPAN_KINDS[cell >> 4] if cell else "" for cell in picture[0].tolist()]
    assert kinds == ["dp", "dp", "compute", "compute", *[""] * 6] * 2
    [first, *_] = overlay.list_spans(0, 1_101, 1_102, origin_ns=1_000, most=5)
    assert (first.kind, first.from_ns, first.to_ns) == ("dp", 100, 120)


def test_a_prediction_with_too_many_steps_in_sight_is_left_out() -> None:
    observed = pl.DataFrame([(i, 10 * i, 10 * i + 10) for i in range(100)], schema=STEPS, orient="row")
    index = build_index(make_spans([(0, "a", "dp", 0, 5)]))
    overlay = Overlay(index=index, rank_of={0: 0}, aligned="step", shifts=align_steps(observed, observed.head(1)))
    assert overlay.draw(np.array([0]), WindowQuery(start_ns=0, end_ns=1_000)) is None
    assert overlay.draw(np.array([0]), WindowQuery(start_ns=0, end_ns=100)) is not None
