"""Graphs that would hang are refused with one sentence that says who waits where."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import Mesh, build_mesh, meshes

from prism.errors import GraphError, InputError
from prism.simulate import Graph, GraphBuilder, LinearCosts, make_graph, solve, verify
from prism.simulate.builder import ProgramBuilder


def pair(first: Callable[[ProgramBuilder], None], second: Callable[[ProgramBuilder], None]) -> Graph:
    builder = GraphBuilder("pair")
    programs = builder.program(), builder.program()
    first(programs[0])
    second(programs[1])
    builder.rank(0, programs[0])
    builder.rank(1, programs[1], local=1)
    builder.group("dp", [0, 1])
    return builder.build()


def refused(graph: Graph) -> str:
    with pytest.raises(GraphError) as error:
        verify(graph)
    assert "\n" not in str(error.value)
    return str(error.value)


@settings(max_examples=25, deadline=None)
@given(meshes)
def test_a_sound_job_is_accepted(mesh: Mesh):
    verify(build_mesh(mesh))


def test_another_collective_at_the_same_place_names_both():
    def one(p: ProgramBuilder) -> None:
        p.all_reduce("dp", 8)
        p.collective("all_reduce", "dp", 8, source="train.py:41")

    def two(p: ProgramBuilder) -> None:
        p.all_reduce("dp", 8)
        p.collective("broadcast", "dp", 8, root=0, source="eval.py:7")

    assert refused(pair(one, two)) == (
        "rank 0 waits in all_reduce #1 of group dp-0 (train.py:41); rank 1 is in broadcast #1 (eval.py:7)"
    )


def test_a_missing_call_names_who_stays_away():
    def one(p: ProgramBuilder) -> None:
        p.all_reduce("dp", 8)
        p.barrier("dp")

    assert refused(pair(one, lambda p: p.all_reduce("dp", 8))) == (
        "rank 0 waits in barrier #1 of group dp-0; rank 1 makes only 1 calls on it"
    )


def test_different_sizes_and_roots_are_reported():
    text = refused(pair(lambda p: p.all_reduce("dp", 8), lambda p: p.all_reduce("dp", 16)))
    assert text == "rank 0 waits in all_reduce #0 of group dp-0 with 8 bytes; rank 1 brings 16 bytes"
    text = refused(pair(lambda p: p.broadcast("dp", 8, 0), lambda p: p.broadcast("dp", 8, 1)))
    assert text == "rank 0 waits in broadcast #0 of group dp-0 from root 0; rank 1 names root 1"


def test_a_send_without_its_receive_is_reported():
    text = refused(pair(lambda p: p.send("dp", 8, peer=1), lambda p: p.compute("a", 1)))
    assert text == "rank 0 waits in send #0 of group dp-0 to rank 1, which makes only 0 receives from it"
    text = refused(pair(lambda p: p.compute("a", 1), lambda p: p.recv("dp", 8, peer=0)))
    assert text == "rank 1 waits in recv #0 of group dp-0 from rank 0, which makes only 0 sends to it"
    text = refused(pair(lambda p: p.send("dp", 8, peer=1), lambda p: p.recv("dp", 9, peer=0)))
    assert text == "rank 0 waits in send #0 of group dp-0 with 8 bytes; rank 1 expects 9 bytes"


def test_two_ranks_that_receive_first_are_a_deadlock():
    def crossed(p: ProgramBuilder, other: int) -> None:
        p.recv("dp", 8, peer=other, source=f"pipe.py:{other}")
        p.send("dp", 8, peer=other)

    text = refused(pair(lambda p: crossed(p, 1), lambda p: crossed(p, 0)))
    assert text == (
        "deadlock: rank 0 waits in recv #0 of group dp-0 (pipe.py:1); "
        "rank 1 waits in recv #0 of group dp-0 (pipe.py:0); each waits for the next"
    )


def test_collectives_of_two_groups_in_crossed_order_are_a_deadlock():
    builder = GraphBuilder("crossed")
    one, two = builder.program(), builder.program()
    one.all_reduce("dp", 8)
    one.all_reduce("tp", 8)
    two.all_reduce("tp", 8)
    two.all_reduce("dp", 8)
    builder.rank(0, one)
    builder.rank(1, two)
    builder.group("dp", [0, 1])
    builder.group("tp", [0, 1])
    text = refused(builder.build())
    assert "rank 0 waits in all_reduce #0 of group dp-0" in text
    assert "rank 1 waits in all_reduce #0 of group tp-0" in text


def test_a_ring_that_sends_before_it_receives_is_a_deadlock_folded_or_not():
    builder = GraphBuilder("ring")
    program = builder.program()
    program.send("cp", 8, shift=1)
    program.recv("cp", 8, shift=-1)
    builder.ranks(range(4), [0] * 4, [0] * 4, range(4))
    builder.group("cp", range(4))
    assert "deadlock: rank 0 waits in send #0 of group cp-0" in refused(builder.build())


def test_a_stream_that_waits_for_itself_through_another_rank_is_explained():
    def one(p: ProgramBuilder) -> None:
        p.recv("dp", 8, peer=1, stream=1)
        p.join(waiter=0, on=1)
        p.send("dp", 8, peer=1)

    def two(p: ProgramBuilder) -> None:
        p.recv("dp", 8, peer=0)
        p.send("dp", 8, peer=0)

    text = refused(pair(one, two))
    assert text.startswith("deadlock: ")
    assert "rank 0 stream 0 waits for event 0" in text
    assert "rank 1 waits in recv #0 of group dp-0" in text


def edit(graph: Graph, table: str, **columns: pl.Expr) -> Graph:
    tables = {name: getattr(graph, name) for name in ("ops", "ranks", "groups")}
    tables[table] = tables[table].with_columns(**columns)
    return make_graph(graph.name, **tables)


BAD = [
    ("groups", {"rank": pl.lit(99)}, "names rank 99, but the ranks are 0 to"),
    ("groups", {"position": pl.col("position") + 1}, "positions must count 0, 1, 2"),
    ("ops", {"duration_ns": pl.lit(-5)}, "negative duration_ns"),
    ("ops", {"duration_ns": pl.lit(10**17)}, "more than eleven days"),
    ("ops", {"bytes": pl.lit(-1)}, "negative bytes"),
    ("ops", {"bytes": pl.lit(2**60)}, "more than a pebibyte"),
    ("ops", {"peer": pl.lit(50)}, "names position 50 of a group of"),
    ("ops", {"slot": pl.lit("zz")}, "uses slot 'zz', but rank 0 is in no such group"),
    ("ops", {"seq": pl.lit(3)}, "has the same seq"),
    ("ops", {"event": pl.int_range(pl.len()) + 10**6}, "which no earlier op records"),
    ("ranks", {"class": pl.lit(77)}, "runs class 77, which has no ops"),
    ("ranks", {"rank": pl.col("rank") + 1}, "ranks are not numbered 0 to"),
]


@pytest.mark.parametrize(("table", "columns", "words"), BAD)
def test_values_that_cannot_be_are_one_clear_line(table: str, columns: dict, words: str):
    graph = edit(build_mesh(Mesh(2, 2, 2, 1, 1, 1, False, 1, 0)), table, **columns)
    assert words in refused(graph)
    with pytest.raises(GraphError):
        solve(graph, LinearCosts())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_random_edit_ends_in_anything_but_an_answer_or_an_input_error(data: st.DataObject):
    graph = build_mesh(Mesh(2, 2, 1, 2, 1, 1, data.draw(st.booleans()), 1, 0))
    ops = graph.ops.to_dicts()
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from(ops))
        column = data.draw(
            st.sampled_from(["stream", "kind", "duration_ns", "slot", "peer", "shift", "bytes", "event", "batch"])
        )
        same = [r[column] for r in ops]
        row[column] = data.draw(
            st.one_of(st.sampled_from(same), st.none()) if column not in ("stream", "kind") else st.sampled_from(same)
        )
    broken = make_graph("broken", pl.DataFrame(ops, schema=graph.ops.schema), graph.ranks, graph.groups)
    try:
        solve(broken, LinearCosts())
    except InputError as error:
        assert str(error)
