"""Spans, critical path and usage of a solution."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import Mesh, build_mesh, meshes

from prism.errors import InputError
from prism.records.spans import SPANS
from prism.simulate import (
    GraphBuilder,
    LinearCosts,
    Slowdown,
    SolveConfig,
    find_critical_path,
    make_graph,
    measure_usage,
    share_path,
    solve,
    sum_usage,
    write_spans,
)

COSTS = LinearCosts()
NOTED = SolveConfig(note_ops=True)


def overlapped_pair():
    """Rank 0 computes 100, then sends while it computes; rank 1 computes 30 and waits for the message."""
    builder = GraphBuilder("pair")
    one, two = builder.program(), builder.program()
    one.compute("a", 100)
    one.join(waiter=1, on=0)
    one.send("pp", 40, peer=1, stream=1)
    one.compute("b", 30)
    two.compute("a", 30)
    two.recv("pp", 40, peer=0)
    two.host("h", 5)
    two.compute("b", 7)
    builder.rank(0, one)
    builder.rank(1, two, local=1)
    builder.group("pp", [0, 1])
    return solve(builder.build(), LinearCosts(latency_ns=10, bytes_per_ns=1.0), NOTED)


def test_the_critical_path_runs_through_whoever_came_last():
    path = find_critical_path(overlapped_pair())
    assert path.select("rank", "name", "start_ns", "end_ns").rows() == [
        (0, "a", 0, 100),
        (1, "recv", 100, 150),
        (1, "h", 150, 155),
        (1, "b", 155, 162),
    ]
    assert path["group"].to_list() == [None, "pp-0", None, None]
    shares = share_path(path, "kind")
    assert shares.select("kind", "ns").rows() == [("compute", 107), ("recv", 50), ("host", 5)]
    assert shares["share"].to_list() == pytest.approx([107 / 162, 50 / 162, 5 / 162])


@settings(max_examples=40, deadline=None)
@given(meshes, st.booleans(), st.sampled_from([-1, 10**5, 10**7]), st.integers(0, 80))
def test_the_critical_path_has_no_gap_and_ends_with_the_run(mesh: Mesh, folded: bool, eager: int, slow: int):
    graph = build_mesh(mesh)
    slowdowns = [Slowdown(target="rank", id=slow % graph.num_ranks, speed=0.4, end_ns=10**6)]
    solution = solve(graph, COSTS, SolveConfig(fold=folded, note_ops=True, eager_bytes=eager, slowdowns=slowdowns))
    path = find_critical_path(solution)
    assert path["start_ns"][0] == 0
    assert path["end_ns"][-1] == solution.total_ns
    assert path["start_ns"].to_list()[1:] == path["end_ns"].to_list()[:-1]
    assert (path["end_ns"] > path["start_ns"]).all()
    assert share_path(path, "rank")["ns"].sum() == solution.total_ns


@settings(max_examples=20, deadline=None)
@given(meshes)
def test_shortening_an_op_off_the_path_never_shortens_the_run(mesh: Mesh):
    graph = build_mesh(mesh)
    solution = solve(graph, COSTS, NOTED)
    on_path = find_critical_path(solution).select("seq", pl.col("rank"))
    touched = on_path.join(graph.ranks, on="rank").select("class", "seq").unique()
    off = graph.ops.join(touched, on=["class", "seq"], how="anti").filter(pl.col("kind") == "compute")
    shorter = graph.ops.join(
        off.select("class", "seq", pl.lit(1).alias("off")), on=["class", "seq"], how="left"
    ).with_columns(pl.when(pl.col("off").is_not_null()).then(0).otherwise("duration_ns").alias("duration_ns"))
    again = solve(make_graph("again", shorter.drop("off"), graph.ranks, graph.groups), COSTS)
    assert again.total_ns == solution.total_ns


def test_usage_splits_a_rank_s_time_as_by_hand():
    usage = measure_usage(overlapped_pair(), all_ranks=True).rows_by_key("rank", named=True, unique=True)
    assert usage[0] == {
        "total_ns": 162, "compute_ns": 130, "communication_ns": 50, "overlapped_ns": 30, "exposed_ns": 20,
        "host_ns": 0, "waiting_ns": 0, "bubble_ns": 12,
    }  # fmt: skip
    assert usage[1] == {
        "total_ns": 162, "compute_ns": 37, "communication_ns": 50, "overlapped_ns": 0, "exposed_ns": 50,
        "host_ns": 5, "waiting_ns": 70, "bubble_ns": 70,
    }  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(meshes)
def test_usage_adds_up_and_does_not_depend_on_folding(mesh: Mesh):
    graph = build_mesh(mesh)
    folded, whole = (solve(graph, COSTS, SolveConfig(fold=f, note_ops=True)) for f in (True, False))
    usage = measure_usage(folded, all_ranks=True)
    assert usage.equals(measure_usage(whole, all_ranks=True))
    busy = usage["compute_ns"] + usage["exposed_ns"] + usage["host_ns"]
    # A host gap beside a transfer is told as the transfer.
    assert (busy + usage["bubble_ns"] == usage["total_ns"]).all()
    assert (usage["waiting_ns"] <= usage["bubble_ns"]).all()
    assert (usage["overlapped_ns"] + usage["exposed_ns"] == usage["communication_ns"]).all()
    one, two = sum_usage(usage), sum_usage(measure_usage(folded))
    assert one["what"].equals(two["what"])
    assert one["mean_ns"].to_list() == pytest.approx(two["mean_ns"].to_list())


def test_spans_show_the_wait_apart_from_the_transfer():
    spans = write_spans(overlapped_pair(), ranks=[1])
    rows = spans.select("lane", "kind", "name", "start_ns", "end_ns", "bytes", "group").rows()
    assert rows == [
        ("steps", "step", "step 0", 0, 162, None, None),
        ("stream 0", "compute", "a", 0, 30, None, None),
        ("stream 0", "wait", "recv", 30, 100, None, "pp-0"),
        ("stream 0", "pp", "recv", 100, 150, 40, "pp-0"),
        ("stream 0", "host", "h", 150, 155, None, None),
        ("stream 0", "compute", "b", 155, 162, None, None),
    ]


@settings(max_examples=20, deadline=None)
@given(meshes)
def test_spans_of_a_lane_never_overlap_and_hold_the_shape(mesh: Mesh):
    graph = build_mesh(mesh)
    spans = write_spans(solve(graph, COSTS, NOTED))
    assert spans.schema == SPANS.required
    assert spans["rank"].n_unique() == graph.num_ranks
    single = spans.filter((pl.col("lane") != "steps") & (pl.col("end_ns") > pl.col("start_ns")))
    if mesh.batched:
        single = single.filter(~pl.col("name").is_in(["send", "recv"]))
    ordered = single.sort("rank", "lane", "start_ns", "end_ns")
    before = pl.col("end_ns").shift(1).over("rank", "lane")
    assert ordered.filter(pl.col("start_ns") < before).is_empty()


def test_times_that_were_not_kept_are_asked_for():
    solution = solve(build_mesh(Mesh(1, 1, 1, 1, 1, 1, False, 1, 0)), COSTS)
    for call in (find_critical_path, measure_usage, write_spans, lambda s: s.op_times(0)):
        with pytest.raises(InputError, match="note_ops=True"):
            call(solution)
