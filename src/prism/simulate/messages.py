"""What a graph sends between hosts: one row per op and pair of NICs, before anything is timed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from prism.records.ops import COLLECTIVES
from prism.records.shape import Shape, columns
from prism.records.spans import PAIR_KINDS
from prism.simulate.cluster import Cluster
from prism.simulate.edges import collective_edges, find_lanes
from prism.simulate.graph import Graph
from prism.simulate.placement import GroupPlacement, placement_of
from prism.simulate.transfer_model import evaluate_transfer

MESSAGES = Shape(
    name="messages",
    required=columns(
        {
            "rank": pl.Int32,  # whose op it is: the sender
            "seq": pl.Int32,  # which op of that rank's program
            "src": pl.Int32,  # endpoint: host x NICs per host + NIC
            "dst": pl.Int32,
            "bytes": pl.Int64,
            "kind": pl.Enum(PAIR_KINDS),
            "group": pl.Int32,
        }
    ),
)
_EXCHANGES = ("all_to_all",)
_ONE_WAY = tuple(kind for kind in COLLECTIVES if kind not in (*_EXCHANGES, "barrier"))


def find_messages(graph: Graph, cluster: Cluster) -> pl.DataFrame:
    """Every message of the graph that crosses hosts, as MESSAGES; a barrier carries too little to count."""
    members = _place_members(graph, cluster)
    parts = [
        _name_senders(_collective_messages(graph, members, cluster), graph, members),
        _exchange_messages(graph, members, cluster),
        _point_to_point_messages(graph, members, cluster),
    ]
    return pl.concat(parts).filter(pl.col("bytes") > 0).sort("rank", "seq", "src", "dst")


def _name_senders(messages: pl.DataFrame, graph: Graph, members: pl.DataFrame) -> pl.DataFrame:
    """The op that sends each message of a collective, by the number of the call in its group."""
    if messages.is_empty():
        return messages
    calls = graph.ops.filter(pl.col("kind").is_in(COLLECTIVES)).select("class", "seq", "slot")
    calls = calls.with_columns(pl.int_range(pl.len()).over("class", "slot", order_by="seq").alias("call"))
    called = members.select("group", "rank", "class", "slot").join(calls, on=["class", "slot"], how="inner")
    called = called.select("group", "rank", "seq", "call")
    found = messages.join(called, on=["group", "rank", "seq"], how="left").drop("rank", "seq")
    seats = members.unique(["group", "nic"], keep="first", maintain_order=True)
    seats = seats.select("group", pl.col("nic").cast(pl.Int32).alias("src"), "rank")
    found = found.join(seats, on=["group", "src"], how="left").join(called, on=["group", "rank", "call"], how="left")
    return MESSAGES.conform(found, "collectives")


def _place_members(graph: Graph, cluster: Cluster) -> pl.DataFrame:
    """Group members with their class, host, rail and NIC."""
    placed = graph.groups.join(graph.ranks, on="rank", how="inner").sort("group", "position")
    rail = pl.Series("rail", cluster.rail_of(placed["local"].cast(pl.Int64).to_numpy()))
    return placed.with_columns(rail, (pl.col("host").cast(pl.Int64) * cluster.nics.count + rail).alias("nic"))


def _collective_messages(graph: Graph, members: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    ops = graph.ops.filter(pl.col("kind").is_in(_ONE_WAY)).select(
        "class",
        "seq",
        "slot",
        pl.col("kind").cast(pl.String),
        pl.col("bytes").cast(pl.Int64),
        pl.col("peer").fill_null(0),
    )
    slots = ops["slot"].unique()
    crossing = members.filter(pl.col("slot").is_in(slots.to_list()) & (pl.col("host").n_unique() > 1).over("group"))
    by_program = dict(iter(ops.group_by("class", "slot")))
    chosen: dict[tuple[object, ...], pl.DataFrame] = {}
    rows: list[pl.DataFrame] = []
    edges: list[pl.DataFrame] = []
    for (group,), part in crossing.group_by("group", maintain_order=True):
        key = (part["class"][0], part["slot"][0])
        if key not in by_program:
            continue
        placement = placement_of(part["host"].to_numpy(), part["local"].to_numpy(), cluster)
        if (key, placement) not in chosen:
            chosen[key, placement] = _choose_algorithms(by_program[key], placement, cluster)
        picked = chosen[key, placement]
        rows.append(picked.with_columns(_int(part["rank"][0], "rank"), _int(group, "group"), _word(part["kind"][0])))
        edges.extend(_edges_of_group(group, part, picked))
    if not rows:
        return MESSAGES.empty()
    joined = pl.concat(rows).join(pl.concat(edges), on=["group", "op", "algorithm", "peer"], how="inner")
    size = (pl.col("bytes") * pl.col("share")).round().cast(pl.Int64)
    return MESSAGES.conform(joined.with_columns(size.alias("bytes")), "collectives")


def _choose_algorithms(ops: pl.DataFrame, placement: GroupPlacement, cluster: Cluster) -> pl.DataFrame:
    """The ops of one program and slot with the algorithm that each would run on this placement."""
    parts = []
    for (kind,), same in ops.group_by("kind"):
        costs = evaluate_transfer(str(kind), same["bytes"].to_numpy().astype(float), placement, cluster)
        names = [costs.candidates[i].algorithm for i in costs.choice]
        parts.append(same.with_columns(pl.Series("algorithm", names, pl.String)))
    return pl.concat(parts).rename({"kind": "op"}).drop("slot", "class")


def _edges_of_group(group: object, part: pl.DataFrame, picked: pl.DataFrame) -> Iterator[pl.DataFrame]:
    lanes = find_lanes(part["host"].to_numpy(), part["nic"].to_numpy())
    order = part["host"].unique(maintain_order=True).to_list()
    for kind, algorithm, root in picked.select("op", "algorithm", "peer").unique().iter_rows():
        found = collective_edges(kind, algorithm, lanes, order.index(part["host"][root]))
        yield pl.DataFrame({"src": found.src, "dst": found.dst, "share": found.share}).with_columns(
            _int(group, "group"), pl.lit(kind).alias("op"), pl.lit(algorithm).alias("algorithm"), _int(root, "peer")
        )


def _exchange_messages(graph: Graph, members: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    ops = graph.ops.filter(pl.col("kind").is_in(_EXCHANGES)).select("class", "seq", "slot", "bytes", "sizes")
    if ops.is_empty():
        return MESSAGES.empty()
    own = members.filter(pl.col("slot").is_in(ops["slot"].unique().to_list()))
    other = own.select("group", *(pl.col(c).alias(f"{c}_to") for c in ("position", "host", "rail")))
    pairs = own.with_columns(pl.len().over("group").alias("size")).join(other, on="group")
    pairs = _add_nics(pairs.filter(pl.col("host") != pl.col("host_to")), cluster)
    joined = pairs.join(ops, on=["class", "slot"], how="inner")
    own_size = pl.col("sizes").list.get(pl.col("position_to"), null_on_oob=True)
    size = pl.coalesce(own_size, pl.col("bytes") // pl.col("size"))
    return MESSAGES.conform(joined.with_columns(size.alias("bytes")), "exchanges")


def _point_to_point_messages(graph: Graph, members: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    ops = graph.ops.filter(pl.col("kind") == "send").select("class", "seq", "slot", "bytes", "peer", "shift")
    if ops.is_empty():
        return MESSAGES.empty()
    own = members.filter(pl.col("slot").is_in(ops["slot"].unique().to_list()))
    own = own.with_columns(pl.len().over("group").alias("size"))
    sends = own.join(ops, on=["class", "slot"], how="inner")
    shifted = (pl.col("position") + pl.col("shift")) % pl.col("size").cast(pl.Int32)
    sends = sends.with_columns(pl.coalesce("peer", shifted).cast(pl.Int32).alias("position_to"))
    other = own.select("group", *(pl.col(c).alias(f"{c}_to") for c in ("position", "host", "rail")))
    pairs = sends.join(other, on=["group", "position_to"], how="inner").filter(pl.col("host") != pl.col("host_to"))
    return MESSAGES.conform(_add_nics(pairs, cluster), "messages")


def _add_nics(pairs: pl.DataFrame, cluster: Cluster) -> pl.DataFrame:
    """With PXN, where NVLink reaches every NIC of a host, a message leaves by the NIC on the receiver's rail."""
    leaves_by = pl.col("rail_to") if cluster.nvlink is not None else pl.col("rail")
    count = cluster.nics.count
    return pairs.with_columns(
        (pl.col("host").cast(pl.Int64) * count + leaves_by).alias("src"),
        (pl.col("host_to").cast(pl.Int64) * count + pl.col("rail_to")).alias("dst"),
    )


def _int(value: object, name: str) -> pl.Expr:
    return pl.lit(value, pl.Int32).alias(name)


def _word(kind: str) -> pl.Expr:
    return pl.lit(kind).alias("kind")
