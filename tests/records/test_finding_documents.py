"""Findings as documents and as tables."""

from __future__ import annotations

from dataclasses import replace

from prism.records import FINDINGS
from prism.records.findings import Alternative, Culprit, Finding, findings_to_frame

SLOW = Finding(
    kind="slow_link",
    job="job-1",
    culprit=Culprit(type="link", id="leaf1-spine2"),
    start_ns=5,
    end_ns=9,
    lost_gpu_seconds=1.5,
    score=0.7,
    evidence="twice as slow",
)
DOCUMENT = {
    "kind": "slow_link",
    "job": "job-1",
    "culprit": {"type": "link", "id": "leaf1-spine2"},
    "start_ns": 5,
    "end_ns": 9,
    "lost_gpu_seconds": 1.5,
    "score": 0.7,
    "evidence": "twice as slow",
}


def test_a_finding_says_all_it_knows_and_alternatives_only_where_there_are_any() -> None:
    assert SLOW.to_json() == DOCUMENT
    host = Alternative(kind="slow_host", culprit=Culprit(type="host", id="n3"), score=0.2)
    both = replace(SLOW, alternatives=(host,))
    said = {"kind": "slow_host", "culprit": {"type": "host", "id": "n3"}, "score": 0.2}
    assert both.to_json() == {**DOCUMENT, "alternatives": [said]}


def test_a_table_of_findings_keeps_their_order() -> None:
    frame = findings_to_frame([SLOW, SLOW])
    assert frame.height == 2 and set(frame.columns) >= set(FINDINGS.required)
    assert findings_to_frame([]).is_empty()
