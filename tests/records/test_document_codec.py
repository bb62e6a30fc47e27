"""The one codec of documents: what a writer writes is read, also by an older reader; what is broken is named."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadFileError
from prism.records.documents import Document

Word = Literal["red", "green", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    word: Word = "unknown"
    closed: Literal["yes", "no"] = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    count: int
    share: float | None = None
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = field(default_factory=dict)
    one: Part | None = None


def _rename(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "count": document["number"]}


WHOLE = Document(name="prism.whole", version=3, kind=Whole, upgrades={2: _rename})


@given(st.from_type(Whole).filter(lambda whole: abs(whole.count) < 2**63))
def test_what_is_written_is_read_again(whole: Whole) -> None:
    found = WHOLE.decode(WHOLE.encode(whole), "a.json")
    assert repr(found) == repr(whole)  # nan is not equal to itself
    assert all(word not in WHOLE.encode(whole) for word in (b":NaN", b":Infinity", b":-Infinity"))


def test_keys_and_words_of_a_newer_writer_do_no_harm() -> None:
    newer = {
        "schema": "prism.whole/3", "count": 1, "invented": [1], "parts": [{"word": "blue", "closed": "no", "x": 2}],
        "by_name": {"a": {"word": "violet"}}, "one": {"word": "brown"},
    }  # fmt: skip
    found = WHOLE.of_mapping(newer, "a.json")
    assert found == Whole(count=1, parts=(Part(closed="no"),), by_name={"a": Part()}, one=Part())


def test_a_word_of_a_closed_set_is_refused() -> None:
    with pytest.raises(BadFileError, match=r"a\.json: not a whole prism\.whole .*'perhaps'.*parts"):
        WHOLE.of_mapping({"schema": "prism.whole/3", "count": 1, "parts": [{"closed": "perhaps"}]}, "a.json")


def test_an_older_version_is_brought_up_to_date_or_refused_by_name() -> None:
    assert WHOLE.of_mapping({"schema": "prism.whole/2", "number": 7}, "a.json").count == 7
    with pytest.raises(BadFileError, match="version 1 is no longer read"):
        WHOLE.of_mapping({"schema": "prism.whole/1", "number": 7}, "a.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b'{"count": 1}', "expected a prism.whole/3"),
        (b'{"schema": "prism.other/3"}', "expected a prism.whole/3"),
        (b'{"schema": "prism.whole/4", "count": 1}', "newer Prism"),
        (b'{"schema": "prism.whole/3"}', "missing required field `count`"),
        (b'{"schema": "prism.whole/3", "count": "one"}', "Expected `int`, got `str` - at `count`"),
        (b'{"schema": "prism.whole/3", "count": 1, "parts": [{"word": 3}]}', r"at `parts\[0\]"),
        (b'{"schema": "prism.whole/3", "count": 1, "share": 1e999}', "not "),
    ],
)
def test_what_is_no_such_document_is_one_line_with_its_place(text: bytes, said: str) -> None:
    with pytest.raises(BadFileError, match=r"^a\.json: [^\n]*" + said):
        WHOLE.decode(text, "a.json")


def test_a_file_is_written_durably_and_read_again(tmp_path: Path) -> None:
    WHOLE.write(tmp_path / "new" / "a.json", Whole(count=5))
    assert WHOLE.read(tmp_path / "new" / "a.json") == Whole(count=5)
    assert json.loads((tmp_path / "new" / "a.json").read_text())["schema"] == "prism.whole/3"
    with pytest.raises(BadFileError, match=r"b\.json: cannot be read"):
        WHOLE.read(tmp_path / "b.json")
