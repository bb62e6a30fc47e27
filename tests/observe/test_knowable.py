"""Which planted faults cannot be known is computed from the truth and the records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "proving" / "benchmarks"))

from observe_knowable import find_reason

SECOND = 10**9


def make_truth(lengths: list[float]) -> dict[str, Any]:
    steps, at = [], 0
    for length in lengths:
        steps.append({"start_ns": at, "end_ns": at + int(length * SECOND)})
        at = steps[-1]["end_ns"]
    return {"jobs": [{"id": "job-1", "endpoints": ["a", "b", "c", "d"], "steps": steps}]}


def make_fault(kind: str, begin_s: float, end_s: float, longer_s: float = 0.0, culprit: str = "a") -> dict[str, Any]:
    effect = {"job": "job-1", "num_steps": 2, "step_ns_with": (1 + longer_s) * SECOND, "step_ns_without": SECOND}
    is_link = kind == "slow_link"
    who = {"type": "link" if is_link else "host", "id": f"{culprit}>leaf" if is_link else culprit}
    return {"kind": kind, "culprit": who, "accepted": [], "effects": [effect],
            "start_ns": int(begin_s * SECOND), "end_ns": int(end_s * SECOND)}  # fmt: skip


def make_flows(rows: list[tuple[str, str, float, float]]) -> pl.DataFrame:
    ends = [(src, dst, int(start * SECOND), int(end * SECOND)) for src, dst, start, end in rows]
    return pl.DataFrame(ends, ["src", "dst", "start_ns", "end_ns"], orient="row")


def test_what_lengthens_steps_by_less_than_they_scatter_cannot_be_known() -> None:
    truth, flows = make_truth([1.0, 1.1, 0.9, 1.0, 1.0, 1.0]), make_flows([("a", "b", 0.0, 0.1)])
    assert find_reason(truth, flows, make_fault("slow_compute", 4.0, 6.0, 0.1)) == "below noise"
    assert find_reason(truth, flows, make_fault("slow_compute", 4.0, 6.0, 0.5)) is None


def test_a_stop_shows_where_the_job_broke_off() -> None:
    truth, fault = make_truth([1.0] * 4), make_fault("hang", 4.2, 9.0)
    whole, broken, other = ("a", "b", 3.0, 3.9), ("a", "b", 4.1, 4.2), ("x", "y", 8.0, 8.5)
    assert find_reason(truth, make_flows([whole, broken, other]), fault) is None
    assert find_reason(truth, make_flows([whole, other]), fault) == "like an end"
    assert find_reason(truth, make_flows([whole]), make_fault("hang", 2.2, 3.0)) is None  # it went on


def test_a_slow_link_shows_where_other_pairs_are_quicker() -> None:
    truth, fault = make_truth([1.0] * 4 + [2.0] * 2), make_fault("slow_link", 4.0, 8.0, 1.0)
    quick = [(*pair, 1.0, 1.1) for pair in (("a", "b"), ("c", "d"))]
    slow, alike, waits = ("a", "b", 5.0, 6.0), ("c", "d", 5.0, 6.0), ("c", "d", 5.0, 5.5)
    assert find_reason(truth, make_flows([*quick, slow, alike]), fault) == "all alike"
    assert find_reason(truth, make_flows([*quick, slow, waits]), fault) is None
