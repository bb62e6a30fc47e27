"""Every shape keeps its promise: it round-trips through files, and names the first value that breaks it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from prism.errors import InputError
from prism.records import (
    FINDINGS,
    GROUPS,
    JOBS,
    LOG,
    OPS,
    RANKS,
    SPANS,
    TOPOLOGY,
    Shape,
    findings_from_frame,
    findings_to_frame,
    read_table,
    write_table,
)
from prism.records.shape import describe

SHAPES = [TOPOLOGY, SPANS, OPS, RANKS, GROUPS, FINDINGS, JOBS, LOG]
# Quotes, separators, line breaks and other scripts must survive; a lone surrogate or NUL is not text.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1, max_size=12).filter(
    lambda s: s.strip() == s
)


def values(dtype: pl.DataType) -> st.SearchStrategy[object]:
    if isinstance(dtype, pl.Enum):
        return st.sampled_from(dtype.categories.to_list())
    if dtype.is_integer():
        bits = int(str(dtype).removeprefix("Int")) - 1
        return st.integers(-(2**bits), 2**bits - 1)
    if dtype.is_float():
        return st.floats(allow_nan=False, allow_infinity=False, width=64)
    if isinstance(dtype, pl.List):
        return st.lists(st.integers(0, 2**60), min_size=1, max_size=4)
    assert dtype == pl.String
    return TEXT


@st.composite
def tables(draw: st.DrawFn, shape: Shape) -> pl.DataFrame:
    rows = draw(st.integers(1, 6))
    columns = dict(shape.required)
    columns.update({c: t for c, t in shape.optional.items() if draw(st.booleans())})
    data = {}
    for name, dtype in columns.items():
        value = values(pl.Schema({"c": dtype})["c"])
        if name in shape.nullable or name in shape.optional:
            value = st.one_of(st.none(), value)
        data[name] = pl.Series(draw(st.lists(value, min_size=rows, max_size=rows)), dtype=dtype)
    return pl.DataFrame(data)


# OPS holds lists, which CSV cannot; the next test says what a user is told.
FORMATS = [(s, e) for s in SHAPES for e in ("parquet", "arrow", "jsonl", "csv") if (s, e) != (OPS, "csv")]


@pytest.mark.parametrize(("shape", "ending"), FORMATS, ids=[f"{s.name}.{e}" for s, e in FORMATS])
def test_a_table_reads_back_as_it_was_written(
    shape: Shape, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=20)
    @given(tables(shape))
    def round_trip(frame: pl.DataFrame) -> None:
        path = tmp_path_factory.mktemp("table") / f"t.{ending}"
        write_table(frame, path, shape)
        assert_frame_equal(read_table(path, shape), frame)

    round_trip()


def test_lists_are_refused_in_csv_with_the_format_to_use(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"write \.parquet or \.jsonl"):
        write_table(OPS.empty(), tmp_path / "ops.csv", OPS)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_a_missing_column_is_named(shape: Shape, tmp_path: Path) -> None:
    first = next(c for c in shape.required if c not in shape.nullable)
    shape.empty().drop(first).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"no column '{first}'"):
        read_table(tmp_path / "t.parquet", shape)


def test_a_bad_value_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "topology.csv"
    path.write_text("address,host,rail,switch\n10.0.0.1,n1,0,leaf-1\n10.0.0.2,n1,zero,leaf-1\n")
    with pytest.raises(InputError, match=r"topology\.csv line 3: 'rail' is \"zero\", expected a whole number"):
        read_table(path, TOPOLOGY)
    path.write_text("address,host,rail,switch\n10.0.0.1,,0,leaf-1\n")
    with pytest.raises(InputError, match="line 2: 'host' is empty, expected text"):
        read_table(path, TOPOLOGY)


def test_a_word_outside_a_closed_list_is_named_with_the_list() -> None:
    frame = pl.DataFrame({**dict.fromkeys(SPANS.required, "1"), "kind": "dance"})
    with pytest.raises(InputError, match="'kind' is \"dance\", expected one of compute, dp"):
        SPANS.conform(frame)


@given(tables(FINDINGS))
def test_findings_turn_into_objects_and_back(frame: pl.DataFrame) -> None:
    assert_frame_equal(findings_to_frame(findings_from_frame(frame)), frame)


@given(st.binary(max_size=300), st.sampled_from(["csv", "jsonl", "parquet", "arrow"]), st.sampled_from(SHAPES))
def test_no_bytes_crash_a_table_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str, shape: Shape
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"t.{ending}"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(path, shape)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (pl.Int32(), "a whole number"),
        (pl.Float64(), "a number"),
        (pl.String(), "text"),
        (pl.Boolean(), "true or false"),
        (pl.Enum(["a", "b"]), "one of a, b"),
        (pl.Date(), "date"),
    ],
)
def test_types_are_described_in_words(dtype: pl.DataType, words: str) -> None:
    assert describe(dtype) == words
