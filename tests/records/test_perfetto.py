"""A Perfetto trace, parsed with the official schema, holds every span exactly, in tracks that nest."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent
from traces import finding, finding_tables, in_order, slices_wanted, span, span_tables, to_spans, without

from prism.errors import InputError
from prism.records import SPANS
from prism.records.perfetto import EVENTS_PER_CHUNK, write_perfetto

CLEARED, NEEDED = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


def write(spans: pl.DataFrame, **options: Any) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spans.perfetto-trace")
        write_perfetto(spans, path, **options)
        return Trace.FromString(path.read_bytes())


class Reader:
    """Reads a trace as the viewer does: one pass, strings and clock from the head, a stack of open slices a track."""

    def __init__(self, trace: Trace) -> None:
        head, *packets = trace.packet
        assert head.sequence_flags == CLEARED
        assert {p.trusted_packet_sequence_id for p in trace.packet} == {1}
        clocks = {clock.clock_id: clock for clock in head.clock_snapshot.clocks}
        clock = clocks[head.trace_packet_defaults.timestamp_clock_id]
        assert clock.is_incremental
        assert clocks[head.clock_snapshot.primary_trace_clock].timestamp == clock.timestamp
        self.now = clock.timestamp
        self.strings = head.interned_data
        self.tracks: dict[int, TrackDescriptor] = {}
        self.slices: list[dict[str, Any]] = []
        self.flows: dict[int, list[tuple[str, int]]] = defaultdict(list)  # id -> how it meets which slice
        open_slices: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for packet in packets:
            if packet.HasField("track_descriptor"):
                self.add_track(packet.track_descriptor)
            else:
                self.add_event(packet, open_slices)
        assert not any(open_slices.values()), "a slice never ends"

    def add_track(self, track: TrackDescriptor) -> None:
        assert track.uuid not in self.tracks
        assert not track.parent_uuid or track.parent_uuid in self.tracks, "a child before its parent"
        self.tracks[track.uuid] = track

    def add_event(self, packet: TracePacket, open_slices: dict[int, list[dict[str, Any]]]) -> None:
        assert packet.sequence_flags == NEEDED
        self.now += packet.timestamp
        event = packet.track_event
        stack = open_slices[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            done = stack.pop()
            done["times"] = (done["times"], self.now)
            return
        assert event.type == TrackEvent.TYPE_SLICE_BEGIN
        for flow in event.flow_ids:
            self.flows[flow].append(("leaves", len(self.slices)))
        for flow in event.terminating_flow_ids:
            self.flows[flow].append(("arrives", len(self.slices)))
        (category,) = event.category_iids
        notes = [self.read_note(note) for note in event.debug_annotations]
        assert len(dict(notes)) == len(notes)
        begun = {
            "place": self.place(event.track_uuid),
            "name": text(self.strings.event_names, event.name_iid),
            "category": text(self.strings.event_categories, category),
            "times": self.now,
            "notes": dict(notes),
        }
        self.slices.append(begun)
        stack.append(begun)

    def read_note(self, note: Any) -> tuple[str, Any]:
        kind = note.WhichOneof("value")
        value = getattr(note, kind)
        if kind == "string_value_iid":
            value = next(s.str for s in self.strings.debug_annotation_string_values if s.iid == value).decode()
        return text(self.strings.debug_annotation_names, note.name_iid), value

    def place(self, uuid: int) -> tuple[str, int | None, str]:
        """Job, rank and lane, read from the tree of tracks."""
        lane = self.tracks[uuid]
        parent = self.tracks[lane.parent_uuid]
        if not parent.parent_uuid:
            return parent.name, None, lane.name
        return self.tracks[parent.parent_uuid].name, int(parent.name.removeprefix("rank ")), lane.name


def text(table: Any, iid: int) -> str:
    (found,) = (entry.name for entry in table if entry.iid == iid)
    return found


@given(span_tables, st.none() | finding_tables)
def test_every_span_and_finding_is_read_back_exactly(spans: pl.DataFrame, findings: pl.DataFrame | None) -> None:
    read = Reader(write(spans, findings=findings))
    assert in_order(read.slices) == in_order(slices_wanted(spans, findings))


def test_slices_that_start_or_end_together_keep_their_own_times() -> None:
    together = to_spans(
        *(span(0, 0, "none"), span(0, 5, "inner"), span(0, 9, "outer"), span(5, 9, "late")),
        *(span(9, 9, "none again"), span(9, 9, "and again"), span(9, 12, "next"), span(9, 12, "next, twice")),
    )
    read = Reader(write(together))
    assert in_order(read.slices) == in_order(slices_wanted(together, None))
    assert sum(track.name == "compute" for track in read.tracks.values()) == 1


def test_slices_of_more_than_one_chunk_are_read_back_exactly() -> None:
    rows = [span(10 * i, 10 * i + 10, f"op {i % 300}", rank=i % 3, bytes=i or None) for i in range(EVENTS_PER_CHUNK)]
    spans = to_spans(*rows)
    written: list[int] = []
    read = Reader(write(spans, progress=written.append))
    assert in_order(read.slices) == in_order(slices_wanted(spans, None))
    assert len(written) == 2
    assert sum(written) == len(spans)


def test_no_spans_make_a_trace_of_no_slices() -> None:
    read = Reader(write(SPANS.empty()))
    assert read.slices == []
    assert read.tracks == {}


def test_ranks_are_ordered_by_number_and_steps_and_findings_come_first() -> None:
    rows = [span(0, 1, rank=rank, lane=lane) for rank in (10, 9, 0) for lane in ("dp", "steps", "compute")]
    read = Reader(write(to_spans(*rows), findings=finding(0, 5)))
    children = defaultdict(list)
    for track in sorted(read.tracks.values(), key=lambda t: t.sibling_order_rank):
        parent = read.tracks.get(track.parent_uuid)
        children[parent.name if parent else None].append(track.name)
        assert parent is None or parent.child_ordering == TrackDescriptor.EXPLICIT
    assert children[None] == ["job-1"]
    assert children["job-1"] == ["findings", "rank 0", "rank 9", "rank 10"]
    assert children["rank 9"] == ["steps", "compute", "dp"]


def test_a_span_that_crosses_another_goes_to_a_track_of_the_same_name_and_place() -> None:
    read = Reader(write(to_spans(span(0, 10, "a"), span(5, 15, "b"), span(10, 20, "c"))))
    lanes = [track for track in read.tracks.values() if track.name == "compute"]
    assert len(lanes) == 2
    assert len({(track.parent_uuid, track.sibling_order_rank) for track in lanes}) == 1


def test_a_string_is_stored_once_however_many_spans_use_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        write_perfetto(to_spans(*(span(i, i, "a long name", group="a group") for i in range(50))), path)
        assert path.read_bytes().count(b"a long name") == 1
        assert path.read_bytes().count(b"a group") == 1


@given(st.data(), span_tables.filter(len))
def test_arrows_join_the_slices_they_name_in_order_of_time(data: st.DataObject, spans: pl.DataFrame) -> None:
    row = st.integers(0, len(spans) - 1)
    arrows = data.draw(st.lists(st.tuples(row, row), max_size=40))
    frame = pl.DataFrame(arrows, schema={"from_span": pl.Int64, "to_span": pl.Int64}, orient="row")
    spans = spans.with_columns(name=pl.int_range(pl.len()).cast(pl.String))  # to know which is which
    read = Reader(write(spans, arrows=frame))
    joined = []
    for ends in read.flows.values():
        assert [how for how, _ in ends] == ["leaves", "arrives"]
        leaves, arrives = (read.slices[slice_row] for _, slice_row in ends)
        assert leaves["times"][0] <= arrives["times"][0]
        joined.append(frozenset((int(leaves["name"]), int(arrives["name"]))))
    assert sorted(map(sorted, joined)) == sorted(sorted(set(arrow)) for arrow in arrows)


def test_an_arrow_forward_in_time_leaves_the_span_it_comes_from() -> None:
    spans = to_spans(span(20, 30, "receive", rank=1), span(0, 10, "send"))
    read = Reader(write(spans, arrows=pl.DataFrame({"from_span": [1], "to_span": [0]})))
    assert [(how, read.slices[row]["name"]) for how, row in read.flows[1]] == [
        ("leaves", "send"),
        ("arrives", "receive"),
    ]


@pytest.mark.parametrize(
    ("spans", "options", "message"),
    [
        (without(to_spans(span(0, 1)), "lane"), {}, "spans: no column 'lane'"),
        (to_spans(span(0, 1), span(-5, 1)), {}, "spans row 2: 'start_ns' is -5.*add an offset"),
        (to_spans(span(7, 3)), {}, "spans row 1: 'end_ns' is 3, before its start_ns 7"),
        (to_spans(), {"findings": finding(7, 3)}, "findings row 1: 'end_ns' is 3"),
        (to_spans(), {"findings": without(finding(0, 3), "evidence")}, "findings: no column 'evidence'"),
        (to_spans(span(0, 1)), {"arrows": pl.DataFrame({"from_span": [0]})}, "arrows: no column 'to_span'"),
        (
            to_spans(span(0, 1)),
            {"arrows": pl.DataFrame({"from_span": [0, 0], "to_span": [0, 1]})},
            "arrows row 2: 'to_span' is 1, but there are 1 spans",
        ),
        (
            to_spans(span(0, 1)),
            {"findings": finding(0, 3), "arrows": pl.DataFrame({"from_span": [-1], "to_span": [0]})},
            "arrows row 1: 'from_span' is -1",
        ),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    spans: pl.DataFrame, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    with pytest.raises(InputError, match=message):
        write_perfetto(spans, path, **options)
    assert not path.exists()
