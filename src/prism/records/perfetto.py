"""SPANS as a Perfetto trace: the protobuf format that ui.perfetto.dev opens, written without protobuf's runtime.

The file is one packet sequence: a head packet (clock, strings), a descriptor for every track, then the begins
and ends of all slices in order of time. Field numbers are those of perfetto/trace/perfetto_trace.proto.

Tracks form a tree of job, rank and lane. Perfetto's own processes and threads would be sorted by how busy they
are (github.com/google/perfetto/issues/376), so plain tracks with an explicit order stand in for them: ranks stay
sorted. Overflow tracks carry their lane's name; the viewer draws siblings of one name as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.errors import BadRowError
from prism.records.shape import Shape, columns
from prism.records.tracks import LANE, NOTES, Events, gather_slices, lay_out_tracks, order_events
from prism.records.varints import (
    Integers,
    encode_fixed64,
    encode_integer,
    encode_message,
    encode_text,
    keep_where,
    pack_delimited,
    pack_rows,
)

ARROWS = Shape(name="arrows", required=columns({"from_span": pl.Int64, "to_span": pl.Int64}))
"""Arrows between spans: the row numbers, from 0, of both spans."""

PACKET = 1  # the only field of a trace
SEQUENCE = encode_integer(10, 1)  # every packet belongs to sequence 1
NEEDS_STRINGS = encode_integer(13, 2)  # SEQ_NEEDS_INCREMENTAL_STATE
BOOTTIME, REALTIME = 6, 1  # clocks the viewer knows: its time axis, and wall time
INTEGER, DOUBLE, TEXT_NUMBER = 4, 5, 17  # fields of DebugAnnotation
DELTA_CLOCK = 64  # the first of the numbers for a sequence's own clocks; here each timestamp adds to the last
FLOW_BYTES = 10  # a two-byte tag and a fixed64
EVENTS_PER_CHUNK = 1 << 14  # keeps the byte matrix in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One annotation: its value for each slice (a text's number, a double's bits) and which slices have it."""

    name: str
    field: int  # of DebugAnnotation
    values: NDArray[np.int64]
    present: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """The content of the packets of each slice, strings as their numbers."""

    track: NDArray[np.int64]
    name: NDArray[np.int64]
    category: NDArray[np.int64]
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """The two ends of every arrow as encoded fields, sorted by the event that carries them."""

    event: NDArray[np.int64]
    fields: NDArray[np.uint8]  # one row an end


