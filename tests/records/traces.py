"""Made-up spans and findings for the tests of trace files."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import strategies as st

from prism.records import FINDINGS, SPAN_KINDS, SPANS

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)  # the empty string, NUL and quotes are names too
JOBS = ["job-1", "作业"]
PLACES = [("job-1", 0, "compute"), ("job-1", 0, "steps"), ("job-1", 10, "compute"), ("作业", 2**31 - 1, "dp")]
INT64_MAX = 2**63 - 1


@st.composite
def intervals(draw: st.DrawFn) -> tuple[int, int]:
    """Mostly small numbers, so that many touch, nest, cross or are empty; sometimes as large as they come."""
    bound = draw(st.sampled_from([4, 8, INT64_MAX]))
    low, high = sorted((draw(st.integers(0, bound)), draw(st.integers(0, bound))))
    return low, high


@st.composite
def span_rows(draw: st.DrawFn) -> dict[str, Any]:
    start, end = draw(intervals())
    job, rank, lane = draw(st.sampled_from(PLACES))
    return {
        "job": job,
        "rank": rank,
        "lane": lane,
        "kind": draw(st.sampled_from(SPAN_KINDS)),
        "name": draw(TEXT),
        "step": draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
        "start_ns": start,
        "end_ns": end,
        "bytes": draw(st.none() | st.integers(0, 200) | st.integers(-(2**63), INT64_MAX)),
        "group": draw(st.none() | TEXT),
    }


@st.composite
def finding_rows(draw: st.DrawFn) -> dict[str, Any]:
    start, end = draw(intervals())
    return {
        "kind": draw(st.sampled_from(["slow_compute", "hang"])),
        "job": draw(st.sampled_from([*JOBS, "job without spans"])),
        "culprit_type": draw(st.sampled_from(["host", "link"])),
        "culprit": draw(TEXT),
        "start_ns": start,
        "end_ns": end,
        "lost_gpu_seconds": draw(st.floats(allow_nan=False, allow_infinity=False)),
        "score": draw(st.floats(0, 1)),
        "evidence": draw(TEXT),
    }


span_tables = st.lists(span_rows(), max_size=24).map(lambda rows: pl.DataFrame(rows, schema=SPANS.required))
finding_tables = st.lists(finding_rows(), max_size=4).map(lambda rows: pl.DataFrame(rows, schema=FINDINGS.required))


def span(start: int, end: int, name: str = "op", **others: Any) -> dict[str, Any]:
    """One row of SPANS with ordinary values where none are given."""
    usual = {
        "job": "job-1",
        "rank": 0,
        "lane": "compute",
        "kind": "compute",
        "step": None,
        "bytes": None,
        "group": None,
    }
    return {**usual, "name": name, "start_ns": start, "end_ns": end, **others}


def to_spans(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SPANS.required)


def finding(start: int, end: int, **others: Any) -> pl.DataFrame:
    """FINDINGS with one row."""
    usual = {"kind": "slow_compute", "job": "job-1", "culprit_type": "host", "culprit": "node-001"}
    measured = {"lost_gpu_seconds": 12.5, "score": 0.9, "evidence": "computes 31 % longer than its peers"}
    row = {**usual, **measured, "start_ns": start, "end_ns": end, **others}
    return pl.DataFrame([row], schema=FINDINGS.required)


def without(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """A table less a column; unlike `drop` it starts no threads, so that a process that only collected tests can fork."""
    return pl.DataFrame([series for series in frame.get_columns() if series.name != column])


def slices_wanted(spans: pl.DataFrame, findings: pl.DataFrame | None) -> list[dict[str, Any]]:
    """What a reader must find in a trace of these tables: place, name, category, times and the notes not null."""
    wanted = [
        {
            "place": (row["job"], row["rank"], row["lane"]),
            "name": row["name"],
            "category": row["kind"],
            "times": (row["start_ns"], row["end_ns"]),
            "notes": {note: row[note] for note in ("step", "bytes", "group") if row[note] is not None},
        }
        for row in spans.iter_rows(named=True)
    ]
    for row in [] if findings is None else findings.iter_rows(named=True):
        notes = {note: row[note] for note in ("lost_gpu_seconds", "score", "evidence")}
        wanted.append(
            {
                "place": (row["job"], None, "findings"),
                "name": f"{row['kind']} {row['culprit']}",
                "category": "finding",
                "times": (row["start_ns"], row["end_ns"]),
                "notes": notes | {"culprit": f"{row['culprit_type']} {row['culprit']}"},
            }
        )
    return wanted


def in_order(slices: list[dict[str, Any]]) -> list[str]:
    """Slices in an order that does not depend on how they were stored."""
    return sorted(repr({**s, "notes": sorted(s["notes"].items())}) for s in slices)
