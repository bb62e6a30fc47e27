"""Write a graph as MLCommons Chakra execution traces, one file per rank, which other simulators read.

Field numbers and attribute types are those of mlcommons/chakra schema/protobuf/et_def.proto and of the feeder that
ASTRA-sim reads it with: messages in a row, each after its length; comm_size and comm_type as int64, ranks as int32.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.records import varints
from prism.records.varints import Columns
from prism.simulate.graph import Graph
from prism.simulate.structure import check_structure

VERSION = "0.0.4"
_COMPUTE, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7  # NodeType
COLLECTIVE_TYPES = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_NODE_TYPES = {"compute": _COMPUTE, "host": _COMPUTE, "send": _SEND, "recv": _RECV}
_NODE_TYPES |= dict.fromkeys(COLLECTIVE_TYPES, _COLLECTIVE)
_INT32, _INT64, _BOOL, _TEXT = 7, 9, 27, 29  # fields of AttributeProto


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """A class's ops that become nodes, and for each the nodes it must wait for (-1 where there are fewer)."""

    ops: pl.DataFrame
    waits: np.ndarray


def export_chakra(graph: Graph, folder: Path, ranks: Sequence[int] | None = None) -> list[Path]:
    """Write `NAME.RANK.et` for each rank and `comm_groups.json`; returns the paths of the traces."""
    check_structure(graph)
    wanted = list(range(graph.num_ranks)) if ranks is None else list(ranks)
    absent = [rank for rank in wanted if not 0 <= rank < graph.num_ranks]
    if absent:
        raise BadConfigError(f"no rank {absent[0]} to export; the ranks are 0 to {graph.num_ranks - 1}")
    folder.mkdir(parents=True, exist_ok=True)
    members = graph.groups.group_by("group", maintain_order=True).agg("rank")
    document = {str(group): list(inside) for group, inside in members.iter_rows()}
    (folder / "comm_groups.json").write_text(json.dumps(document) + "\n")
    groups = {group: np.array(inside) for group, inside in members.iter_rows()}
    seats = {
        rank: {s: (g, p) for s, g, p in rows.select("slot", "group", "position").iter_rows()}
        for (rank,), rows in graph.groups.group_by("rank")
    }
    prepared: dict[int, _Nodes] = {}
    paths = []
    for rank in wanted:
        class_id = int(graph.ranks["class"][rank])
        if class_id not in prepared:
            prepared[class_id] = _prepare(graph.ops.filter(pl.col("class") == class_id))
        path = folder / f"{graph.name}.{rank}.et"
        path.write_bytes(_encode_rank(prepared[class_id], rank, seats.get(rank, {}), groups))
        paths.append(path)
    return paths


def _prepare(ops: pl.DataFrame) -> _Nodes:
    """Resolve streams, records and batches into direct dependencies between nodes."""
    last: dict[int, list[int]] = {}  # by stream: the nodes its next op waits for
    recorded: dict[int, list[int]] = {}
    batch_of: dict[int, int | None] = {}
    before_batch: dict[int, list[int]] = {}
    waits: list[list[int]] = []
    kept: list[int] = []
    columns = ops.select(pl.col("kind").cast(pl.String), "stream", "event", "batch").iter_rows()
    for row, (kind, stream, event, batch) in enumerate(columns):
        if kind == "record":
            recorded[event] = list(last.get(stream, []))
        elif kind == "wait":
            last[stream] = list(dict.fromkeys([*last.get(stream, []), *recorded.get(event, [])]))
            batch_of[stream] = None
        elif kind not in ("alloc", "free"):
            node = len(kept)
            kept.append(row)
            together = batch is not None and batch_of.get(stream) == batch
            if not together:
                before_batch[stream] = last.get(stream, [])
            waits.append(before_batch[stream])
            last[stream] = [*last[stream], node] if together else [node]
            batch_of[stream] = batch
    width = max((len(w) for w in waits), default=0)
    table = np.full((len(waits), width), -1, np.int64)
    for i, nodes in enumerate(waits):
        table[i, : len(nodes)] = nodes
    kinds = pl.col("kind").cast(pl.String)
    chosen = ops[kept].with_columns(kinds, pl.coalesce(pl.col("bytes"), pl.col("sizes").list.sum(), 0).alias("bytes"))
    tag = pl.int_range(pl.len()).over("slot", "kind", "peer", "shift")
    return _Nodes(ops=chosen.with_columns(tag.alias("tag")), waits=table)