def write_perfetto(
    spans: pl.DataFrame,
    path: Path,
    *,
    findings: pl.DataFrame | None = None,
    arrows: pl.DataFrame | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write SPANS, and FINDINGS on a track of their job, for ui.perfetto.dev; times before 0 are refused.

    Each row of `arrows` (from_span, to_span) joins two spans; Perfetto draws it from the one that starts first.
    `progress` is called with the number of slices written since its last call.
    """
    table = gather_slices(spans, findings)
    layout = lay_out_tracks(table)
    names, name_ids = _number_strings(table["name"])
    categories, category_ids = _number_strings(table["category"])
    note_strings, notes = _gather_notes(table)
    slices = Slices(track=layout.track_of_slice + 1, name=name_ids, category=category_ids, notes=notes)
    events = order_events(table["start_ns"].to_numpy(), table["end_ns"].to_numpy())
    flows = None if arrows is None else _encode_flows(ARROWS.conform(arrows, "arrows"), events, len(spans))
    note_names = pl.Series([note.name for note in notes], dtype=pl.String)
    interned = [(1, categories), (2, names), (3, note_names), (29, note_strings)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(_encode_head(events.first_ns, interned))
        file.write(_encode_tracks(_describe_tracks(layout.tracks)))
        for start in range(0, len(events.slice_row), EVENTS_PER_CHUNK):
            chunk = slice(start, start + EVENTS_PER_CHUNK)
            file.write(_encode_events(slices, events, flows, chunk))
            if progress is not None:
                progress(int(events.is_begin[chunk].sum()))


def _number_strings(column: pl.Series) -> tuple[pl.Series, NDArray[np.int64]]:
    """The distinct strings, most frequent first to give them the short numbers, and each row's from 1; 0 is null."""
    counts = column.drop_nulls().value_counts(name="count")
    strings = counts.sort("count", column.name, descending=[True, False])[column.name]
    numbers = column.cast(pl.Enum(strings)).to_physical().cast(pl.Int64) + 1
    return strings, numbers.fill_null(0).to_numpy()


def _gather_notes(table: pl.DataFrame) -> tuple[pl.Series, tuple[Note, ...]]:
    """The annotations that any slice has, and the strings that those of text number."""
    used = [c for c in NOTES if c in table.columns and table[c].null_count() < len(table)]
    texts = [c for c in used if table.schema[c] == pl.String]
    strings, numbers = _number_strings(pl.concat([pl.Series("text", dtype=pl.String), *(table[c] for c in texts)]))
    number_of = dict(zip(texts, numbers.reshape(len(texts), len(table)), strict=True))
    notes = []
    for name in used:
        if name in number_of:
            field, values = TEXT_NUMBER, number_of[name]
        elif table.schema[name].is_float():
            field, values = DOUBLE, table[name].fill_null(0).to_numpy().view(np.int64)
        else:
            field, values = INTEGER, table[name].fill_null(0).cast(pl.Int64).to_numpy()
        notes.append(Note(name=name, field=field, values=values, present=table[name].is_not_null().to_numpy()))
    return strings, tuple(notes)


def _encode_head(first_ns: int, interned: list[tuple[int, pl.Series]]) -> bytes:
    """The first packet: when the clocks start, and every string with its number."""
    strings = b"".join(_encode_strings(field, column) for field, column in interned)
    clock = encode_integer(2, first_ns)
    delta_clock = encode_integer(1, DELTA_CLOCK) + clock + encode_integer(3, 1)  # is_incremental
    clocks = [encode_integer(1, BOOTTIME) + clock, encode_integer(1, REALTIME) + clock, delta_clock]
    snapshot = [column for body in clocks for column in encode_message(1, body)] + encode_integer(2, BOOTTIME)
    head = (
        SEQUENCE
        + encode_integer(13, 1)  # SEQ_INCREMENTAL_STATE_CLEARED
        + encode_integer(87, 1)  # first_packet_on_sequence
        + encode_message(6, snapshot)
        + encode_message(59, encode_integer(58, DELTA_CLOCK))  # the default timestamp_clock_id
    )
    return pack_delimited(PACKET, pack_rows(head, 1) + pack_delimited(12, strings))


def _encode_strings(field: int, strings: pl.Series) -> bytes:
    """Entries of one table of InternedData: number and text."""
    num_bytes = strings.str.len_bytes().cast(pl.Int64).to_numpy()
    entry = encode_integer(1, np.arange(1, len(strings) + 1)) + encode_text(2, num_bytes)
    return pack_rows(encode_message(field, entry, num_bytes), len(strings), _join_text(strings), num_bytes)


def _describe_tracks(tracks: pl.DataFrame) -> pl.DataFrame:
    """The tree of tracks, parents first; lanes are numbered from 1 as slices name them, then ranks, then jobs."""
    lanes = tracks.with_row_index("uuid", offset=1).with_columns(place=pl.col("uuid").min().over(LANE))
    ranks = tracks.select("job", "rank").drop_nulls().unique().sort("job", "rank")
    ranks = ranks.with_row_index("uuid", offset=1 + len(lanes))
    jobs = tracks.select("job").unique().sort("job").with_row_index("uuid", offset=1 + len(lanes) + len(ranks))
    parent_job = jobs.select("job", parent="uuid")
    parent_rank = ranks.select("job", "rank", rank_uuid="uuid")
    ranks = ranks.join(parent_job, on="job", maintain_order="left")
    lanes = lanes.join(parent_job, on="job", maintain_order="left")
    lanes = lanes.join(parent_rank, on=["job", "rank"], how="left", maintain_order="left")
    tree = [
        jobs.select("uuid", parent=pl.lit(0), place="uuid", name="job"),
        ranks.select("uuid", "parent", place="uuid", name=pl.format("rank {}", "rank")),
        lanes.select("uuid", pl.coalesce("rank_uuid", "parent").alias("parent"), "place", name="lane"),
    ]
    return pl.concat(tree, how="vertical_relaxed")


def _encode_tracks(tree: pl.DataFrame) -> bytes:
    """A TrackDescriptor for each track."""
    uuid, parent, place = (tree[c].cast(pl.Int64).to_numpy() for c in ("uuid", "parent", "place"))
    num_bytes = tree["name"].str.len_bytes().cast(pl.Int64).to_numpy()
    descriptor = (
        encode_integer(1, uuid)
        + keep_where(parent > 0, encode_integer(5, parent))
        + encode_integer(11, 3)  # child_ordering: EXPLICIT, by the children's sibling_order_rank
        + encode_integer(12, place)
        + encode_text(2, num_bytes)
    )
    packet = encode_message(PACKET, SEQUENCE + encode_message(60, descriptor, num_bytes), num_bytes)
    return pack_rows(packet, len(tree), _join_text(tree["name"]), num_bytes)


def _encode_events(slices: Slices, events: Events, flows: Flows | None, chunk: slice) -> bytes:
    """The packets of some events; their arrows come last, because the number of arrows varies most."""
    row, is_begin, delta_ns = events.slice_row[chunk], events.is_begin[chunk], events.delta_ns[chunk]
    begin = encode_integer(3, slices.category[row]) + encode_integer(10, slices.name[row])
    body = encode_integer(9, np.where(is_begin, 1, 2)) + encode_integer(11, slices.track[row])
    body += keep_where(is_begin, begin)
    for number, note in enumerate(slices.notes, start=1):
        if (present := is_begin & note.present[row]).any():
            encode_value = encode_fixed64 if note.field == DOUBLE else encode_integer
            value = encode_value(note.field, note.values[row])
            body += keep_where(present, encode_message(4, encode_integer(1, number) + value))
    tail, tail_bytes = _carried_flows(flows, chunk.start, len(row))
    packet = encode_integer(8, delta_ns) + SEQUENCE + NEEDS_STRINGS + encode_message(11, body, tail_bytes)
    return pack_rows(encode_message(PACKET, packet, tail_bytes), len(row), tail, tail_bytes)


def _encode_flows(arrows: pl.DataFrame, events: Events, num_spans: int) -> Flows:
    """Both ends of every arrow: a flow id at its start, and the same as terminating id at its end."""
    for column in ARROWS.required:
        if (outside := ~arrows[column].is_between(0, num_spans - 1)).any():
            row = outside.arg_max() or 0
            raise BadRowError(
                f"arrows row {row + 1}: '{column}' is {arrows[column][row]}, "
                f"but there are {num_spans} spans, counted from 0; name one of them"
            )
    begin_of_slice = np.empty(len(events.slice_row) // 2, dtype=np.int64)
    begin_of_slice[events.slice_row[events.is_begin]] = np.flatnonzero(events.is_begin)
    ends = np.sort(begin_of_slice[arrows.to_numpy()], axis=1)  # a viewer reads in file order: leave, then arrive
    event = ends.ravel(order="F")
    fields = encode_fixed64(np.repeat([47, 48], len(arrows)), np.tile(np.arange(1, len(arrows) + 1), 2))
    encoded = np.frombuffer(pack_rows(fields, len(event)), dtype=np.uint8).reshape(len(event), FLOW_BYTES)
    by_event = np.argsort(event, kind="stable")
    return Flows(event=event[by_event], fields=encoded[by_event])


def _carried_flows(flows: Flows | None, start: int, num_events: int) -> tuple[bytes, Integers]:
    """The encoded arrow ends of the events from `start` on, and how many bytes of them each event carries."""
    if flows is None:
        return b"", 0
    first, last = np.searchsorted(flows.event, [start, start + num_events])
    count = np.bincount(flows.event[first:last] - start, minlength=num_events)
    return flows.fields[first:last].tobytes(), count * FLOW_BYTES


def _join_text(strings: pl.Series) -> bytes:
    return "".join(strings).encode()
