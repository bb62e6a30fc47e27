"""Jobs: which endpoints train together, told apart from storage and from other tenants on the same hosts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.rhythm import Times, agree_on_period, find_beat, mark_steps
from prism.observe.traffic import Traffic

_LOPSIDED = 0.5  # share of a host's bytes that go one way only
_STREAMS_PER_CLUSTER = 120  # streams that are listened to; more add nothing but time
_IN_STEP = 0.25  # relative difference of step lengths below which two clusters keep step
_WANDER = 0.4  # share of a period over which the distance of two clusters' marks may spread
_AT_ONCE = 0.005  # of a step
_SAME_MOMENT_NS = 20_000
_BESIDE = 0.05  # of the usual gap between messages: closer ones happen together
_APART = 0.15  # share of a period by which replicas of one job may be out of step
_RIGID = 0.005  # share below which it does not wander at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The rhythm of a cluster: its period, a mark per step, and its pulse: the message size it sends most often."""

    period_ns: float | None = None
    marks: Times = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    mark_bytes: float = 0.0
    pulse_bytes: float = 0.0
    pulse_per_step: int = 0
    pulse_marks: Times = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    pulses: Times = field(default_factory=lambda: np.empty(0, np.int64), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Endpoints that reach each other over the network, and the rhythm of what they exchange."""

    endpoints: NDArray[np.int64]
    pairs: NDArray[np.int64]
    hosts: frozenset[int]
    heard: Heard
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """One job: its clusters together, with the pairs that only touch storage kept apart."""

    id: str
    endpoints: NDArray[np.int64]
    pairs: NDArray[np.int64]
    storage_pairs: NDArray[np.int64]
    period_ns: float | None
    marks: Times = field(repr=False)
    first_ns: int
    last_ns: int


def recognise_jobs(traffic: Traffic) -> list[ObservedJob]:
    """Cut the traffic into jobs, the largest first."""
    hubs = find_hubs(traffic)
    src, dst = traffic.pairs["src"].to_numpy(), traffic.pairs["dst"].to_numpy()
    inner = ~(np.isin(src, hubs) | np.isin(dst, hubs))
    steady = inner & _is_steady(traffic.pairs)
    labels = _components(traffic.endpoints.height, src[steady], dst[steady])
    clusters = _make_clusters(traffic, labels, steady)
    families = _join_clusters(clusters, traffic)
    jobs = [_make_job(traffic, [clusters[i] for i in family], inner) for family in families]
    jobs.sort(key=lambda j: (-len(j.endpoints), j.first_ns, int(j.endpoints[0])))
    return [replace(job, id=f"job-{i + 1}") for i, job in enumerate(jobs)]


def find_hubs(traffic: Traffic) -> NDArray[np.int64]:
    """Endpoints that serve others rather than train with them: storage."""
    return np.union1d(_one_sided_hosts(traffic), _stars(traffic))


def _one_sided_hosts(traffic: Traffic) -> NDArray[np.int64]:
    """Endpoints of hosts that mostly give or mostly take; what a training host receives it also sends.

    A ring enters a host by one NIC and leaves by another, so a host is weighed as a whole.
    """
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    src, dst = traffic.pairs["src"].to_numpy(), traffic.pairs["dst"].to_numpy()
    load = traffic.pairs["bytes"].to_numpy().astype(np.float64)
    num = int(host.max(initial=-1)) + 1
    out = np.bincount(host[src], load, minlength=num)
    into = np.bincount(host[dst], load, minlength=num)
    lopsided = np.abs(out - into) > _LOPSIDED * (out + into)
    peers = np.unique(
        np.stack([np.concatenate([host[src], host[dst]]), np.concatenate([host[dst], host[src]])]), axis=1
    )
    # Two hosts that only know each other may be a small job, whatever it does.
    serves = np.bincount(peers[0], minlength=num) >= 2
    return np.nonzero((lopsided & serves)[host])[0]


def _stars(traffic: Traffic) -> NDArray[np.int64]:
    """Endpoints that many others talk to and whose peers do not talk to each other."""
    pairs = traffic.pairs.select("src", "dst")
    both = pl.concat([pairs, pairs.select(src="dst", dst="src")]).unique()
    degree = both.group_by("src").len().rename({"src": "e", "len": "degree"})
    typical = float(degree["degree"].median() or 0)  # type: ignore[arg-type]
    suspects = degree.filter(pl.col("degree") >= max(4.0, 2 * typical + 1))
    if suspects.is_empty():
        return np.empty(0, np.int64)
    spokes = both.filter(pl.col("src").is_in(suspects["e"].implode()))
    # In an all-to-all group the peers all know each other; the clients of a store do not.
    return _closeness(spokes, both).filter(pl.col("closeness") < 0.15)["src"].to_numpy().astype(np.int64)


def _closeness(spokes: pl.DataFrame, both: pl.DataFrame) -> pl.DataFrame:
    """How many of an endpoint's peers know each other, from a sample of them."""
    known = set(both.iter_rows())
    rng = np.random.default_rng(0)
    rows = []
    for (hub,), part in spokes.group_by("src"):
        peers = part["dst"].to_numpy()
        a, b = rng.choice(peers, 200), rng.choice(peers, 200)
        rows.append((hub, float(np.mean([(int(x), int(y)) in known for x, y in zip(a, b, strict=True) if x != y]))))
    return pl.DataFrame(rows, schema={"src": spokes.schema["src"], "closeness": pl.Float64}, orient="row")


def _is_steady(pairs: pl.DataFrame) -> NDArray[np.bool_]:
    """Pairs that exchange more than now and then: a checkpoint every hour does not tie two clusters together."""
    num = pairs["num"].to_numpy()
    if not len(num):
        return np.empty(0, np.bool_)
    return num >= max(3.0, 0.02 * float(np.median(num)))


def _components(num: int, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
    parent = list(range(num))

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    for a, b in zip(src.tolist(), dst.tolist(), strict=True):
        ra, rb = root(a), root(b)
        if ra != rb:
            parent[max(ra, rb)] = min(ra, rb)
    return np.array([root(x) for x in range(num)])


def _make_clusters(traffic: Traffic, labels: NDArray[np.int64], steady: NDArray[np.bool_]) -> list[Cluster]:
    src = traffic.pairs["src"].to_numpy()
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    pair_label = labels[src]
    clusters = []
    streams = _streams(traffic)
    for label in np.unique(pair_label[steady]):
        pairs = np.nonzero(steady & (pair_label == label))[0]
        endpoints = np.nonzero(labels == label)[0]
        own = traffic.pairs[pairs]
        clusters.append(
            Cluster(
                endpoints=endpoints,
                pairs=pairs,
                hosts=frozenset(host[endpoints].tolist()),
                heard=_listen(pairs, streams, _goes_both_ways(traffic, pairs)),
                first_ns=int(own["first_ns"].min()),  # type: ignore[arg-type]
                last_ns=int(own["last_ns"].max()),  # type: ignore[arg-type]
            )
        )
    return clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Start times of like messages (one pair, one size class), all streams end to end."""

    starts: Times
    begin: NDArray[np.int64]  # stream i is starts[begin[i]:begin[i + 1]]
    bytes: NDArray[np.float64]
    by_pair: dict[int, NDArray[np.int64]]


def _streams(traffic: Traffic) -> Streams:
    ordered = traffic.messages.sort("pair", "size_class", "start_ns")
    lengths = ordered.group_by("pair", "size_class", maintain_order=True).agg(pl.len(), pl.col("bytes").median())
    begin = np.concatenate([[0], np.cumsum(lengths["len"].to_numpy().astype(np.int64))])
    pair = lengths["pair"].to_numpy().astype(np.int64)
    edges = np.concatenate([[0], np.nonzero(np.diff(pair))[0] + 1, [len(pair)]])
    by_pair = {int(pair[a]): np.arange(a, b) for a, b in pairwise(edges) if b > a}
    return Streams(
        starts=ordered["start_ns"].to_numpy(), begin=begin, bytes=lengths["bytes"].to_numpy(), by_pair=by_pair
    )


def _listen(pairs: NDArray[np.int64], streams: Streams, two_way: bool) -> Heard:
    """The period of a cluster and one mark per step, from a sample of its streams."""
    chosen = [s for p in pairs.tolist() for s in streams.by_pair[p].tolist()]
    if len(chosen) > _STREAMS_PER_CLUSTER:
        step = len(chosen) / _STREAMS_PER_CLUSTER
        chosen = [chosen[int(i * step)] for i in range(_STREAMS_PER_CLUSTER)]
    voices = [(streams.starts[streams.begin[s] : streams.begin[s + 1]], float(streams.bytes[s])) for s in chosen]
    heard = [(b, t, z) for t, z in voices if (b := find_beat(t, patient=True)) is not None]
    agreed = agree_on_period([b for b, _, _ in heard], [1.0] * len(heard))
    if agreed is None:
        return Heard()
    if all(abs(b.period_ns / agreed[0] - 1) < 0.05 and b.per_step == 1 for b, _, _ in heard) and two_way:
        # Nothing but a pipeline is heard: what looks like a step may be a micro-batch, and only the pauses can tell.
        strict = [(b, t, z) for t, z in voices if (b := find_beat(t, patient=False)) is not None]
        longer = agree_on_period([b for b, _, _ in strict], [1.0] * len(strict))
        if longer is not None and longer[1] > 0.5 and longer[0] > 1.5 * agreed[0]:
            heard, agreed = strict, longer
    period, _ = agreed
    # The stream with fewest messages per step, then the steadiest, is the clearest to mark steps by.
    fitting = [h for h in heard if abs(h[0].period_ns / period - 1) < 0.05] or heard
    clear, starts, mark_size = min(fitting, key=lambda h: (h[0].per_step, h[0].spread))
    quick, pulses, size = max(fitting, key=lambda h: (h[0].per_step, -h[0].spread))
    return Heard(
        period_ns=period,
        marks=mark_steps(starts, clear, period),
        mark_bytes=mark_size,
        pulse_bytes=size,
        pulse_per_step=quick.per_step,
        pulse_marks=mark_steps(pulses, quick, period),
        pulses=pulses,
    )


def _goes_both_ways(traffic: Traffic, pairs: NDArray[np.int64]) -> bool:
    """Whether most pairs answer, and not at the same moment: a pipeline does, a collective does not."""
    own = traffic.pairs[pairs].select("src", "dst", "first_ns")
    back = own.rename({"src": "dst", "dst": "src", "first_ns": "back_ns"})
    answered = own.join(back, on=["src", "dst"])
    return answered.height > 0.5 * own.height and bool((answered["first_ns"] != answered["back_ns"]).mean() > 0.5)  # type: ignore[operator]


def _join_clusters(clusters: list[Cluster], traffic: Traffic) -> list[list[int]]:
    """Clusters of one job: they share a host (traffic inside a host is invisible) and keep step with each other."""
    parent = list(range(len(clusters)))

    def root(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    on_host: dict[int, list[int]] = {}
    for i, cluster in enumerate(clusters):
        for host in cluster.hosts:
            on_host.setdefault(host, []).append(i)
    compared: set[tuple[int, int]] = set()
    for members in on_host.values():
        for k, a in enumerate(members):
            for b in members[k + 1 :]:
                ra, rb = root(a), root(b)
                if ra == rb or (a, b) in compared:
                    continue
                compared.add((a, b))
                if keep_step(clusters[a].heard, clusters[b].heard) or share_collectives(
                    traffic, clusters[a], clusters[b]
                ):
                    parent[max(ra, rb)] = min(ra, rb)
    families: dict[int, list[int]] = {}
    for i in range(len(clusters)):
        families.setdefault(root(i), []).append(i)
    return list(families.values())


def keep_step(a: Heard, b: Heard) -> bool:
    """Whether two clusters belong to one job: equal periods, the same pulse, at a distance that does not wander."""
    if a.period_ns is None or b.period_ns is None or len(a.marks) < 3 or len(b.marks) < 3:
        return False
    if abs(a.period_ns / b.period_ns - 1) > _IN_STEP:
        return False
    period = min(a.period_ns, b.period_ns)
    if abs(a.mark_bytes / b.mark_bytes - 1) < 0.05 and _coincide(a.marks, b.marks, _AT_ONCE):
        return True  # Channels of one collective pass over several rails at once.
    alike = abs(a.pulse_bytes / b.pulse_bytes - 1) < 0.05
    if min(a.pulse_per_step, b.pulse_per_step) > 1 and not alike:
        return False  # Replicas of one model send activations of one size.
    if alike and _coincide(a.pulses, b.pulses, _BESIDE):
        return True
    pair = (a.pulse_marks, b.pulse_marks) if alike and a.pulse_per_step == b.pulse_per_step else (a.marks, b.marks)
    few, many = pair if len(pair[0]) <= len(pair[1]) else pair[::-1]
    nearest = _nearest(many, few)
    distance = (few - many[nearest]).astype(np.float64)
    if alike and abs(float(np.median(distance))) > _APART * period:
        return False  # Replicas do the same thing at the same time.
    if np.quantile(distance, 0.9) - np.quantile(distance, 0.1) > _WANDER * period:
        return False
    if distance.std() <= _RIGID * period:
        return True
    # Two clocks of one job differ by noise that is new in every step; two jobs drift apart like a random walk.
    steps = np.diff(distance)
    apart = steps.var()
    alone = np.diff(few).astype(np.float64).var() + np.diff(many[nearest]).astype(np.float64).var()
    return bool(apart < 0.5 * alone or distance.std() < steps.std())


def share_collectives(traffic: Traffic, a: Cluster, b: Cluster) -> bool:
    """Whether the large messages of two clusters leave their common hosts at the very same moments.

    The channels of one collective pass over several rails at once, even where ranks are otherwise out of step.
    """
    if a.heard.period_ns is None or b.heard.period_ns is None:
        return False
    if abs(a.heard.period_ns / b.heard.period_ns - 1) > _IN_STEP:
        return False
    common = a.hosts & b.hosts
    first, second = (_departures(traffic, c, common) for c in (a, b))
    if min(len(first), len(second)) < 3:
        return False
    few, many = (first, second) if len(first) <= len(second) else (second, first)
    return bool(np.mean(np.abs(few - many[_nearest(many, few)]) <= _SAME_MOMENT_NS) > 0.5)


def _departures(traffic: Traffic, cluster: Cluster, hosts: frozenset[int]) -> Times:
    """When messages larger than the pulse leave the given hosts; each host on a time line of its own."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    src = traffic.pairs["src"].to_numpy()[cluster.pairs]
    pairs = cluster.pairs[np.isin(host[src], list(hosts))][:64]
    large = traffic.messages.filter(pl.col("pair").is_in(pairs) & (pl.col("bytes") > 1.1 * cluster.heard.pulse_bytes))
    sender = host[traffic.pairs["src"].to_numpy()[large["pair"].to_numpy()]]
    start = large["start_ns"].to_numpy()
    if not len(start):
        return start
    begin = int(traffic.pairs["first_ns"].to_numpy().min())
    far = 4 * (int(traffic.pairs["last_ns"].to_numpy().max()) - begin + 1)
    return np.sort(start - begin + sender * far)


def _coincide(a: Times, b: Times, share: float) -> bool:
    """Whether nearly every message of one has one of the other beside it: tensor-parallel ranks act as one."""
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    close = share * float(np.median(np.diff(many)[np.diff(many) > 0])) if len(many) > 3 else 0.0
    return bool(np.mean(np.abs(few - many[_nearest(many, few)]) <= close) > 0.8)


def _nearest(sorted_times: Times, wanted: Times) -> NDArray[np.int64]:
    right = np.clip(np.searchsorted(sorted_times, wanted), 0, len(sorted_times) - 1)
    left = np.maximum(right - 1, 0)
    closer = np.abs(wanted - sorted_times[left]) <= np.abs(sorted_times[right] - wanted)
    return np.where(closer, left, right)


def _make_job(traffic: Traffic, clusters: list[Cluster], inner: NDArray[np.bool_]) -> ObservedJob:
    endpoints = np.unique(np.concatenate([c.endpoints for c in clusters]))
    src, dst = traffic.pairs["src"].to_numpy(), traffic.pairs["dst"].to_numpy()
    touches = np.isin(src, endpoints) | np.isin(dst, endpoints)
    within = np.isin(src, endpoints) & np.isin(dst, endpoints) & inner
    clearest = min(clusters, key=lambda c: (c.heard.period_ns is None, -len(c.pairs))).heard
    return ObservedJob(
        id="",
        endpoints=endpoints,
        pairs=np.nonzero(within)[0],
        storage_pairs=np.nonzero(touches & ~within)[0],
        period_ns=clearest.period_ns,
        marks=clearest.marks,
        first_ns=min(c.first_ns for c in clusters),
        last_ns=max(c.last_ns for c in clusters),
    )
