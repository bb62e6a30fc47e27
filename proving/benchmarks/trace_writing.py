"""Writing a million spans as a trace: Prism beside the `perfetto` package's own classes, and Chrome JSON.

    python proving/benchmarks/trace_writing.py [--spans 1000000] [--rounds 2]

Each writer runs in a fresh process and is timed on its first call, so what it imports or compiles is counted;
the writers take turns, and the shortest of each one's rounds is printed, with the processor time of that round.
Both Perfetto writers make the same packets; a smaller trace is parsed first to show that they are equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from machine import describe_machine
from prism.records import SPANS
from prism.records.chrome import write_chrome_trace
from prism.records.perfetto import write_perfetto
from prism.records.tracks import NOTES, gather_slices, lay_out_tracks, order_events

NUM_RANKS = 64
LANES = ("steps", "compute", "dp", "pp", "tp")
EPOCH_NS = 1_763_000_000 * 10**9


def make_spans(num_spans: int, *, every_note: bool) -> pl.DataFrame:
    """Busy lanes of 64 ranks: slices of 20 to 400 us, every tenth around the next one, some of `dp` crossing."""
    rng = np.random.default_rng(0)
    per_lane = num_spans // (NUM_RANKS * len(LANES))
    rows = NUM_RANKS * len(LANES) * per_lane
    length = rng.integers(20_000, 400_000, (NUM_RANKS * len(LANES), per_lane))
    end = np.cumsum(length + rng.integers(0, 50_000, length.shape), axis=1)
    start = end - length
    end[:, 0:-1:10] = end[:, 1::10][:, : end[:, 0:-1:10].shape[1]]
    lane = np.tile(np.repeat(np.arange(len(LANES)), per_lane), NUM_RANKS)
    start, end = start.ravel(), end.ravel()
    end[(lane == LANES.index("dp")) & (rng.random(rows) < 0.05)] += 40_000
    kinds = np.array(["step", "compute", "dp", "pp", "tp"])
    names = np.array(
        [f"{kind} layer {i}" for kind in ("gemm", "attention", "norm", "reduce", "send") for i in range(48)]
    )
    groups = np.array([f"dp-{i}" for i in range(64)] + [f"tp-{i}" for i in range(128)])
    communicates = pl.Series(lane >= LANES.index("dp")) | pl.Series([every_note])
    spans = pl.DataFrame(
        {
            "job": pl.repeat("job-1", rows, eager=True),
            "rank": np.repeat(np.arange(NUM_RANKS), rows // NUM_RANKS),
            "lane": np.array(LANES)[lane],
            "kind": kinds[lane],
            "name": names[rng.integers(0, len(names), rows)],
            "step": start // 500_000_000,
            "start_ns": EPOCH_NS + start,
            "end_ns": EPOCH_NS + end,
            "bytes": pl.Series(rng.integers(1, 1 << 28, rows)),
            "group": groups[rng.integers(0, len(groups), rows)],
        }
    )
    spans = spans.with_columns(pl.when(communicates).then(pl.col(c)).alias(c) for c in ("bytes", "group"))
    return SPANS.conform(spans)


def write_official(spans: pl.DataFrame, path: Path) -> None:
    """The trace that `write_perfetto` makes, one message object a packet, with the `perfetto` package."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    slices = gather_slices(spans, None)
    layout = lay_out_tracks(slices)
    order = order_events(slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy())
    notes = [(note, slices[note].to_list()) for note in NOTES if note in slices.columns]
    number = {column: number_strings(slices[column]) for column in ("category", "name", "group")}
    note_ids = {note: iid for iid, (note, _) in enumerate(notes, start=1)}
    names, categories = slices["name"].to_list(), slices["category"].to_list()
    tracks = (layout.track_of_slice + 1).tolist()
    with path.open("wb") as file:
        builder = StreamingTraceProtoBuilder(file)

        def add() -> TracePacket:
            packet = builder.create_packet()
            packet.trusted_packet_sequence_id = 1
            return packet

        head = add()
        head.sequence_flags = 1
        head.first_packet_on_sequence = True
        head.clock_snapshot.primary_trace_clock = 6
        for clock in (6, 1):
            head.clock_snapshot.clocks.add(clock_id=clock, timestamp=order.first_ns)
        head.clock_snapshot.clocks.add(clock_id=64, timestamp=order.first_ns, is_incremental=True)
        head.trace_packet_defaults.timestamp_clock_id = 64
        strings = head.interned_data
        for text, iid in number["category"].items():
            strings.event_categories.add(iid=iid, name=text)
        for text, iid in number["name"].items():
            strings.event_names.add(iid=iid, name=text)
        for text, iid in note_ids.items():
            strings.debug_annotation_names.add(iid=iid, name=text)
        for text, iid in number["group"].items():
            strings.debug_annotation_string_values.add(iid=iid, str=text.encode())
        builder.write_packet(head)
        for descriptor in describe_tracks(layout.tracks):
            packet = add()
            for field, value in descriptor.items():
                setattr(packet.track_descriptor, field, value)
            builder.write_packet(packet)
        for row, is_begin, delta in zip(
            order.slice_row.tolist(), order.is_begin.tolist(), order.delta_ns.tolist(), strict=True
        ):
            packet = add()
            packet.timestamp = delta
            packet.sequence_flags = 2
            event = packet.track_event
            event.type = 1 if is_begin else 2
            event.track_uuid = tracks[row]
            if is_begin:
                event.category_iids.append(number["category"][categories[row]])
                event.name_iid = number["name"][names[row]]
                for note, values in notes:
                    if (value := values[row]) is None:
                        continue
                    annotation = event.debug_annotations.add(name_iid=note_ids[note])
                    if note == "group":
                        annotation.string_value_iid = number["group"][value]
                    else:
                        annotation.int_value = value
            builder.write_packet(packet)


