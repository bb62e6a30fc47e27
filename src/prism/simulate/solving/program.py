"""Compile the programs of all classes into flat arrays that the kernels walk, one lane per stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.graph import Graph

COMPUTE, HOST, RECORD, WAIT, COLLECTIVE, SEND, RECV, MARK = range(8)
"""What an op does, the low bits of its first word."""

CODE_MASK, MEASURED_BIT, EAGER_BIT, BATCH_SHIFT = 15, 16, 32, 8
"""The first word: code, whether the duration was measured, whether a send is eager, the size of the batch it opens."""

COMMUNICATION = (*COLLECTIVES, *POINT_TO_POINT)
_CODES = {"compute": COMPUTE, "host": HOST, "record": RECORD, "wait": WAIT, "send": SEND, "recv": RECV}
_CODES |= dict.fromkeys(COLLECTIVES, COLLECTIVE)

Ints = NDArray[np.int64]


class Code(NamedTuple):
    """What the kernels read of the programs: ops in lane order, and where each class's lanes and ports lie."""

    ops: Ints  # [op, 4]: word; duration, cost or step; port or record; number of the call on its port
    lane_begin: Ints
    lane_end: Ints
    class_lane_start: Ints
    class_op_start: Ints
    class_port_start: Ints
    class_num_records: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All class programs, compiled; `row` leads from an op back to its row in the graph's OPS."""

    code: Code
    row: Ints  # -1 for step marks
    classes: Ints
    steps: Ints
    slots: tuple[str, ...]
    lane_stream: Ints
    lane_nodes: Ints  # the largest batch of each lane
    ports: pl.DataFrame  # one row per (class, slot, role): class, slot, kind, peer, shift, calls
    port_op_start: Ints  # ops of a port, in the order of its calls
    port_ops: Ints
    costs: pl.DataFrame  # what to price: cost, port, kind, bytes, and how much wider its links are thought

    def port_ops_of(self, port: int) -> Ints:
        """The ops of a port, in the order of its calls."""
        return self.port_ops[self.port_op_start[port] : self.port_op_start[port + 1]]


def compile_program(graph: Graph, *, eager_bytes: int = -1) -> Program:
    """Flatten a graph's programs; sends of at most `eager_bytes` do not wait for their receiver."""
    ops = _number_classes(graph)
    ops = _bind_waits(ops)
    ops, ports = _number_ports(_resolve_shifts(ops, graph))
    ops, costs = _number_costs(ops)
    ops = _mark_steps(_size_batches(ops))
    code = _encode(ops, ports, graph, eager_bytes)
    calls = ops.with_row_index("op").filter(pl.col("port").is_not_null()).sort("port", "call")
    starts = np.searchsorted(calls["port"].to_numpy(), np.arange(ports.height + 1))
    lanes = ops.group_by("class_index", "stream", maintain_order=True).agg(
        pl.col("batch_len").max().fill_null(0).alias("nodes")
    )
    return Program(
        code=code,
        row=ops["row"].fill_null(-1).cast(pl.Int64).to_numpy(),
        classes=graph.ranks["class"].unique().sort().cast(pl.Int64).to_numpy(),
        steps=ops["step"].unique().sort().cast(pl.Int64).to_numpy(),
        slots=tuple(ports["slot"].unique().sort()),
        lane_stream=lanes["stream"].cast(pl.Int64).to_numpy(),
        lane_nodes=lanes["nodes"].cast(pl.Int64).to_numpy(),
        ports=ports,
        port_op_start=starts.astype(np.int64),
        port_ops=calls["op"].cast(pl.Int64).to_numpy(),
        costs=costs,
    )


def replace_durations(program: Program, duration_ns: Ints) -> Program:
    """The same program with other durations, one per row of OPS; only compute, host and measured ops have one."""
    ops = program.code.ops.copy()
    kind = ops[:, 0] & CODE_MASK
    timed = (kind <= HOST) | ((kind >= COLLECTIVE) & (kind < MARK) & (ops[:, 0] & MEASURED_BIT != 0))
    ops[timed, 1] = duration_ns[program.row[timed]]
    return replace(program, code=program.code._replace(ops=ops))


def _number_classes(graph: Graph) -> pl.DataFrame:
    """The ops that take part in timing, with dense class numbers and a step on each."""
    classes = graph.ranks.select(pl.col("class").unique().sort()).with_row_index("class_index")
    step = pl.col("step").forward_fill().backward_fill().over("class").fill_null(0)
    return (
        graph.ops.with_row_index("row")
        .with_columns(step)
        .join(classes, on="class", how="inner", maintain_order="left")
        .filter(~pl.col("kind").is_in(["alloc", "free"]))
        .with_columns(pl.col("kind").cast(pl.String), pl.col("class_index").cast(pl.Int64))
    )


