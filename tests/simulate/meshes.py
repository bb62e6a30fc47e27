"""Random parallel jobs for the tests, and a solver so plain that it can be believed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from prism.simulate import Graph, GraphBuilder, LinearCosts


@dataclass(frozen=True)
class Mesh:
    """Degrees and program choices of a random job."""

    dp: int
    pp: int
    tp: int
    cp: int
    microbatches: int
    layers: int
    batched: bool
    steps: int
    seed: int

    @property
    def num_ranks(self) -> int:
        return self.dp * self.pp * self.tp * self.cp


meshes = st.builds(
    Mesh,
    dp=st.integers(1, 3),
    pp=st.integers(1, 3),
    tp=st.integers(1, 3),
    cp=st.integers(1, 3),
    microbatches=st.integers(1, 3),
    layers=st.integers(1, 2),
    batched=st.booleans(),
    steps=st.integers(1, 2),
    seed=st.integers(0, 2**16),
)


def build_mesh(mesh: Mesh, gpus_per_host: int = 4) -> Graph:
    """A job with tensor, context (ring by shifts), pipeline and data groups; one class per stage."""
    builder = GraphBuilder("mesh")
    for stage in range(mesh.pp):
        _write_stage(builder.program(), mesh, stage)
    ranks = np.arange(mesh.num_ranks)
    grid = ranks.reshape(mesh.pp, mesh.dp, mesh.cp, mesh.tp)
    builder.ranks(ranks, ranks // (mesh.dp * mesh.cp * mesh.tp), ranks // gpus_per_host, ranks % gpus_per_host)
    for slot, axis in (("pp", 0), ("dp", 1), ("cp", 2), ("tp", 3)):
        builder.groups(slot, np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]))
    return builder.build()


def _write_stage(program, mesh: Mesh, stage: int) -> None:
    random = np.random.default_rng([mesh.seed, stage])
    sizes = np.random.default_rng(mesh.seed).integers(1, 10**6, size=8).tolist()

    def work() -> int:
        return int(random.integers(0, 100_000))

    for step in range(mesh.steps):
        program.step = step
        for _ in range(mesh.microbatches):
            if stage > 0:
                program.recv("pp", sizes[0], peer=stage - 1, stream=1)
                program.join(waiter=0, on=1)
            for _ in range(mesh.layers):
                program.compute("attention", work())
                if mesh.cp > 1:
                    _write_ring(program, mesh, sizes)
                program.all_reduce("tp", sizes[1])
                program.compute("mlp", work())
            if stage < mesh.pp - 1:
                program.join(waiter=2, on=0)
                program.send("pp", sizes[0], peer=stage + 1, stream=2)
        program.host("loader", work())
        program.join(waiter=3, on=0)
        program.reduce_scatter("dp", sizes[2], stream=3)
        program.compute("optimizer", work())
        program.join(waiter=0, on=3)
        program.all_gather("dp", sizes[3])


def _write_ring(program, mesh: Mesh, sizes: list[int]) -> None:
    if mesh.batched:
        with program.batch():
            program.send("cp", sizes[4], shift=1)
            program.recv("cp", sizes[4], shift=-1)
    else:
        program.join(waiter=4, on=0)
        program.join(waiter=5, on=0)
        program.send("cp", sizes[4], shift=1, stream=4)
        program.recv("cp", sizes[4], shift=-1, stream=5)
        program.join(waiter=0, on=5)


def solve_plainly(graph: Graph, costs: LinearCosts, speed: dict[int, float] | None = None) -> dict:
    """End of every (rank, seq) by asking every stream in turn until nothing moves; the slow truth."""
    rows = {c: graph.ops.filter(graph.ops["class"] == c).to_dicts() for c in graph.ranks["class"].unique()}
    seats = {(r["rank"], r["slot"]): (r["group"], r["position"]) for r in graph.groups.iter_rows(named=True)}
    members: dict = {}
    for r in graph.groups.sort("group", "position").iter_rows(named=True):
        members.setdefault(r["group"], []).append(r["rank"])
    where = {r["rank"]: (r["host"], r["local"]) for r in graph.ranks.iter_rows(named=True)}
    lanes: dict = {}
    for r in graph.ranks.iter_rows(named=True):
        counts: dict = {}
        records: dict = {}
        for op in rows[r["class"]]:
            op = dict(op, rank=r["rank"])
            if op["slot"] is not None:
                group, position = seats[r["rank"], op["slot"]]
                size = len(members[group])
                if op["kind"] in ("send", "recv"):
                    other = op["peer"] if op["peer"] is not None else (position + op["shift"]) % size
                    key = (group, position, other) if op["kind"] == "send" else (group, other, position)
                    involved = [members[group][key[1]], members[group][key[2]]]
                else:
                    key, involved = (group,), members[group]
                number = counts[key, op["kind"] in ("send", "recv") and op["kind"]] = (
                    counts.get((key, op["kind"] in ("send", "recv") and op["kind"]), -1) + 1
                )
                op.update(key=(key, number), need=2 if len(key) == 3 else size, involved=involved)
            if op["kind"] == "record":
                records[op["event"]] = op["seq"]
            if op["kind"] == "wait":
                op["on"] = records.get(op["event"])
            lanes.setdefault((r["rank"], op["stream"]), []).append(op)
    return _turn(lanes, costs, where, speed or {})


def _turn(lanes: dict, costs: LinearCosts, where: dict, speed: dict[int, float]) -> dict:
    clock = dict.fromkeys(lanes, 0)
    arrived: dict = {}
    end: dict = {}
    at = dict.fromkeys(lanes, 0)
    moved = True
    while moved:
        moved = False
        for lane, ops in lanes.items():
            while at[lane] < len(ops):
                op = ops[at[lane]]
                rank, now = lane[0], clock[lane]
                batch = [op]
                if op["batch"] is not None:
                    batch = [o for o in ops if o["batch"] == op["batch"]]
                if op["kind"] in ("compute", "host"):
                    factor = speed.get(rank, 1.0) if op["kind"] == "compute" else 1.0
                    end[rank, op["seq"]] = now + round(op["duration_ns"] / factor)
                elif op["kind"] == "record":
                    end[rank, op["seq"]] = now
                elif op["kind"] == "wait":
                    if (rank, op["on"]) not in end:
                        break
                    end[rank, op["seq"]] = max(now, end[rank, op["on"]])
                else:
                    for o in batch:
                        arrived.setdefault(o["key"], {})[rank, o["seq"]] = now
                    if any(len(arrived[o["key"]]) < o["need"] for o in batch):
                        break
                    for o in batch:
                        hosts, locals_ = zip(*(where[r] for r in o["involved"]), strict=True)
                        cost = costs.price(
                            [o["kind"]], np.array([o["bytes"]]), np.array([0]), [costs.place(hosts, locals_)]
                        )
                        end[rank, o["seq"]] = max(arrived[o["key"]].values()) + int(cost[0])
                clock[lane] = max(end[rank, o["seq"]] for o in batch)
                at[lane] += len(batch)
                moved = True
    assert all(at[lane] == len(ops) for lane, ops in lanes.items())
    return end
