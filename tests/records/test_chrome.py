"""Chrome's trace JSON, read as JSON, holds every span exactly, on threads whose slices nest."""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import finding, finding_tables, in_order, slices_wanted, span, span_tables, to_spans, without

from prism.errors import InputError
from prism.records import SPANS
from prism.records.chrome import SLICES_PER_BATCH, write_chrome_trace


def write(spans: pl.DataFrame, findings: pl.DataFrame | None = None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spans.json")
        write_chrome_trace(spans, path, findings=findings)
        return path.read_text(encoding="utf-8")


def nanoseconds(microseconds: Decimal) -> int:
    whole = microseconds * 1000
    assert whole == int(whole)
    return int(whole)


def named(document: dict[str, Any], what: str) -> dict[int, Any]:
    """What the metadata events of one name say, by process, or by thread where they name one."""
    events = [e for e in document["traceEvents"] if e["ph"] == "M" and e["name"] == what]
    said = {e.get("tid", e["pid"]): next(iter(e["args"].values())) for e in events}
    assert len(said) == len(events)
    return said


def read_slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    start_ns = int(document["otherData"]["start_ns"])
    processes, threads = named(document, "process_name"), named(document, "thread_name")
    slices = []
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert event["ph"] == "X"
        job, _, rank = processes[event["pid"]].partition(" rank ")
        lane, _, _ = threads[event["tid"]].partition(" (")
        start = start_ns + nanoseconds(event["ts"])
        notes = {k: float(v) if isinstance(v, Decimal) else v for k, v in event["args"].items()}
        slices.append(
            {
                "place": (job, int(rank) if rank else None, lane),
                "name": event["name"],
                "category": event["cat"],
                "times": (start, start + nanoseconds(event["dur"])),
                "notes": notes,
            }
        )
    return slices


@given(span_tables, st.none() | finding_tables)
def test_every_span_and_finding_is_read_back_exactly(spans: pl.DataFrame, findings: pl.DataFrame | None) -> None:
    document = json.loads(write(spans, findings), parse_float=Decimal)
    assert in_order(read_slices(document)) == in_order(slices_wanted(spans, findings))


@given(span_tables)
def test_slices_of_a_thread_do_not_cross(spans: pl.DataFrame) -> None:
    document = json.loads(write(spans), parse_float=Decimal)
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    for one, other in combinations(slices, 2):
        if one["tid"] == other["tid"]:
            end, other_end = one["ts"] + one["dur"], other["ts"] + other["dur"]
            assert one["ts"] <= other["ts"], "a viewer needs outer slices before inner ones"
            assert end <= other["ts"] or other_end <= end


def test_times_count_from_the_first_slice_so_that_a_double_holds_them() -> None:
    epoch = 1_763_000_000_123_456_789
    document = json.loads(write(to_spans(span(epoch + 1_001, epoch + 2_002), span(epoch, epoch + 7))))
    assert document["otherData"]["start_ns"] == str(epoch)
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in slices] == [(0.0, 0.007), (1.001, 1.001)]


def test_processes_and_threads_are_named_and_sorted_by_job_rank_and_lane() -> None:
    rows = [span(0, 1, rank=rank, lane=lane) for rank in (10, 9) for lane in ("dp", "steps")]
    document = json.loads(write(to_spans(*rows, span(0, 5), span(3, 8)), finding(0, 5)))
    for kind, expected in (
        ("process", ["job-1", "job-1 rank 0", "job-1 rank 9", "job-1 rank 10"]),
        ("thread", ["findings", "compute", "compute (2)", "steps", "dp", "steps", "dp"]),
    ):
        names, places = named(document, f"{kind}_name"), named(document, f"{kind}_sort_index")
        assert [names[number] for number in sorted(names, key=places.__getitem__)] == expected


def test_no_spans_make_a_document_without_events() -> None:
    assert json.loads(write(SPANS.empty()))["traceEvents"] == []


def test_a_folder_that_does_not_exist_is_made(tmp_path: Path) -> None:
    write_chrome_trace(to_spans(span(0, 5)), tmp_path / "new" / "folder" / "spans.json")
    write_chrome_trace(to_spans(span(0, 5)), tmp_path / "new" / "folder" / "spans.json")
    assert json.loads((tmp_path / "new" / "folder" / "spans.json").read_text())["traceEvents"]


def test_batches_join_to_one_document() -> None:
    spans = to_spans(span(0, 1)).select(pl.all().repeat_by(SLICES_PER_BATCH + 1).explode())
    document = json.loads(write(spans.cast(dict(SPANS.required))))
    assert sum(e["ph"] == "X" for e in document["traceEvents"]) == SLICES_PER_BATCH + 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_hold_is_left_out(value: float) -> None:
    document = json.loads(write(SPANS.empty(), finding(0, 1, lost_gpu_seconds=value)), parse_constant=pytest.fail)
    (event,) = (e for e in document["traceEvents"] if e["ph"] == "X")
    assert set(event["args"]) == {"culprit", "score", "evidence"}


@pytest.mark.parametrize(
    ("spans", "findings", "message"),
    [
        (without(to_spans(span(0, 1)), "job"), None, "spans: no column 'job'"),
        (to_spans(span(-1, 1)), None, "spans row 1: 'start_ns' is -1.*add an offset"),
        (to_spans(), finding(3, 2), "findings row 1: 'end_ns' is 2, before its start_ns 3"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    spans: pl.DataFrame, findings: pl.DataFrame | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(InputError, match=message):
        write_chrome_trace(spans, path, findings=findings)
    assert not path.exists()