def _bind_waits(ops: pl.DataFrame) -> pl.DataFrame:
    """Bind each wait to the last earlier record of its event, as CUDA does, and drop those that hold nothing."""
    if not ops["kind"].is_in(["record", "wait"]).any():
        return ops.with_columns(pl.lit(None, pl.Int64).alias("record"))
    key = ["class_index", "event"]
    records = ops.filter(pl.col("kind") == "record").select(
        *key, "seq", pl.col("row").alias("record_row"), pl.col("stream").alias("record_stream")
    )
    waits = ops.filter(pl.col("kind") == "wait").select(*key, "seq", "row", "stream")
    bound = waits.sort("seq").join_asof(
        records.sort("seq"), on="seq", by=key, strategy="backward", check_sortedness=False
    )
    bound = bound.filter(pl.col("record_row").is_not_null() & (pl.col("record_stream") != pl.col("stream")))
    used = bound.select("class_index", "record_row").unique().sort("class_index", "record_row")
    used = used.with_columns((pl.col("record_row").rank("dense").over("class_index") - 1).alias("record"))
    numbers = pl.concat(
        [
            used.select(pl.col("record_row").alias("row"), "record"),
            bound.join(used, on=["class_index", "record_row"]).select("row", "record"),
        ]
    ).with_columns(pl.col("record").cast(pl.Int64))
    ops = ops.join(numbers, on="row", how="left", maintain_order="left")
    return ops.filter(~pl.col("kind").is_in(["record", "wait"]) | pl.col("record").is_not_null())


def _resolve_shifts(ops: pl.DataFrame, graph: Graph) -> pl.DataFrame:
    """Take shifts modulo the group's size, so that -1 and size - 1 are one channel."""
    if ops["shift"].null_count() == ops.height:
        return ops
    sizes = graph.groups.with_columns(pl.len().over("group").alias("size")).join(graph.ranks, on="rank")
    sizes = sizes.group_by("class", "slot").agg(pl.col("size").max().cast(pl.Int32))
    ops = ops.join(sizes, on=["class", "slot"], how="left", maintain_order="left")
    # Polars keeps the sign of the dividend only for rem; % is floored, which is what a ring needs.
    return ops.with_columns(pl.col("shift") % pl.col("size")).drop("size")


