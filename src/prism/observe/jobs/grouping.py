"""Jobs: which endpoints train together, separated from storage and from other tenants on the same hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.jobs.same_job import are_same_job
from prism.observe.jobs.small_messages import time_small_messages
from prism.observe.jobs.step_counts import StreamStarts, choose_period, time_rests_of
from prism.observe.traffic.medians import take_median
from prism.observe.traffic.period import Times, pack_starts
from prism.observe.traffic.storage import find_hubs
from prism.observe.traffic.table import Traffic
from prism.observe.traffic.threads import do_each
from prism.records.scheduled import ScheduledJob

Ints = NDArray[np.int64]

PeriodEstimator = Callable[[Traffic, Ints, Times], float | None]
"""Tells the period of what some pairs send, given when they wrote to storage; `measure_period` is one."""

_CLASSES = levels.SAMPLED_GROUPS  # message sizes that are examined
_STREAMS_PER_CLASS = levels.MIN_SAMPLES
_SAME_SIZE = levels.SIZE_DIFFERENCE  # of the logarithm of bytes
CLOCK_ERROR_NS = levels.CLOCK_TOLERANCE_NS  # between messages of one exporter
SKEW_NS = 2_000_000  # between exporters that are synchronized by NTP
_LISTENED_PAIRS = levels.SAMPLED_SIZES
_HEAVY = levels.ONE_PERCENT  # of the bytes of the heaviest stream
_REMNANT = levels.SHARE_NEGLIGIBLE  # of the bytes of the heaviest stream of a pair
_MOST_HEAVY = levels.SAMPLED_STREAMS
NUMBERS_BYTES = levels.SMALL_MESSAGE_BYTES  # smaller messages carry a few numbers, or nothing
_LEAST_TICKS = levels.SAMPLED_STREAMS  # of a clock in a step
_MUCH = levels.THREE_PER_MILLE  # of the bytes of the heaviest pair of either end
_MOST_VOTES = levels.MIN_EVENTS  # of clusters, on whether two families belong to one job
_OFTEN = levels.SHARE_SMALL  # of the messages of the busiest stream of a pair
_STRAY = 1e-5  # share of the messages times share of the bytes, of the busiest and heaviest pair of either end


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """One job: all its clusters, with the pairs that only touch storage kept separately."""

    id: str
    endpoints: NDArray[np.int64]
    pairs: NDArray[np.int64]
    storage_pairs: NDArray[np.int64]
    period_ns: float | None
    first_ns: int
    last_ns: int
    nodes: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)  # its endpoints in its time
    given: ScheduledJob | None = None  # what the operator says of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Endpoints that reach each other over the network."""

    endpoints: Ints
    pairs: Ints
    hosts: Ints


def recognise_jobs(
    traffic: Traffic, estimate_period: PeriodEstimator | None = None, given: Sequence[ScheduledJob] = ()
) -> list[ObservedJob]:
    """Cut the traffic into jobs, the largest first; `estimate_period` may know the period of some pairs already.

    `given` jobs have the pairs that `traffic.given` says.
    """
    hubs = find_hubs(traffic)
    src, dst = (traffic.pairs[c].to_numpy().astype(np.int64) for c in ("src", "dst"))
    inner = ~(np.isin(src, hubs) | np.isin(dst, hubs))
    steady = inner & _is_steady(traffic, src, dst, inner)
    own = [_list_given(traffic, src, dst, number, job) for number, job in enumerate(given)]
    for pairs in own:
        inner = inner | pairs
    free = steady if traffic.given is None else steady & (traffic.given < 0)
    clusters = _make_clusters(traffic, src, dst, free)
    found: list[tuple[list[Cluster], ScheduledJob | None]] = [
        ([clusters[i] for i in family], None) for family in _join_clusters(clusters, traffic)
    ]
    found += [
        (_make_clusters(traffic, src, dst, pairs), job) for pairs, job in zip(own, given, strict=True) if pairs.any()
    ]
    jobs = do_each(lambda one: _make_job(traffic, *one, inner, estimate_period or measure_period), found)
    jobs.sort(key=lambda j: (-len(j.endpoints), j.first_ns, int(j.endpoints[0])))
    return [replace(job, id=f"job-{i + 1}") for i, job in enumerate(jobs)]


def _list_given(traffic: Traffic, src: Ints, dst: Ints, number: int, job: ScheduledJob) -> NDArray[np.bool_]:
    """The pairs between the hosts of a given job, in its time."""
    named = {name for host in job.hosts for name in (host, host.split(".")[0])}
    member = np.array([h in named or h.split(".")[0] in named for h in traffic.endpoints["host"].to_list()], np.bool_)
    return np.asarray((traffic.given == number) & member[src] & member[dst], np.bool_)


