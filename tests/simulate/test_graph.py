"""Building, saving, loading and repeating graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import Mesh, build_mesh, meshes

from prism.errors import InputError
from prism.simulate import GraphBuilder, LinearCosts, label_groups, load_graph, repeat_graph, save_graph, solve

MESH = Mesh(2, 2, 2, 2, 1, 1, True, 1, 0)


@settings(max_examples=10, deadline=None)
@given(meshes)
def test_a_saved_graph_loads_as_it_was(tmp_path_factory: pytest.TempPathFactory, mesh: Mesh):
    graph, folder = build_mesh(mesh), tmp_path_factory.mktemp("graph")
    save_graph(graph, folder)
    again = load_graph(folder)
    assert again.name == graph.name
    for table in ("ops", "ranks", "groups"):
        assert getattr(again, table).equals(getattr(graph, table))


def test_many_ranks_share_a_program():
    small, large = (build_mesh(Mesh(dp, 2, 2, 1, 1, 1, False, 1, 0)) for dp in (1, 100))
    assert small.ops.height == large.ops.height
    assert large.num_op_instances == 100 * small.num_op_instances


def test_a_graph_that_runs_twice_takes_twice_as_long_when_its_end_joins_all_ranks():
    builder = GraphBuilder("loop")
    program = builder.program()
    program.step = 0
    program.compute("a", 70)
    program.barrier("dp")
    builder.ranks(np.arange(4), [0] * 4, [0] * 4, np.arange(4))
    builder.group("dp", range(4))
    graph = builder.build()
    costs = LinearCosts(latency_ns=5)
    assert solve(repeat_graph(graph, 3), costs).step_ns.tolist() == [75, 75, 75]
    with pytest.raises(InputError, match="0 times"):
        repeat_graph(graph, 0)


def test_labels_count_the_groups_of_each_slot():
    labels = label_groups(build_mesh(MESH))
    assert labels.filter(pl.col("slot") == "dp")["label"].to_list() == [f"dp-{i}" for i in range(8)]


def test_the_folder_around_a_graph_that_emulate_wrote_will_do(tmp_path: Path):
    save_graph(build_mesh(MESH), tmp_path / "graph")
    assert load_graph(tmp_path).ops.equals(load_graph(tmp_path / "graph").ops)


def test_a_folder_that_is_no_graph_is_reported(tmp_path: Path):
    with pytest.raises(InputError, match="not a graph"):
        load_graph(tmp_path)
    save_graph(build_mesh(MESH), tmp_path)
    (tmp_path / "ops.parquet").unlink()
    with pytest.raises(InputError, match=r"ops\.parquet: missing"):
        load_graph(tmp_path)
    (tmp_path / "graph.json").write_text('{"schema": "other/9", "name": "x"}')
    with pytest.raises(InputError, match="this version reads 'prism.graph/1'"):
        load_graph(tmp_path)


def test_a_table_without_a_column_names_it(tmp_path: Path):
    save_graph(build_mesh(MESH), tmp_path)
    pl.read_parquet(tmp_path / "ranks.parquet").drop("host").write_parquet(tmp_path / "ranks.parquet")
    with pytest.raises(InputError, match="no column 'host'"):
        load_graph(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("graph")
    save_graph(build_mesh(Mesh(1, 1, 1, 1, 1, 1, False, 1, 0)), folder)
    path = folder / data.draw(st.sampled_from(["graph.json", "ops.parquet", "ranks.parquet", "groups.parquet"]))
    content = bytearray(path.read_bytes())
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(bytes(content[:cut]) + data.draw(st.binary(max_size=8)))
    try:
        load_graph(folder)
    except InputError as error:
        assert str(path.name) in str(error)


def test_a_batch_inside_a_batch_is_refused():
    program = GraphBuilder("x").program()
    with program.batch(), pytest.raises(InputError, match="inside a batch"), program.batch():
        pass
