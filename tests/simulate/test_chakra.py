"""Chakra traces, read back with Google's protobuf and a schema written here from the published field numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint
from meshes import Mesh, build_mesh

from prism.errors import InputError
from prism.simulate import GraphBuilder
from prism.simulate.chakra import export_chakra

FIELD = descriptor_pb2.FieldDescriptorProto
MESSAGES = {
    "AttributeProto": [
        ("name", 1, FIELD.TYPE_STRING, False), ("int32_val", 7, FIELD.TYPE_INT32, False),
        ("int64_val", 9, FIELD.TYPE_INT64, False), ("bool_val", 27, FIELD.TYPE_BOOL, False),
        ("string_val", 29, FIELD.TYPE_STRING, False),
    ],
    "GlobalMetadata": [("version", 1, FIELD.TYPE_STRING, False)],
    "Node": [
        ("id", 1, FIELD.TYPE_UINT64, False), ("name", 2, FIELD.TYPE_STRING, False),
        ("type", 3, FIELD.TYPE_INT32, False), ("data_deps", 5, FIELD.TYPE_UINT64, True),
        ("duration_micros", 7, FIELD.TYPE_UINT64, False), ("attr", 10, "AttributeProto", True),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def schema() -> dict:
    file = descriptor_pb2.FileDescriptorProto(name="et_def_test.proto", package="chakra_test", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            entry = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                entry.type, entry.type_name = FIELD.TYPE_MESSAGE, f".chakra_test.{kind}"
            else:
                entry.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"chakra_test.{name}") for name in MESSAGES)
    return {d.name: message_factory.GetMessageClass(d) for d in found}


def read_trace(path: Path, schema: dict) -> list:
    data, at, parts = path.read_bytes(), 0, []
    while at < len(data):
        size, at = _DecodeVarint(data, at)
        parts.append(data[at : at + size])
        assert len(parts[-1]) == size
        at += size
    metadata = schema["GlobalMetadata"].FromString(parts[0])
    assert metadata.version == "0.0.4"
    return [schema["Node"].FromString(part) for part in parts[1:]]


TYPES = {
    "is_cpu_op": "bool_val", "duration_ns": "int64_val", "comm_size": "int64_val", "comm_type": "int64_val",
    "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val", "pg_name": "string_val",
}  # fmt: skip


def attributes(node) -> dict:
    for attr in node.attr:
        others = {field.name for field, _ in attr.ListFields()} - {"name", TYPES[attr.name]}
        assert not others
    return {attr.name: getattr(attr, TYPES[attr.name]) for attr in node.attr}


def test_every_op_becomes_a_node_of_its_type_with_its_numbers(tmp_path: Path, schema: dict):
    builder = GraphBuilder("tiny")
    first, second = builder.program(), builder.program()
    for program, other, kind in ((first, 1, "send"), (second, 0, "recv")):
        program.compute("gemm", 1_234_567)
        program.host("wait for data", 3_000)
        getattr(program, kind)("pp", 2**33, peer=other)
        program.all_reduce("dp", 4096, stream=1)
        program.barrier("dp", stream=1)
    builder.rank(0, first)
    builder.rank(1, second)
    builder.group("pp", [0, 1])
    builder.group("dp", [0, 1])
    paths = export_chakra(builder.build(), tmp_path)
    assert [p.name for p in paths] == ["tiny.0.et", "tiny.1.et"]
    nodes = read_trace(paths[1], schema)
    assert [n.type for n in nodes] == [4, 4, 6, 7, 7]
    assert [n.name for n in nodes] == ["gemm", "wait for data", "recv", "all_reduce", "barrier"]
    assert [n.duration_micros for n in nodes] == [1235, 3, 0, 0, 0]
    assert attributes(nodes[0])["duration_ns"] == 1_234_567
    assert [bool(attributes(n)["is_cpu_op"]) for n in nodes] == [False, True, False, False, False]
    message = attributes(nodes[2])
    assert (message["comm_src"], message["comm_dst"], message["comm_size"]) == (0, 1, 2**33)
    assert (attributes(nodes[3])["pg_name"], attributes(nodes[4])["comm_type"]) == ("1", 9)
    assert json.loads((tmp_path / "comm_groups.json").read_text()) == {"0": [0, 1], "1": [0, 1]}


def test_dependencies_follow_streams_records_and_batches(tmp_path: Path, schema: dict):
    builder = GraphBuilder("deps")
    program = builder.program()
    program.compute("a", 1)
    event = program.record(stream=0)
    program.compute("b", 1)
    program.wait(event, stream=1)
    program.compute("c", 1, stream=1)
    with program.batch():
        program.send("cp", 8, shift=1, stream=1)
        program.recv("cp", 8, shift=-1, stream=1)
    program.compute("d", 1, stream=1)
    builder.ranks([0, 1, 2], [0, 0, 0], [0, 0, 0], [0, 1, 2])
    builder.group("cp", [0, 1, 2])
    nodes = read_trace(export_chakra(builder.build(), tmp_path, ranks=[2])[0], schema)
    assert [list(n.data_deps) for n in nodes] == [[], [0], [0], [2], [2], [3, 4]]
    assert attributes(nodes[3])["comm_dst"] == 0
    assert attributes(nodes[4])["comm_src"] == 1


def test_sends_and_receives_of_a_whole_job_pair_up(tmp_path: Path, schema: dict):
    graph = build_mesh(Mesh(dp=2, pp=3, tp=2, cp=2, microbatches=2, layers=1, batched=True, steps=1, seed=4))
    sent, received = [], []
    for path in export_chakra(graph, tmp_path):
        for node in read_trace(path, schema):
            assert all(dep < node.id for dep in node.data_deps)
            if node.type in (5, 6):
                a = attributes(node)
                key = tuple(a[name] for name in ("pg_name", "comm_src", "comm_dst", "comm_tag", "comm_size"))
                (sent if node.type == 5 else received).append(key)
    assert sorted(sent) == sorted(received)
    assert len(set(sent)) == len(sent) > 0


def test_an_absent_rank_is_one_clear_line(tmp_path: Path):
    graph = build_mesh(Mesh(1, 1, 2, 1, 1, 1, False, 1, 0))
    with pytest.raises(InputError, match="no rank 9 to export; the ranks are 0 to 1"):
        export_chakra(graph, tmp_path, ranks=[9])


def test_what_is_written_is_read_back_as_the_same_run(tmp_path: Path) -> None:
    from prism.simulate import LinearCosts, SolveConfig, read_chakra, solve

    graph = build_mesh(Mesh(dp=2, pp=2, tp=2, cp=1, microbatches=2, layers=2, batched=False, steps=1, seed=3))
    export_chakra(graph, tmp_path)
    again = read_chakra(tmp_path)
    assert again.num_ranks == graph.num_ranks
    before, after = (solve(g, LinearCosts(), SolveConfig()).total_ns for g in (graph, again))
    assert after == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_trace_that_is_cut_short_is_named(cut: int, tmp_path: Path) -> None:
    from prism.errors import BadFileError
    from prism.simulate import read_chakra

    graph = build_mesh(Mesh(dp=2, pp=1, tp=1, cp=1, microbatches=1, layers=1, batched=False, steps=1, seed=3))
    paths = export_chakra(graph, tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-cut])
    with pytest.raises(BadFileError, match=r"\.1\.et: not a Chakra trace"):
        read_chakra(tmp_path)


def test_a_missing_rank_is_told(tmp_path: Path) -> None:
    from prism.errors import BadFileError
    from prism.simulate import read_chakra

    graph = build_mesh(Mesh(dp=2, pp=1, tp=1, cp=1, microbatches=1, layers=1, batched=False, steps=1, seed=3))
    export_chakra(graph, tmp_path)[0].unlink()
    with pytest.raises(BadFileError, match="none missing"):
        read_chakra(tmp_path)