def _number_ports(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A port is one way a class communicates: collectives of a slot, or messages to or from one peer in it."""
    kind = pl.col("kind")
    role = pl.when(kind.is_in(POINT_TO_POINT)).then(kind).when(kind.is_in(COLLECTIVES)).then(pl.lit("collective"))
    ops = ops.with_columns(
        role.alias("role"),
        pl.when(kind.is_in(POINT_TO_POINT)).then(pl.col("peer")).alias("port_peer"),
        pl.when(kind.is_in(POINT_TO_POINT)).then(pl.col("shift")).alias("port_shift"),
    )
    key = ["class_index", "slot", "role", "port_peer", "port_shift"]
    ports = (
        ops.filter(pl.col("role").is_not_null())
        .group_by(key)
        .agg(pl.len().cast(pl.Int64).alias("calls"))
        .sort(key)
        .with_row_index("port")
        .with_columns(pl.col("port").cast(pl.Int64))
    )
    ops = ops.join(ports.drop("calls"), on=key, how="left", nulls_equal=True, maintain_order="left")
    ops = ops.with_columns(
        pl.when(pl.col("port").is_not_null()).then(pl.int_range(pl.len()).over("port")).alias("call")
    )
    return ops, ports.rename({"port_peer": "peer", "port_shift": "shift"})


def _number_costs(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Equal transfers of one port are priced once."""
    sent = pl.coalesce(pl.col("bytes"), pl.col("sizes").list.sum(), pl.lit(0))
    ops = ops.with_columns(sent.alias("sent"))
    unpriced = pl.col("port").is_not_null() & pl.col("duration_ns").is_null()
    # An uneven all-to-all is priced by its busiest member, which only the wiring knows: each keeps its own number.
    own = pl.when(pl.col("sizes").is_not_null()).then(pl.col("call")).otherwise(-1).alias("uneven_call")
    ops = ops.with_columns(own)
    key = ["port", "kind", "sent", "uneven_call"]
    costs = ops.filter(unpriced).select(*key).unique().sort(key).with_row_index("cost")
    costs = costs.with_columns(pl.col("cost").cast(pl.Int64))
    ops = ops.join(costs, on=key, how="left", nulls_equal=True, maintain_order="left")
    ops = ops.with_columns(pl.when(unpriced).then(pl.col("cost")).alias("cost"))
    return ops, costs.rename({"sent": "bytes"}).with_columns(pl.lit(1.0).alias("widened"))


def _size_batches(ops: pl.DataFrame) -> pl.DataFrame:
    """Put ops in lane order and write each batch's size on its first op."""
    ops = ops.sort("class_index", "stream", "seq")
    lane = ["class_index", "stream"]
    same = (pl.col("batch") == pl.col("batch").shift(1).over(lane)).fill_null(False)
    run = (~same).cum_sum()
    ops = ops.with_columns(run.alias("run"), same.alias("continues"))
    size = pl.when(pl.col("port").is_null() | pl.col("continues")).then(None).otherwise(pl.len().over("run"))
    return ops.with_columns(size.alias("batch_len")).drop("run", "continues")


def _mark_steps(ops: pl.DataFrame) -> pl.DataFrame:
    """Add a mark after the last op of a step on each lane, which notes when the step ended there."""
    last = (pl.col("step") != pl.col("step").shift(-1)).fill_null(True).over("class_index", "stream")
    marks = ops.filter(last).select(
        "class_index",
        "stream",
        "seq",
        "step",
        pl.lit("mark").alias("kind"),
        pl.lit(None, ops["row"].dtype).alias("row"),
    )
    both = pl.concat([ops, marks], how="diagonal")
    return both.sort("class_index", "stream", "seq", pl.col("kind") == "mark", maintain_order=True)


def _encode(ops: pl.DataFrame, ports: pl.DataFrame, graph: Graph, eager_bytes: int) -> Code:
    kind = pl.col("kind")
    code = kind.replace_strict(_CODES, default=MARK, return_dtype=pl.Int64)
    is_comm = pl.col("port").is_not_null()
    measured = (is_comm & pl.col("duration_ns").is_not_null()).cast(pl.Int64) * MEASURED_BIT
    eager = (kind.is_in(POINT_TO_POINT) & (pl.col("sent") <= eager_bytes)).fill_null(False).cast(pl.Int64) * EAGER_BIT
    steps = ops["step"].unique().sort()
    step_index = pl.Series(np.searchsorted(steps.to_numpy(), ops["step"].to_numpy()).astype(np.int64))
    num_classes = graph.ranks["class"].n_unique()
    class_port_start = np.searchsorted(ports["class_index"].to_numpy(), np.arange(num_classes + 1)).astype(np.int64)
    first_port = pl.Series(class_port_start[ops["class_index"].to_numpy()])
    table = ops.with_columns(step_index.alias("step_index"), first_port.alias("first_port")).select(
        code + measured + eager + pl.col("batch_len").fill_null(0).cast(pl.Int64) * 2**BATCH_SHIFT,
        pl.when(kind == "mark").then("step_index").otherwise(pl.coalesce("duration_ns", "cost", pl.lit(0))).alias("v"),
        pl.coalesce(pl.col("port") - pl.col("first_port"), pl.col("record"), pl.lit(0)).alias("where"),
        pl.col("call").fill_null(0),
    )
    lane_key = ops.select(pl.struct("class_index", "stream").rle_id())["class_index"].to_numpy()
    begin = np.flatnonzero(np.r_[True, np.diff(lane_key) != 0]) if ops.height else np.zeros(0, np.int64)
    lane_class = ops["class_index"].to_numpy()[begin]
    everything = np.arange(num_classes + 1)
    records = ops.group_by("class_index").agg((pl.col("record").max().fill_null(-1) + 1).alias("n"))
    num_records = np.zeros(num_classes, np.int64)
    num_records[records["class_index"].to_numpy()] = records["n"].to_numpy()
    return Code(
        ops=np.ascontiguousarray(table.to_numpy().astype(np.int64)),
        lane_begin=begin.astype(np.int64),
        lane_end=np.r_[begin[1:], ops.height].astype(np.int64)[: len(begin)],
        class_lane_start=np.searchsorted(lane_class, everything).astype(np.int64),
        class_op_start=np.searchsorted(ops["class_index"].to_numpy(), everything).astype(np.int64),
        class_port_start=class_port_start,
        class_num_records=num_records,
    )
