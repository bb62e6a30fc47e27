"""Settings from YAML: what is taken, and the one line for what is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from prism.errors import BadConfigError, BadFileError
from prism.records.settings import Checked, build, describe, nearest, number, one_of, parse_mapping, read_text


@dataclass(frozen=True, kw_only=True)
class Inner(Checked):
    ratio: float = number(0.5, 0.0, 1.0)
    times: int = number(1, 0, math.inf)


@dataclass(frozen=True, kw_only=True)
class Outer(Checked):
    count: int
    mode: Literal["fast", "slow"] = field(default="fast", metadata=one_of(Literal["fast", "slow"]))
    names: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    limit: float | None = None
    on: bool = False


def test_every_kind_of_value_is_taken() -> None:
    document = {"count": 3, "mode": "slow", "names": ["a", "b"], "inner": {"ratio": 1}, "limit": "1.0e9", "on": True}
    assert build(Outer, document, "f") == Outer(
        count=3, mode="slow", names=("a", "b"), inner=Inner(ratio=1.0), limit=1e9, on=True
    )
    assert isinstance(build(Outer, {"count": 3, "limit": 2}, "f").limit, float)
    assert build(Outer, {"count": 3, "limit": None}, "f").limit is None
    given = Inner(ratio=0.25)
    assert build(Outer, {"count": 3, "inner": given}, "f").inner is given


def test_a_base_keeps_what_is_not_named_and_sections_keep_theirs() -> None:
    base = Outer(count=1, names=("x",), inner=Inner(ratio=0.1))
    assert build(Outer, {"count": 2}, "f", base=base) == Outer(count=2, names=("x",), inner=Inner(ratio=0.1))
    assert build(Outer, {"inner": {}}, "f", base=base).inner == Inner(ratio=0.1)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({}, "f: 'count' is missing"),
        ({"count": 1, "cuont": 2}, "f: 'cuont' is not a key here, did you mean 'count'?; keys: count, mode"),
        ({"count": "x"}, "f: 'count' is 'x', expected a whole number"),
        ({"count": True}, "f: 'count' is True, expected a whole number"),
        ({"count": 1.5}, "f: 'count' is 1.5, expected a whole number"),
        ({"count": 1, "limit": "much"}, "f: 'limit' is 'much', expected a number"),
        ({"count": 1, "on": 1}, "f: 'on' is 1, expected true or false"),
        ({"count": 1, "names": "a"}, "f: 'names' is 'a', expected a list"),
        ({"count": 1, "names": ["a", 2]}, "f: 'names[1]' is 2, expected text"),
        ({"count": 1, "mode": "fsat"}, "f: 'mode' is 'fsat', did you mean 'fast'?; expected one of fast, slow"),
        ({"count": 1, "inner": {"ratio": 1.1}}, "f: 'inner.ratio' is 1.1, expected 0 to 1"),
        ({"count": 1, "inner": {"ratio": -0.1}}, "f: 'inner.ratio' is -0.1, expected 0 to 1"),
        ({"count": 1, "inner": {"ratio": 2**60}}, "f: 'inner.ratio' is inf, expected 0 to 1"),
        ({"count": 1, "inner": {"times": -(10**400)}}, f"f: 'inner.times' is -1{'0' * 78}, expected 0 to inf"),
        ({"count": 1, "inner": 3}, "f: 'inner' is 3, expected keys and values"),
        ([1], "is a list, expected keys and values"),
    ],
)
def test_every_mistake_is_one_line_with_its_key(document: Any, line: str) -> None:
    with pytest.raises(BadConfigError) as caught:
        build(Outer, document, "f")
    assert line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_both_ends_of_a_range_are_part_of_it(ratio: float) -> None:
    assert Inner(ratio=ratio).ratio == ratio
    with pytest.raises(BadConfigError, match="expected 0 to 1"):
        Inner(ratio=math.nan)


def test_text_that_is_no_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"^f line 2: not YAML"):
        parse_mapping("a: 1\nb: ]\n", "f", "x")
    with pytest.raises(BadFileError, match=r"^f: not YAML"):
        parse_mapping("a: 2024-13-45", "f", "x")
    with pytest.raises(BadConfigError, match="expected keys such as x, found empty"):
        parse_mapping("", "f", "x")
    assert parse_mapping("a: 1", "f", "x") == {"a": 1}
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "missing"):
        with pytest.raises(BadFileError, match="cannot be read as text"):
            read_text(tmp_path / name)


def test_words_for_a_user() -> None:
    assert (describe({}), describe([]), describe(None)) == ("a set of keys", "a list", "empty")
    assert len(describe("x" * 200)) == 80
    assert nearest("zzz", ["abc"]) == ""


def test_a_field_after_one_that_is_not_given_is_checked_too() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(Checked):
        first: float | None = number(None, 0.0, 1.0)
        second: float = number(0.5, 0.0, 1.0)

    with pytest.raises(BadConfigError, match="'second' is 2.0, expected 0 to 1"):
        Later(second=2.0)
