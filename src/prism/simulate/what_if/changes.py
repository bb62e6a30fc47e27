"""Change one thing about a graph or its run, and solve it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from prism.errors import BadConfigError
from prism.records.ops import COLLECTIVES, GROUPS, POINT_TO_POINT, RANKS
from prism.simulate.cluster import Cluster
from prism.simulate.cluster_file import load_cluster
from prism.simulate.graph import Graph
from prism.simulate.plans.model import PEAK_FLOPS
from prism.simulate.solving.slowdowns import Slowdown
from prism.simulate.solving.solver import BandwidthChange, SolveConfig
from prism.simulate.what_if.background import LinkLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A graph and how to solve it: what the edits below take and return."""

    graph: Graph
    config: SolveConfig
    background: tuple[LinkLoad, ...] = ()  # other jobs' traffic on the links
    cluster: Cluster | None = None  # where it runs, if not where it was asked about
    gpu: str = ""  # the kind of GPU that compute was timed on; empty where it is not known


def load_links(plan: Plan, loads: Iterable[LinkLoad]) -> Plan:
    """Other jobs' traffic on links; adds to what is there."""
    return replace(plan, background=(*plan.background, *loads))


def slow_down(plan: Plan, slowdowns: list[Slowdown]) -> Plan:
    """Other speeds of ranks, groups or hosts' networks."""
    return replace(plan, config=replace(plan.config, slowdowns=(*plan.config.slowdowns, *slowdowns)))


def change_bandwidth(plan: Plan, word: str, factor: float) -> Plan:
    """Transfers of an op kind, a slot or a kind of group as if their links were `factor` times as wide."""
    if not (np.isfinite(factor) and factor > 0):
        raise BadConfigError(f"bandwidth factor is {factor}, expected a number above 0")
    change = BandwidthChange(word=word, factor=factor)
    return replace(plan, config=replace(plan.config, bandwidth=(*plan.config.bandwidth, change)))


def make_ideal(plan: Plan, word: str) -> Plan:
    """Ops of this kind or name at the median duration of all ops with their name; measured transfers too."""
    counts = plan.graph.ranks.group_by("class").len("ranks")
    chosen = (pl.col("kind") == word) | (pl.col("name") == word)
    timed = plan.graph.ops.filter(chosen & pl.col("duration_ns").is_not_null())
    if timed.is_empty():
        raise BadConfigError(f"no op called '{word}' has a duration; nothing to make ideal")
    weighed = timed.join(counts, on="class").sort("name", "duration_ns")
    middle = pl.col("ranks").cum_sum() >= pl.col("ranks").sum() / 2
    median = weighed.group_by("name").agg(pl.col("duration_ns").filter(middle).first().alias("ideal"))
    ops = plan.graph.ops.join(median, on="name", how="left", maintain_order="left")
    ideal = pl.when(chosen & pl.col("duration_ns").is_not_null()).then("ideal").otherwise("duration_ns")
    return replace(plan, graph=replace(plan.graph, ops=ops.with_columns(ideal.alias("duration_ns")).drop("ideal")))


def move_to(plan: Plan, name: str) -> Plan:
    """The same job on another cluster, a preset or a file; compute as it is, so a GPU of its own is another change."""
    cluster = load_cluster(name)
    return replace(plan, cluster=cluster)


def change_gpu(plan: Plan, name: str) -> Plan:
    """Compute as much shorter as the data sheets' BF16 peaks differ: a bound, for large matrix products."""
    for gpu in (plan.gpu, name):
        if gpu not in PEAK_FLOPS:
            shown = f"the GPU '{gpu}' is not known" if gpu else "it was timed on a GPU that --cluster has to name"
            raise BadConfigError(f"what-if 'gpu {name}': {shown}; known are {', '.join(PEAK_FLOPS)}")
    factor = PEAK_FLOPS[plan.gpu] / PEAK_FLOPS[name]
    longer = (pl.col("duration_ns") * factor).round().cast(pl.Int64)
    ops = plan.graph.ops.with_columns(
        pl.when(pl.col("kind") == "compute").then(longer).otherwise("duration_ns").alias("duration_ns")
    )
    return replace(plan, graph=replace(plan.graph, ops=ops), gpu=name)


def drop_overlap(plan: Plan) -> Plan:
    """Everything of a rank on one stream, in program order; an order that only streams made possible is a hang."""
    ops = plan.graph.ops.filter(~pl.col("kind").is_in(["record", "wait"])).with_columns(
        pl.lit(0, pl.Int32).alias("stream")
    )
    return replace(plan, graph=replace(plan.graph, ops=ops))


