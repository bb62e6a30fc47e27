"""Layouts and verdicts survive their JSON form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.records import CATEGORY_OF_REASON, PAIR_KINDS, Degree, EvidenceLine, Group, Layout, Verdict

UNIT = st.floats(0, 1)
NAMES = st.text(min_size=1, max_size=8)
DEGREES = st.builds(Degree, st.one_of(st.none(), st.integers(1, 65536)), UNIT)
LAYOUTS = st.builds(
    Layout,
    dp=DEGREES,
    pp=DEGREES,
    tp=DEGREES,
    cp=DEGREES,
    ep=DEGREES,
    sharding=st.sampled_from(["none", "zero1", "zero2", "fsdp", "hsdp", "unknown"]),
    groups=st.lists(
        st.builds(Group, kind=st.sampled_from(PAIR_KINDS), members=st.lists(NAMES).map(tuple), confidence=UNIT)
    ).map(tuple),
    stages=st.dictionaries(NAMES, st.integers(0, 64)),
)
VERDICTS = st.sampled_from(sorted(CATEGORY_OF_REASON)).flatmap(
    lambda reason: st.builds(
        Verdict,
        log=NAMES,
        reason=st.just(reason),
        category=st.just(CATEGORY_OF_REASON[reason]),
        action=st.sampled_from(["restart", "isolate_and_restart", "rollback", "stop"]),
        confidence=UNIT,
        evidence=st.lists(
            st.builds(EvidenceLine, line=st.integers(1), text=NAMES, file=st.one_of(st.none(), NAMES))
        ).map(tuple),
        hosts=st.lists(NAMES).map(tuple),
        first_rank=st.one_of(st.none(), st.integers(0, 65535)),
        lines_read=st.integers(0),
        lines_kept=st.integers(0),
        mitigation=NAMES,
    )
)


@given(LAYOUTS)
def test_a_layout_reads_back_equal(layout: Layout) -> None:
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@given(VERDICTS)
def test_a_verdict_reads_back_equal(verdict: Verdict) -> None:
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_there_are_the_twenty_nine_reasons_of_the_study() -> None:
    assert len([r for r in CATEGORY_OF_REASON if r not in ("Unknown", "none")]) == 29


def test_confidence_of_a_layout_is_that_all_its_degrees_are_right() -> None:
    layout = Layout(dp=Degree(4, 0.9), pp=Degree(2, 0.5), tp=Degree(8), cp=Degree(1), ep=Degree(1))
    assert layout.confidence == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"dp": 0}, "'dp' is 0, expected a whole number of at least 1 or null"),
        ({"dp": 2, "sharding": "zero9"}, "'sharding' is 'zero9'"),
        ({"groups": [{"kind": "xx"}]}, "group 0: 'kind' is 'xx'"),
    ],
)
def test_a_wrong_layout_is_named(document: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Layout.from_json(document)
