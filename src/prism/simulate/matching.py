"""Check that calls match: all members of a group make the same collectives in one order, every send has its receive."""

from __future__ import annotations

from typing import Any

import polars as pl

from prism.errors import GraphError
from prism.records.ops import COLLECTIVES, POINT_TO_POINT
from prism.simulate.graph import Graph, label_groups


def check_collectives(graph: Graph) -> None:
    """Compare what the classes of each group call, call by call; classes alike in all are compared once."""
    calls = _number_calls(graph.ops.filter(pl.col("kind").is_in(COLLECTIVES)), ["class", "slot"])
    if calls.is_empty():
        return
    exact = pl.when(pl.col("sizes").is_null() & (pl.col("kind") != "barrier")).then(pl.col("bytes")).alias("exact")
    calls = calls.with_columns(exact, pl.col("sizes").is_not_null().alias("uneven"))
    sign = pl.struct("kind", "exact", "peer", "uneven").hash(seed=1)
    signs = calls.group_by("class", "slot").agg(
        (sign * (pl.col("call") + 1).hash(seed=2)).sum().alias("sign"), pl.len()
    )
    member = graph.groups.join(graph.ranks.select("rank", "class"), on="rank").join(
        signs, on=["class", "slot"], how="left"
    )
    mixed = member.group_by("group").agg((pl.struct("sign", "len").n_unique() > 1).alias("mixed")).filter("mixed")
    if mixed.is_empty():
        return
    group = mixed["group"].min()
    inside = member.filter(pl.col("group") == group).sort("position")
    first = inside.row(0, named=True)
    odd = inside.filter(
        pl.struct("sign", "len").ne_missing(
            pl.struct(*(pl.lit(first[c]).cast(inside[c].dtype).alias(c) for c in ("sign", "len")))
        )
    )
    raise GraphError(_compare_calls(graph, calls, first, odd.row(0, named=True)))


def _compare_calls(graph: Graph, calls: pl.DataFrame, one: dict[str, Any], two: dict[str, Any]) -> str:
    """The first call in which two members of a group differ, in one sentence."""
    label = label_groups(graph).filter(pl.col("group") == one["group"])["label"][0]
    mine, yours = (
        calls.filter((pl.col("class") == m["class"]) & (pl.col("slot") == m["slot"])).to_dicts() for m in (one, two)
    )
    for index in range(max(len(mine), len(yours))):
        if index >= len(mine) or index >= len(yours):
            longer, caller, other = (mine, one, two) if len(mine) > len(yours) else (yours, two, one)
            return f"{_say(caller['rank'], longer[index], label)}; rank {other['rank']} makes only {index} calls on it"
        a, b = mine[index], yours[index]
        if a["kind"] != b["kind"]:
            return f"{_say(one['rank'], a, label)}; rank {two['rank']} is in {b['kind']} #{index}{_at(b)}"
        if a["exact"] != b["exact"] or a["uneven"] != b["uneven"]:
            sizes = f"with {a['bytes']} bytes; rank {two['rank']} brings {b['bytes']} bytes"
            return f"{_say(one['rank'], a, label)} {sizes}{_at(b)}"
        if a["peer"] != b["peer"]:
            roots = f"from root {a['peer']}; rank {two['rank']} names root {b['peer']}"
            return f"{_say(one['rank'], a, label)} {roots}{_at(b)}"
    raise AssertionError("two call lists with different signatures must differ somewhere")


def check_messages(graph: Graph) -> None:
    """Every channel between two positions of a group carries as many receives as sends, of equal sizes."""
    ops = graph.ops.filter(pl.col("kind").is_in(POINT_TO_POINT))
    if ops.is_empty():
        return
    port = ["class", "slot", "kind", "peer", "shift"]
    sizes = graph.groups.with_columns(pl.len().over("group").cast(pl.Int32).alias("size"))
    seats = sizes.join(graph.ranks.select("rank", "class"), on="rank")
    widths = seats.group_by("class", "slot").agg(pl.col("size").max())
    ops = (
        ops.join(widths, on=["class", "slot"], maintain_order="left")
        .with_columns(pl.col("shift") % pl.col("size"))
        .drop("size")
    )
    calls = _number_calls(ops, port)
    signs = calls.group_by(port).agg(
        (pl.col("bytes").hash(seed=1) * (pl.col("call") + 1).hash(seed=2)).sum().alias("sign"), pl.len()
    )
    ends = signs.join(seats, on=["class", "slot"])
    other = pl.coalesce("peer", (pl.col("position") + pl.col("shift")) % pl.col("size"))
    sends = pl.col("kind") == "send"
    ends = ends.with_columns(
        pl.when(sends).then("position").otherwise(other).alias("source"),
        pl.when(sends).then(other).otherwise("position").alias("target"),
    )
    key = ["group", "source", "target"]
    sent, received = ends.filter(sends), ends.filter(~sends)
    both = sent.join(received, on=key, how="full", suffix="_recv", coalesce=True)
    differs = pl.col("sign").ne_missing(pl.col("sign_recv")) | pl.col("len").ne_missing(pl.col("len_recv"))
    bad = both.filter(differs).sort(key)
    if bad.height:
        raise GraphError(_compare_messages(graph, calls, bad.row(0, named=True)))


def _compare_messages(graph: Graph, calls: pl.DataFrame, row: dict[str, Any]) -> str:
    label = label_groups(graph).filter(pl.col("group") == row["group"])["label"][0]
    seat = dict(graph.groups.filter(pl.col("group") == row["group"]).select("position", "rank").iter_rows())
    source, target = seat.get(row["source"]), seat.get(row["target"])
    sent = _list_port(calls, row, "send", "") if row["len"] is not None else []
    received = _list_port(calls, row, "recv", "_recv") if row["len_recv"] is not None else []
    for index in range(max(len(sent), len(received))):
        if index >= len(received):
            return f"{_say(source, sent[index], label)} to rank {target}, which makes only {index} receives from it"
        if index >= len(sent):
            return f"{_say(target, received[index], label)} from rank {source}, which makes only {index} sends to it"
        if sent[index]["bytes"] != received[index]["bytes"]:
            a, b = sent[index], received[index]
            return f"{_say(source, a, label)} with {a['bytes']} bytes; rank {target} expects {b['bytes']} bytes{_at(b)}"
    raise AssertionError("two channels with different signatures must differ somewhere")


def _list_port(calls: pl.DataFrame, row: dict[str, Any], kind: str, suffix: str) -> list[dict[str, Any]]:
    same = pl.col("kind") == kind
    for column in ("class", "slot", "peer", "shift"):
        same &= pl.col(column).eq_missing(pl.lit(row[f"{column}{suffix}"]))
    return calls.filter(same).to_dicts()


def _number_calls(ops: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Each op with its number among the calls that share its key, in program order."""
    return ops.with_columns(pl.int_range(pl.len()).over(key).alias("call"), pl.col("kind").cast(pl.String))


def _say(rank: int | None, call: dict[str, Any], label: str) -> str:
    return f"rank {rank} waits in {call['kind']} #{call['call']} of group {label}{_at(call)}"


def _at(call: dict[str, Any]) -> str:
    return f" ({call['source']})" if call["source"] else ""