def number_strings(column: pl.Series) -> dict[str, int]:
    """Distinct strings, most frequent first, from 1."""
    counts = column.drop_nulls().value_counts(name="count").sort("count", column.name, descending=[True, False])
    return {text: iid for iid, text in enumerate(counts[column.name], start=1)}


def describe_tracks(tracks: pl.DataFrame) -> list[dict[str, object]]:
    """Job, ranks and lanes of one job as fields of TrackDescriptor."""
    ranks = tracks["rank"].unique().sort().to_list()
    rank_uuid = {rank: len(tracks) + 1 + i for i, rank in enumerate(ranks)}
    job_uuid = len(tracks) + len(ranks) + 1
    usual = {"child_ordering": 3}
    out: list[dict[str, object]] = [{"uuid": job_uuid, **usual, "sibling_order_rank": job_uuid, "name": "job-1"}]
    for rank, uuid in rank_uuid.items():
        place = {"parent_uuid": job_uuid, **usual, "sibling_order_rank": uuid}
        out.append({"uuid": uuid, **place, "name": f"rank {rank}"})
    first: dict[tuple[int, str], int] = {}
    for uuid, (_, rank, lane, _) in enumerate(tracks.rows(), start=1):
        place = {"parent_uuid": rank_uuid[rank], **usual, "sibling_order_rank": first.setdefault((rank, lane), uuid)}
        out.append({"uuid": uuid, **place, "name": lane})
    return out


def write_json_dump(spans: pl.DataFrame, path: Path) -> None:
    """Chrome JSON as a plain script would write it: a dictionary a slice, then json.dump."""
    events = [
        {
            "ph": "X",
            "pid": row["rank"],
            "tid": row["lane"],
            "ts": (row["start_ns"] - EPOCH_NS) / 1000,
            "dur": (row["end_ns"] - row["start_ns"]) / 1000,
            "name": row["name"],
            "cat": row["kind"],
            "args": {note: row[note] for note in ("step", "bytes", "group") if row[note] is not None},
        }
        for row in spans.iter_rows(named=True)
    ]
    with path.open("w") as file:
        json.dump({"traceEvents": events}, file, separators=(",", ":"))


WRITERS = {
    "Perfetto, Prism": write_perfetto,
    "Perfetto, perfetto package": write_official,
    "Chrome JSON, Prism": write_chrome_trace,
    "Chrome JSON, json.dump": write_json_dump,
}


def time_writer(writer: str, spans_path: Path) -> None:
    """Write once in this process; print seconds, processor seconds and bytes."""
    spans = pl.read_parquet(spans_path)
    path = spans_path.with_suffix(".trace")
    begin, begin_cpu = time.perf_counter(), time.process_time()
    WRITERS[writer](spans, path)
    print(time.perf_counter() - begin, time.process_time() - begin_cpu, path.stat().st_size)


def check_equal(folder: Path) -> None:
    """Stop unless both Perfetto writers make the same packets."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    spans = make_spans(20_000, every_note=False)
    write_perfetto(spans, folder / "ours")
    write_official(spans, folder / "theirs")
    if Trace.FromString((folder / "ours").read_bytes()) != Trace.FromString((folder / "theirs").read_bytes()):
        sys.exit("the two Perfetto writers disagree")
    print(f"{len(spans):,} spans: both Perfetto traces parse to equal packets")


def compare(spans: pl.DataFrame, writers: list[str], rounds: int, folder: Path) -> None:
    """Print a row for each writer; ratios are to the first."""
    file = folder / "spans.parquet"
    spans.write_parquet(file)
    best: dict[str, tuple[float, ...]] = {}
    for _ in range(rounds):
        for writer in writers:
            command = [sys.executable, __file__, "--only", writer, "--file", str(file)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            measured = tuple(map(float, answer.split()))
            best[writer] = min(best.get(writer, measured), measured)
    print(f"{'':28}{'seconds':>9}{'of CPU':>9}{'MB':>8}{'time ratio':>12}{'size ratio':>12}")
    own_seconds, _, own_size = best[writers[0]]
    for writer, (seconds, cpu, size) in best.items():
        ratios = f"{seconds / own_seconds:>12.1f}{size / own_size:>12.1f}"
        print(f"{writer:28}{seconds:>9.2f}{cpu:>9.2f}{size / 1e6:>8.1f}{ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=WRITERS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        time_writer(options.only, options.file)
        return
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        check_equal(Path(folder))
        spans = make_spans(options.spans, every_note=False)
        print(f"\n{len(spans):,} spans, all with a step, communication with bytes and group", flush=True)
        compare(spans, list(WRITERS), options.rounds, Path(folder))
        spans = make_spans(options.spans, every_note=True)
        print(f"\n{len(spans):,} spans, all with step, bytes and group", flush=True)
        compare(spans, ["Perfetto, Prism", "Chrome JSON, Prism"], options.rounds, Path(folder))


if __name__ == "__main__":
    main()
