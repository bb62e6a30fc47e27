"""Slices of one track nest or follow each other; a lane gets more tracks only where its slices cross."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from traces import finding, span, span_tables, to_spans

from prism.records.tracks import gather_slices, lay_out_tracks


def cross(one: tuple[int, int], other: tuple[int, int]) -> bool:
    (start, end), (later_start, later_end) = sorted((one, other), key=lambda s: (s[0], -s[1]))
    return start < later_start < end < later_end


@given(span_tables)
def test_no_two_slices_of_a_track_cross(spans: pl.DataFrame) -> None:
    layout = lay_out_tracks(gather_slices(spans, None))
    placed = spans.with_columns(track=layout.track_of_slice)
    for track in placed.partition_by("track"):
        assert not any(cross(a, b) for a, b in combinations(track.select("start_ns", "end_ns").iter_rows(), 2))


@given(span_tables)
def test_slices_stay_on_their_lane_and_only_crossing_ones_need_a_second_track(spans: pl.DataFrame) -> None:
    layout = lay_out_tracks(gather_slices(spans, None))
    lanes = layout.tracks[layout.track_of_slice].select("job", "rank", "lane")
    assert lanes.rows() == spans.select("job", "rank", "lane").rows()
    for lane in spans.partition_by("job", "rank", "lane"):
        crossing = any(cross(a, b) for a, b in combinations(lane.select("start_ns", "end_ns").iter_rows(), 2))
        job, rank, name = lane.select("job", "rank", "lane").row(0)
        overflow = layout.tracks.filter(pl.col("job") == job, pl.col("rank") == rank, pl.col("lane") == name)[
            "overflow"
        ].to_list()
        assert overflow == list(range(len(overflow)))
        assert (len(overflow) > 1) == crossing


def test_a_chain_of_crossing_slices_needs_two_tracks_only() -> None:
    layout = lay_out_tracks(gather_slices(to_spans(*(span(10 * i, 10 * i + 15) for i in range(100))), None))
    assert layout.tracks["overflow"].to_list() == [0, 1]


def test_slices_that_only_touch_share_a_track_without_a_search_for_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.records.tracks._compile", lambda: 1 / 0)
    layout = lay_out_tracks(gather_slices(to_spans(span(0, 10), span(10, 20), span(20, 20)), None))
    assert layout.tracks["overflow"].to_list() == [0]


def test_findings_come_before_the_ranks_of_their_job() -> None:
    slices = gather_slices(to_spans(span(0, 1, rank=1), span(0, 1, rank=0)), finding(0, 1))
    assert lay_out_tracks(slices).tracks.rows() == [
        ("job-1", None, "findings", 0),
        ("job-1", 0, "compute", 0),
        ("job-1", 1, "compute", 0),
    ]


def test_numba_is_loaded_only_where_slices_overlap() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from traces import span, to_spans\n"
        "from prism.records.tracks import gather_slices, lay_out_tracks\n"
        "lay_out_tracks(gather_slices(to_spans(span(0, 5), span(5, 9), span(7, 7, rank=1)), None))\n"
        "print('numba' in sys.modules)\n"
        "lay_out_tracks(gather_slices(to_spans(span(0, 5), span(2, 3)), None))\n"
        "print('numba' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["False", "True"]