def _encode_rank(nodes: _Nodes, rank: int, seats: dict[str, tuple[int, int]], groups: dict[int, np.ndarray]) -> bytes:
    ops, count = nodes.ops, nodes.ops.height
    kind = ops["kind"]
    types = kind.replace_strict(_NODE_TYPES, return_dtype=pl.Int64).to_numpy()
    duration = ops["duration_ns"].fill_null(0).to_numpy()
    group, other = _resolve_peers(ops, seats, groups)
    sends, receives = types == _SEND, types == _RECV
    message, collective = sends | receives, types == _COLLECTIVE
    coll_type = kind.replace_strict(COLLECTIVE_TYPES, default=0, return_dtype=pl.Int64).to_numpy()
    size = ops["bytes"].to_numpy()
    body: Columns = varints.encode_integer(1, np.arange(count))
    body += varints.encode_integer(3, types)
    for column in range(nodes.waits.shape[1]):
        waited = nodes.waits[:, column]
        body += varints.keep_where(waited >= 0, varints.encode_integer(5, np.maximum(waited, 0)))
    body += varints.encode_integer(7, (duration + 500) // 1000)
    body += _attribute("is_cpu_op", _BOOL, (kind == "host").to_numpy().astype(np.int64))
    body += _attribute("duration_ns", _INT64, duration)
    body += varints.keep_where(message | collective, _attribute("comm_size", _INT64, size))
    body += varints.keep_where(collective, _attribute("comm_type", _INT64, coll_type))
    body += varints.keep_where(message, _attribute("comm_src", _INT32, np.where(sends, rank, other)))
    body += varints.keep_where(message, _attribute("comm_dst", _INT32, np.where(sends, other, rank)))
    body += varints.keep_where(message, _attribute("comm_tag", _INT32, ops["tag"].cast(pl.Int64).to_numpy()))
    body += varints.keep_where(message | collective, _decimal_attribute("pg_name", group))
    names = [name.encode() for name in ops["name"]]
    lengths = np.array([len(name) for name in names], np.int64)
    body += varints.encode_text(2, lengths)
    rows = varints.encode_varint(varints.num_bytes(body) + lengths) + body
    head = varints.pack_delimited(1, VERSION.encode())
    metadata = varints.pack_rows(varints.encode_varint(len(head)), 1) + head
    return metadata + varints.pack_rows(rows, count, b"".join(names), lengths)


def _resolve_peers(
    ops: pl.DataFrame, seats: dict[str, tuple[int, int]], groups: dict[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The group and the other side's rank of each op; 0 where it has none."""
    group, other = np.zeros(ops.height, np.int64), np.zeros(ops.height, np.int64)
    peer, shift = (ops[c].fill_null(-1).cast(pl.Int64).to_numpy() for c in ("peer", "shift"))
    has_shift = ops["shift"].is_not_null().to_numpy()
    for slot in ops["slot"].drop_nulls().unique():
        here = (ops["slot"] == slot).fill_null(False).to_numpy()
        group[here], position = seats[slot]
        ranks = groups[seats[slot][0]]
        at = np.where(has_shift, (position + shift) % len(ranks), np.maximum(peer, 0))
        other[here] = ranks[at[here]]
    return group, other


def _attribute(name: str, field: int, values: np.ndarray) -> Columns:
    """One named number of a node."""
    return varints.encode_message(10, _text(1, name) + varints.encode_integer(field, values))


def _decimal_attribute(name: str, values: np.ndarray) -> Columns:
    """One named number of a node, written in digits."""
    width = len(str(int(values.max(initial=0))))
    digits: Columns = []
    for place in range(width - 1, -1, -1):
        byte = (48 + values // 10**place % 10).astype(np.uint8)
        digits.append((byte, values >= 10**place if place else True))
    return varints.encode_message(10, _text(1, name) + varints.encode_text(_TEXT, varints.num_bytes(digits)) + digits)


def _text(field: int, text: str) -> Columns:
    return varints.encode_text(field, len(text)) + [(byte, True) for byte in text.encode()]
