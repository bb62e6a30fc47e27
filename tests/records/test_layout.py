"""LAYOUT: what its document says, and which documents are refused."""

from __future__ import annotations

from typing import Any

import pytest

from prism.errors import BadRowError
from prism.records.layout import UNKNOWN, Alternative, Degree, Group, Layout


def test_a_layout_reads_back_as_it_was_written() -> None:
    layout = Layout(
        dp=Degree(4, 0.9),
        pp=Degree(2, 0.5),
        tp=Degree(1),
        sharding="fsdp",
        groups=(Group(kind="dp", members=("a", "b"), confidence=0.7),),
        stages={"a": 0, "b": 1},
    )
    assert Layout.from_json(layout.to_json()) == layout


def test_confidence_is_that_of_all_degrees_or_the_joint_one() -> None:
    layout = Layout(dp=Degree(4, 0.5), pp=Degree(2, 0.5), tp=Degree(1), cp=Degree(1), ep=Degree(1))
    assert layout.confidence == 0.25 and layout.to_json()["confidences"]["dp"] == 0.5
    assert Layout(dp=Degree(4, 0.5), joint=0.8).confidence == 0.8
    assert Layout().confidence == 0.0 and UNKNOWN.value is None


def test_a_capped_layout_is_nowhere_surer_than_the_cap() -> None:
    layout = Layout(dp=Degree(4, 0.9), pp=Degree(2, 0.5), groups=(Group(kind="dp", members=("a",), confidence=0.7),))
    capped = layout.cap(0.6)
    assert (capped.dp.confidence, capped.pp.confidence, capped.groups[0].confidence) == (0.6, 0.5, 0.6)
    assert capped.joint == layout.confidence and Layout(joint=0.9).cap(0.6).joint == 0.6


def test_other_layouts_stand_in_the_document_the_likeliest_first() -> None:
    others = tuple(Alternative(dp=n, pp=1, tp=1, cp=1, ep=1, probability=1 / n) for n in (2, 4))
    found = Layout(alternatives=others).to_json()["alternatives"]
    assert [(entry["dp"], entry["probability"]) for entry in found] == [(2, 0.5), (4, 0.25)]


def test_the_short_form_is_sure_of_what_it_says() -> None:
    layout = Layout.from_json({"dp": 8, "tp": None, "groups": [{"kind": "pp", "endpoints": ["x"]}]})
    assert layout.dp == Degree(8, 1.0) and layout.tp == UNKNOWN and layout.sharding == "unknown"
    assert layout.groups == (Group(kind="pp", members=("x",), confidence=1.0),)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"dp": 0}, "f: 'dp' is 0, expected a whole number of at least 1"),
        ({"pp": True}, "f: 'pp' is True"),
        ({"tp": 2.0}, "f: 'tp' is 2.0"),
        ({"sharding": "zero9"}, "f: 'sharding' is 'zero9', expected one of none, zero1"),
        ({"groups": [{"kind": "dp"}, {"kind": "x"}]}, "f group 1: 'kind' is 'x'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(document: dict[str, Any], line: str) -> None:
    with pytest.raises(BadRowError) as caught:
        Layout.from_json(document, "f")
    assert line in str(caught.value)


def test_one_is_the_least_degree() -> None:
    assert Layout.from_json({"dp": 1}).dp == Degree(1, 1.0)