def _is_steady(traffic: Traffic, src: Ints, dst: Ints, inner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pairs that communicate more than occasionally: a checkpoint every hour does not join two clusters.

    Shells, monitors and copies of files touch a training endpoint a few times with few bytes; a gradient sum comes once
    in a step too, but with many bytes. What goes to storage makes no other pair light: only `inner` pairs are compared.
    """
    num = traffic.pairs["num"].to_numpy().astype(np.float64)
    load = _sum_regular(traffic)
    busiest, heaviest = (np.zeros(traffic.endpoints.height) for _ in range(2))
    for end in (src, dst):
        np.maximum.at(busiest, end[inner], num[inner])
        np.maximum.at(heaviest, end[inner], load[inner])
    frequent = num >= levels.MIN_SAMPLES
    often = num / np.maximum(np.maximum(busiest[src], busiest[dst]), 1.0)
    share = often * load / np.maximum(np.maximum(heaviest[src], heaviest[dst]), 1.0)
    steady: NDArray[np.bool_] = frequent & (share >= _STRAY)
    if traffic.active_ns:
        # One record may cover a minute, so only bytes show what matters to an endpoint.
        steady = np.asarray(load >= _MUCH * np.maximum(heaviest[src], heaviest[dst]), np.bool_)
    return steady | (frequent & _is_handed_back(src, dst, num, load))


def _is_handed_back(src: Ints, dst: Ints, num: NDArray[np.float64], load: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Pairs with equal return traffic in count and volume, as between pipeline stages; file copies go one way."""
    most = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    order = np.argsort(src * most + dst)
    there, back = (src * most + dst)[order], dst * most + src
    other = order[np.minimum(np.searchsorted(there, back), len(order) - 1)] if len(order) else order
    alike = [np.minimum(x, x[other]) > levels.SHARE_LARGE * np.maximum(x, x[other]) for x in (num, load)]
    handed: NDArray[np.bool_] = (src[other] == dst) & (dst[other] == src) & alike[0] & alike[1]
    return handed & (load >= NUMBERS_BYTES * num)


def _sum_regular(traffic: Traffic) -> NDArray[np.float64]:
    """Bytes of each pair without its rare streams: a record with an absurd size makes no other pair light."""
    pair, num = traffic.streams["pair"].to_numpy().astype(np.int64), traffic.stream_num
    most = np.zeros(traffic.pairs.height)
    np.maximum.at(most, pair, num)
    load = np.where(num >= _OFTEN * most[pair], traffic.stream_load, 0.0)
    return np.asarray(np.bincount(pair, np.maximum(load, 0.0), minlength=traffic.pairs.height), np.float64)


@kernel
def connect(num: int, src: Ints, dst: Ints) -> Ints:
    """For each of `num` nodes the smallest node that links lead to."""
    parent = np.arange(num)
    for i in range(len(src)):
        a, b = src[i], dst[i]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a != b:
            parent[max(a, b)] = min(a, b)
    for x in range(num):
        root = x
        while parent[root] != root:
            root = parent[root]
        parent[x] = root
    return parent


def list_parts(src: Ints, dst: Ints) -> list[Ints]:
    """The nodes of each part of a graph, in order of the smallest one; links join `src` and `dst`."""
    nodes, ends = np.unique(np.concatenate([src, dst]), return_inverse=True)
    if not len(nodes):
        return []
    labels = connect(len(nodes), *np.split(ends.astype(np.int64), 2))
    order = np.argsort(labels, kind="stable")
    return np.split(nodes[order], np.flatnonzero(np.diff(labels[order])) + 1)


def _make_clusters(traffic: Traffic, src: Ints, dst: Ints, steady: NDArray[np.bool_]) -> list[Cluster]:
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    sender, receiver = traffic.ends
    labels = connect(int(max(sender.max(initial=0), receiver.max(initial=0))) + 1, sender[steady], receiver[steady])
    pairs = np.flatnonzero(steady)
    pairs = pairs[np.argsort(labels[sender[pairs]], kind="stable")]
    cut = np.flatnonzero(np.diff(labels[sender[pairs]])) + 1
    clusters = []
    for own in np.split(pairs, cut) if len(pairs) else []:
        endpoints = np.unique(np.concatenate([src[own], dst[own]]))
        clusters.append(Cluster(endpoints=endpoints, pairs=own, hosts=np.unique(host[endpoints])))
    return clusters


def _join_clusters(clusters: list[Cluster], traffic: Traffic) -> list[list[int]]:
    """Clusters of one job: they share a host (traffic inside a host is invisible) and are synchronized in time."""
    on_host: dict[int, list[int]] = {}
    for i, cluster in enumerate(clusters):
        for host in cluster.hosts.tolist():
            on_host.setdefault(host, []).append(i)
    family = list(range(len(clusters)))

    def root(x: int) -> int:
        while family[x] != x:
            family[x] = family[family[x]]
            x = family[x]
        return x

    votes: dict[tuple[int, int], list[bool]] = {}
    for members in on_host.values():
        for k, a in enumerate(members):
            for b in members[k + 1 :]:
                ra, rb = sorted((root(a), root(b)))
                asked = votes.setdefault((ra, rb), [])
                if ra == rb or len(asked) >= _MOST_VOTES:
                    continue
                asked.append(are_same_job(traffic, clusters[a].pairs, clusters[b].pairs))
                # Two clusters are different jobs if every estimate says so. A missing link is weaker evidence than a
                # present one, because short captures miss rare messages.
                if asked[0] or sum(asked) > 1:
                    family[rb] = ra
    families: dict[int, list[int]] = {}
    for i in range(len(clusters)):
        families.setdefault(root(i), []).append(i)
    return list(families.values())


def _make_job(
    traffic: Traffic,
    clusters: list[Cluster],
    given: ScheduledJob | None,
    inner: NDArray[np.bool_],
    estimate_period: PeriodEstimator,
) -> ObservedJob:
    endpoints = np.unique(np.concatenate([c.endpoints for c in clusters]))
    own = np.concatenate([c.pairs for c in clusters])
    nodes = np.unique(np.concatenate([side[own] for side in traffic.ends]))
    sent, received = (np.isin(side, nodes) for side in traffic.ends)
    touches, within = sent | received, sent & received & inner
    pairs, stored = np.flatnonzero(within), np.flatnonzero(touches & ~within)
    return ObservedJob(
        id="",
        given=given,
        endpoints=endpoints,
        nodes=nodes,
        pairs=pairs,
        storage_pairs=stored,
        period_ns=estimate_period(traffic, own, _find_pauses(traffic, ~inner, endpoints)),
        first_ns=int(traffic.pairs["first_ns"].to_numpy()[pairs].min()),
        last_ns=int(traffic.pairs["last_ns"].to_numpy()[pairs].max()),
    )


def _find_pauses(traffic: Traffic, served: NDArray[np.bool_], endpoints: Ints) -> Times:
    """When the NIC of the job's hosts that writes most often to storage did so; it need not be one that trains."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    own = np.isin(host, host[endpoints])
    writes = np.flatnonzero(served & own[traffic.pairs["src"].to_numpy()])
    if not len(writes):
        return np.zeros(0, np.int64)
    busiest = writes[np.argmax(traffic.pairs["num"].to_numpy()[writes])]
    times: Times = traffic.messages["start_ns"].to_numpy()[traffic.begin[busiest] : traffic.begin[busiest + 1]]
    return times


def measure_period(traffic: Traffic, pairs: Ints, pauses: Times) -> float | None:
    """The period of what some pairs send, from a few streams of every size; `pauses` are when it wrote to storage."""
    pairs = np.sort(pairs)
    chosen = choose_some(pairs, _LISTENED_PAIRS)
    stream = _keep_whole(traffic, traffic.streams_of(chosen), pairs)
    load, num = traffic.stream_load[stream], traffic.stream_num[stream]
    candidates = pl.DataFrame(
        {"stream": stream, "pair": traffic.streams["pair"].gather(stream), "bytes": load / num, "num": num}
    ).filter(pl.col("num") >= 3)
    candidates = leave_seen_by_chance(candidates, traffic.sample_bytes)
    if candidates.is_empty():
        return None
    large, small = (
        candidates.filter(pl.col("bytes") >= NUMBERS_BYTES),
        candidates.filter(pl.col("bytes") < NUMBERS_BYTES),
    )
    candidates = large.filter(~find_remnants(traffic, large)) if large.height else candidates
    candidates = candidates.with_columns(
        (pl.col("bytes").clip(1).log() / _SAME_SIZE).round().cast(pl.Int64).alias("klass")
    )
    common = candidates.group_by("klass").len().sort("len", "klass", descending=[True, False]).head(_CLASSES)
    parts: list[Times] = []
    classes: list[int] = []
    stream, own_class = candidates["stream"].to_numpy(), candidates["klass"].to_numpy()
    for klass in common["klass"].to_list():
        for one in choose_some(stream[own_class == klass], _STREAMS_PER_CLASS).tolist():
            parts.append(_starts_of(traffic, one))
            classes.append(klass)
    slack = max(CLOCK_ERROR_NS, traffic.resolution_ns)
    single = [StreamStarts(times=times, klass=klass) for times, klass in zip(parts, classes, strict=True)]
    heavy = _heavy_streams(traffic, candidates)
    marked = time_small_messages(_small_streams(traffic, small), heavy) if large.height else None
    period = marked or choose_period(pack_starts(parts, classes, slack), single, heavy, pauses, slack)
    # If times are rounded to a large part of a step, any length seems to repeat.
    return period if period is None or period >= _LEAST_TICKS * traffic.resolution_ns else None


def leave_seen_by_chance(streams: pl.DataFrame, sample_bytes: float) -> pl.DataFrame:
    """The streams except those whose messages have few sampled packets: their times say nothing about steps."""
    often = streams.filter(pl.col("bytes") >= levels.RATIO_FAR * sample_bytes)
    return often if often.height else streams


def find_remnants(traffic: Traffic, streams: pl.DataFrame) -> pl.Series:
    """Which streams carry very little of their pair's bytes at irregular times: remnants of torn transfers, or files.

    Their rate says nothing about steps. If a step has many micro-batches, its gradients and parameters carry little as
    well, but pause alike in every step. Messages of a few numbers, such as norms, are not remnants.
    """
    klass = (pl.col("bytes").clip(1).log() / _SAME_SIZE).round().cast(pl.Int64)
    load = pl.col("bytes") * pl.col("num")
    little = (pl.col("bytes") >= NUMBERS_BYTES) & (load < _REMNANT * load.max().over("pair"))
    found = streams.select("stream", little.alias("remnant"), klass.alias("klass"))
    steady = [one for (one,), own in found.filter("remnant").group_by("klass") if _rest_alike(traffic, own["stream"])]
    return found.select(pl.col("remnant") & ~pl.col("klass").is_in(steady)).to_series()


def _rest_alike(traffic: Traffic, streams: pl.Series) -> bool:
    """Whether a few of the streams all pause at regular times, or after equally many messages."""
    some = choose_some(streams.to_numpy(), _STREAMS_PER_CLASS).tolist()
    return all(time_rests_of(_starts_of(traffic, stream)) > 0 for stream in some)


def _keep_whole(traffic: Traffic, streams: Ints, pairs: Ints) -> Ints:
    """The streams whose records no active timeout cut: where cut ones begin says nothing about steps."""
    if not traffic.active_ns:
        return streams
    cut = traffic.streams["cut"].to_numpy()
    whole: Ints = streams[~cut[streams]]
    if not len(whole):
        every = traffic.streams_of(pairs)
        whole = every[~cut[every]][:_LISTENED_PAIRS]
    return whole


def choose_some(values: Ints, most: int) -> Ints:
    """At most so many of the values, evenly spread."""
    return values[np.unique(np.linspace(0, len(values) - 1, min(len(values), most)).astype(np.int64))]


def _starts_of(traffic: Traffic, stream: int) -> Times:
    """When the messages of a stream begin; for those delayed by a new wait, when they would have begun without it.

    A rank that becomes slow delays the first calls of all others; a wait in every step is part of the step, and
    if most messages take longer, a link is slow.
    """
    own = traffic.rows_of_stream(stream)
    start, end = (traffic.columns[c][own] for c in ("start_ns", "end_ns"))
    took, quarter = end - start, (start[-1] - start[0]) // 4
    first, last = start <= start[0] + quarter, start >= start[-1] - quarter
    waits = took > levels.RATIO_FAR * min(took[first].max(), took[last].max())
    if waits.sum() < levels.MIN_SAMPLES or waits[first].mean() + waits[last].mean() > levels.SHARE_HALF:
        return start
    return np.sort(np.where(waits, end - int(take_median(took)), start))


def _small_streams(traffic: Traffic, small: pl.DataFrame) -> list[StreamStarts]:
    """One of the streams of small messages for each number of messages, the rarest first."""
    chosen = small.sort("num", "stream").unique("num", keep="first", maintain_order=True).head(_CLASSES)
    return [StreamStarts(times=_starts_of(traffic, stream), klass=0) for stream in chosen["stream"]]


def _heavy_streams(traffic: Traffic, candidates: pl.DataFrame) -> list[StreamStarts]:
    """A few of the streams that carry most: remnants of torn transfers say nothing about steps."""
    load = pl.col("bytes") * pl.col("num")
    heavy = candidates.filter(load >= _HEAVY * load.max()).sort("klass", "stream")
    chosen = heavy[choose_some(np.arange(heavy.height), _MOST_HEAVY)].select("stream", "klass").iter_rows()
    return [StreamStarts(times=_starts_of(traffic, stream), klass=klass) for stream, klass in chosen]
