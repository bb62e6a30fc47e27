"""Tenants: jobs that use the same hosts at the same time, told apart by connections that keep time of their own.

A process accepts all connections of a group at one port, so that connections which share a port belong to one job. The
groups of one job have ports of their own, but wait for each other: whenever a step of one ends, another is at the same
place of its own step. Jobs that do not wait for each other are anywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import connect
from prism.observe.traffic.bursts import agree, find_marks, list_chains
from prism.observe.traffic.records import EXACT_SIZE
from prism.observe.traffic.table import Traffic, split_pairs

Ints = NDArray[np.int64]

_HEAVY = levels.ONE_PERCENT  # of the bytes of the heaviest connection: lighter ones need not send in every step
_MOST = levels.SAMPLED_MESSAGES  # connections of hosts that communicate; more are not examined
_STEPS = levels.MIN_STATISTICS  # that both groups must show
_IN_PHASE = levels.SHARE_MAJORITY  # length of the mean of unit vectors that turn once in a step
_PARTS = (1, 2, 3)  # of a step, at which the steps of another group may end


def part_simultaneous_jobs(traffic: Traffic) -> Traffic:
    """The traffic with a pair for each job that uses it at the same time; unchanged where none is seen to."""
    if "dst_port" not in traffic.streams.columns or traffic.sample_bytes:
        return traffic
    links = _list_links(traffic)
    if traffic.given is not None:
        links = links.filter(pl.Series(traffic.given)[links["pair"]] < 0)
        if links.is_empty():
            return traffic
    heavy = links.filter(pl.col("bytes") >= _HEAVY * pl.col("bytes").max().over("hosts"))
    both = pl.col("connection").n_unique().over("link") > 1  # TCP, of which both directions are seen
    shared = heavy.filter(pl.col("link").is_in(links.filter(both)["link"].implode()))
    examined = shared.filter(pl.col("star").n_unique().over("ends") > 1)["hosts"].unique()
    label, mixed = np.zeros(int(links["connection"].max()) + 1, np.int64), [traffic.mixed]  # type: ignore[arg-type]
    for (hosts,), own in heavy.filter(pl.col("hosts").is_in(examined.implode())).group_by("hosts", maintain_order=True):
        groups, clear = _group_stars(traffic, own) if own.height <= _MOST else ([], True)
        for number, stars in enumerate(groups):
            label[links.filter(pl.col("star").is_in(stars), hosts=hosts)["connection"].to_numpy()] = number
        if not clear:
            mixed += [np.unique(own["ends"].to_numpy() // traffic.endpoints.height)]
    traffic = replace(traffic, mixed=np.concatenate(mixed)) if len(mixed) > 1 else traffic
    if not label.any():
        return traffic
    by_stream = label[traffic.connection_of]
    parted = split_pairs(traffic, by_stream[traffic.messages["stream"].to_numpy()])
    tenants = np.zeros(parted.pairs.height, np.int64)
    tenants[parted.streams["pair"].to_numpy()] = label[parted.connection_of // (int(label.max()) + 1)]
    src, dst = parted.ends
    width = int(max(src.max(), dst.max())) + 1
    return replace(parted, nodes=(src + width * tenants, dst + width * tenants), tenants=tenants)


def list_ports(traffic: Traffic, endpoints: Ints, pairs: Ints) -> tuple[str, ...]:
    """Ports of the connections of a job at its first endpoint, in order; they are the same for as long as it runs.

    They tell a job from others on the same hosts. None where records do not have them.
    """
    if "dst_port" not in traffic.streams.columns or not len(endpoints):
        return ()
    of_pair = traffic.pairs[pairs].select("pair", "src", "dst")
    own = traffic.streams.lazy().join(of_pair.lazy(), on="pair")
    ports = [
        own.filter(pl.col(end) == endpoints[0]).select(pl.col(f"{end}_port").alias("port")) for end in ("src", "dst")
    ]
    found = pl.concat(ports).collect()["port"].drop_nulls().unique().sort()
    return tuple(map(str, found.to_list()))


def answers_on_one_connection(traffic: Traffic, pairs: Ints) -> bool:
    """Whether both directions between some endpoints use the same ports, as over TCP."""
    if "dst_port" not in traffic.streams.columns:
        return False
    of_pair = traffic.pairs[pairs].lazy().select("pair", "src", "dst")
    own = traffic.streams.lazy().join(of_pair, on="pair").select("src", "src_port", "dst", "dst_port").drop_nulls()
    back = own.rename({"src": "dst", "src_port": "dst_port", "dst": "src", "dst_port": "src_port"})
    return own.join(back, on=own.collect_schema().names(), how="semi").head(1).collect().height > 0


def share_hosts(traffic: Traffic, endpoints: Ints) -> bool:
    """Whether several jobs use some of these endpoints at the same time."""
    if traffic.tenants is None:
        return False
    ends = traffic.pairs.filter(pl.Series(traffic.tenants > 0)).select("src", "dst")
    return bool(np.isin(endpoints, ends.to_numpy()).any())


def _list_links(traffic: Traffic) -> pl.DataFrame:
    """Connections: connection pair bytes, link (both directions), star (those that share a port), hosts that they join.

    `ends` are the two endpoints.
    """
    src, dst = (traffic.pairs[c].to_numpy().astype(np.int64) for c in ("src", "dst"))
    times = traffic.messages.group_by("stream").agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max())
    streams = traffic.streams.with_columns(pl.Series("bytes", traffic.stream_load)).join(times, on="stream")
    links = streams.group_by("connection", maintain_order=True).agg(
        pl.col("pair", "src_port", "dst_port").first(),
        pl.col("bytes").sum(),
        pl.col("first_ns").min(),
        pl.col("last_ns").max(),
    )
    src, dst = src[links["pair"].to_numpy()], dst[links["pair"].to_numpy()]
    ports = np.unique(
        np.stack([src << 16 | links["src_port"].to_numpy(), dst << 16 | links["dst_port"].to_numpy()]),
        return_inverse=True,
    )[1].reshape(2, -1)
    return links.with_columns(
        link=pl.Series(ports.min(axis=0) * (int(ports.max()) + 1) + ports.max(axis=0)),
        star=pl.Series(connect(int(ports.max()) + 1, *ports)[ports[0]]),
        hosts=pl.Series(connect(int(max(src.max(), dst.max())) + 1, src, dst)[src]),
        ends=pl.Series(np.minimum(src, dst) * traffic.endpoints.height + np.maximum(src, dst)),
    )


def _group_stars(traffic: Traffic, heavy: pl.DataFrame) -> tuple[list[list[int]], bool]:
    """Stars of each job, the heaviest first, by the heavy connections of some hosts; and whether all could be compared.

    All hops of a collective send as much, so stars whose connections do are one group.
    """
    number = pl.Series("connection", traffic.connection_of)[traffic.messages["stream"]]
    messages = traffic.messages.with_columns(number, kind=pl.lit("dp")).filter(
        pl.col("connection").is_in(heavy["connection"].implode())
    )
    heavy = heavy.sort("bytes", descending=True).with_columns(
        amount=(-pl.col("bytes").diff().fill_null(0) > EXACT_SIZE * pl.col("bytes")).cum_sum()
    )
    star, amount = heavy["star"].to_numpy(), heavy["amount"].to_numpy()
    root = connect(int(star.max() + amount.max()) + 2, star, star.max() + 1 + amount)
    groups = heavy.with_columns(group=pl.Series(root[star])).partition_by("group", maintain_order=True)
    chains = {c: list_chains(own) for (c,), own in messages.group_by("connection")}
    marks = [find_marks([c for c in agree([chains[c] for c in own["connection"]]) if c is not None]) for own in groups]
    told = {(a, b): _are_independent(marks[a], marks[b]) for b in range(len(groups)) for a in range(b)}

    def join(answers: tuple[bool | None, ...]) -> Ints:
        links = [pair for pair, apart in told.items() if apart in answers]
        return connect(len(groups), *np.array(links, np.int64).reshape(-1, 2).T)

    sure, root = join((False,)), join((False, None))
    unknown = [(a, b) for (a, b), apart in told.items() if apart is None and sure[a] != sure[b]]
    met = [groups[a].join(groups[b], on="ends", suffix="_other") for a, b in unknown]
    overlap = pl.min_horizontal("last_ns", "last_ns_other") > pl.max_horizontal("first_ns", "first_ns_other")
    beside = any(both.select(overlap.any()).item() for both in met)
    jobs = [np.concatenate([groups[i]["star"].to_numpy() for i in np.flatnonzero(root == r)]) for r in np.unique(root)]
    return [np.unique(stars).tolist() for stars in jobs], not beside


def _are_independent(a: Ints, b: Ints) -> bool | None:
    """Whether the steps of two groups end anywhere in those of the other; None where they show too few."""
    lengths = []
    for own, other in ((a, b), (b, a)):
        inside = own[(own >= other[0]) & (own <= other[-1])] if len(other) else own[:0]
        if len(inside) < _STEPS:
            return None
        phase = np.interp(inside, other, np.arange(len(other)))
        lengths += [abs(np.exp(2j * np.pi * parts * phase).mean()) for parts in _PARTS]
    return bool(max(lengths) < _IN_PHASE)