def place_ranks(plan: Plan, order: str, gpus_per_host: int) -> Plan:
    """Place ranks on hosts again: `packed` fills host after host, `strided` gives each host one rank in turn."""
    size = plan.graph.num_ranks
    if gpus_per_host < 1:
        raise BadConfigError(f"{gpus_per_host} GPUs per host cannot hold a rank; give 1 or more")
    hosts = -(-size // gpus_per_host)
    rank = np.arange(size)
    host, local = (rank // gpus_per_host, rank % gpus_per_host) if order == "packed" else (rank % hosts, rank // hosts)
    ranks = plan.graph.ranks.with_columns(pl.Series("host", host, pl.Int32), pl.Series("local", local, pl.Int32))
    return replace(plan, graph=replace(plan.graph, ranks=ranks))


def swap_ranks(plan: Plan, one: int, two: int) -> Plan:
    """Two ranks change their places on the cluster."""
    for rank in (one, two):
        if not 0 <= rank < plan.graph.num_ranks:
            raise BadConfigError(f"no rank {rank} to swap; the ranks are 0 to {plan.graph.num_ranks - 1}")
    order = np.arange(plan.graph.num_ranks)
    order[[one, two]] = two, one
    seats = plan.graph.ranks.select("host", "local")[order]
    return replace(plan, graph=replace(plan.graph, ranks=plan.graph.ranks.with_columns(seats["host"], seats["local"])))


def change_degree(plan: Plan, slot: str, degree: int) -> Plan:
    """More or fewer replicas along `slot`: replica i runs what replica i modulo the old degree ran.

    Programs stay as they are, so the work per rank does too; new replicas are packed onto hosts behind the old ones.
    Groups that span all replicas, such as the whole world, span all of the new ones.
    """
    graph = plan.graph
    seats = graph.groups.filter(pl.col("slot") == slot)
    sizes = seats.group_by("group").len()["len"].unique()
    if len(sizes) != 1 or seats["rank"].n_unique() != graph.num_ranks:
        raise BadConfigError(f"slot '{slot}' does not split all ranks into equal groups; its degree cannot change")
    if degree < 1:
        raise BadConfigError(f"degree of '{slot}' is {degree}, expected 1 or more")
    replica = seats.sort("rank")["position"].to_numpy()
    others = graph.groups.filter(pl.col("slot") != slot).with_columns(
        pl.Series("replica", replica)[graph.groups.filter(pl.col("slot") != slot)["rank"]]
    )
    old = int(sizes[0])
    size = graph.num_ranks // old
    place = np.empty(graph.num_ranks, np.int64)  # number of a rank inside its replica
    for i in range(old):
        place[replica == i] = np.arange(size)
    _check_spanning(graph, others.with_columns(pl.Series("place", place)[others["rank"]]), slot, old)
    rank_at = np.empty((old, size), np.int64)
    rank_at[replica, place] = np.arange(graph.num_ranks)
    return replace(plan, graph=_replicate(graph, slot, rank_at, replica, place, degree))


def _check_spanning(graph: Graph, others: pl.DataFrame, slot: str, old: int) -> None:
    """Groups that span replicas must hold the same places of all of them, and carry no messages, which name ranks."""
    spans = others.group_by("group").agg(
        pl.col("replica").n_unique().alias("replicas"), pl.col("place").n_unique().alias("places"), pl.len(),
        pl.col("slot").first(),
    ).filter(pl.col("replicas") > 1)  # fmt: skip
    torn = spans.filter((pl.col("replicas") != old) | (pl.col("replicas") * pl.col("places") != pl.col("len")))
    if torn.height:
        raise BadConfigError(
            f"groups of slot '{torn['slot'][0]}' span some replicas of '{slot}', not all; its degree cannot change"
        )
    sends = graph.ops.filter(
        pl.col("kind").is_in(POINT_TO_POINT) & pl.col("slot").is_in(spans["slot"].unique().to_list())
    )
    if sends.height:
        raise BadConfigError(
            f"messages of slot '{sends['slot'][0]}' name ranks across replicas of '{slot}'; its degree cannot change"
        )


def _replicate(
    graph: Graph, slot: str, rank_at: np.ndarray, replica: np.ndarray, place: np.ndarray, degree: int
) -> Graph:
    old, size = rank_at.shape
    kept = min(old, degree)
    copies = [np.arange(degree)[np.arange(degree) % old == i] for i in range(old)]
    number = np.arange(degree * size).reshape(degree, size)  # new rank of (replica, place)
    source = rank_at[np.arange(degree) % old].ravel()
    hosts, locals_ = graph.ranks["host"].to_numpy()[source].copy(), graph.ranks["local"].to_numpy()[source].copy()
    per_host = int(graph.ranks["local"].max() or 0) + 1  # type: ignore[arg-type]
    fresh = np.arange((degree - kept) * size)
    first = int(hosts[: kept * size].max()) + 1
    hosts[kept * size :], locals_[kept * size :] = first + fresh // per_host, fresh % per_host
    ranks = RANKS.conform(
        pl.DataFrame(
            {"rank": number.ravel(), "class": graph.ranks["class"].to_numpy()[source], "host": hosts, "local": locals_}
        ),
        graph.name,
    )
    frames, next_group = [], 0
    for _, rows in graph.groups.group_by("group", maintain_order=True):
        members = rows["rank"].to_numpy()
        slots, kinds = rows["slot"].to_list(), rows["kind"].to_list()
        if slots[0] == slot:
            tables = [number[:, place[members[0]]]]
            slots, kinds = [slots[0]] * degree, [kinds[0]] * degree
        elif len(np.unique(replica[members])) > 1:
            tables = [np.sort(number[:, np.unique(place[members])].ravel())]
            slots, kinds = [slots[0]] * len(tables[0]), [kinds[0]] * len(tables[0])
        else:
            tables = [number[copy, place[members]] for copy in copies[replica[members[0]]]]
        for table in tables:
            frames.append({"group": [next_group] * len(table), "slot": slots, "kind": kinds,
                           "rank": table.tolist(), "position": list(range(len(table)))})  # fmt: skip
            next_group += 1
    columns = {c: [v for f in frames for v in f[c]] for c in GROUPS.required}
    return replace(graph, ranks=ranks, groups=GROUPS.conform(pl.DataFrame(columns, schema=GROUPS.required), graph.name))


def known_words(graph: Graph) -> tuple[str, ...]:
    """What `bandwidth` applies to: op kinds that communicate, slots, and kinds of groups."""
    kinds = graph.ops.filter(pl.col("kind").is_in([*COLLECTIVES, *POINT_TO_POINT]))["kind"].cast(pl.String)
    return tuple(
        dict.fromkeys([*kinds.unique(), *graph.groups["slot"].unique(), *graph.groups["kind"].cast(pl.String).unique()])
    )
