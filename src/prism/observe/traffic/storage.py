"""Storage: endpoints that serve others instead of training with them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.traffic.table import Traffic

_LOPSIDED = levels.SHARE_LARGE  # share of a host's bytes that go one way only
_PURE = levels.SHARE_NEARLY_ALL
_EVEN = levels.SHARE_LARGE  # of what goes one way between two hosts that comes back in messages of one size
_SOME_PART = levels.ONE_PERCENT  # of a host's bytes: less is even by chance
_GOOD_PART = levels.SHARE_NEGLIGIBLE  # of a host's bytes
_PASSED_ON = (
    levels.SIZE_DIFFERENCE
)  # of what a host takes that it may give more or less: weights that are sent at the start
_LISTED = levels.SHARE_HALF  # share of the endpoints that a topology of the training hosts has
_SELDOM = levels.SHARE_SMALL  # of the messages of the busiest pair of any of its peers
_UNRELATED = levels.SHARE_SMALL  # share of an endpoint's peers that know each other, below which it is their server


def find_hubs(traffic: Traffic) -> NDArray[np.int64]:
    """Endpoints that serve others rather than train with them: storage, management, inference front ends."""
    # Checkpoints make training hosts give more than they take, so what only gives or only takes is set apart first:
    # those that get nothing back from anyone, then those that do without these, however much was saved.
    servers = _one_sided_hosts(traffic, _PURE, np.empty(0, np.int64), part=0.0)
    pure = np.union1d(servers, np.union1d(_one_sided_hosts(traffic, _PURE, servers), _list_outsiders(traffic)))
    clear = np.union1d(pure, _stars(traffic, pure))
    return np.union1d(clear, _one_sided_hosts(traffic, _LOPSIDED, clear))


def _list_outsiders(traffic: Traffic) -> NDArray[np.int64]:
    """Endpoints that the topology leaves out though it has most, and that send seldom: ranks send in every step."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    listed = np.isin(host, list(traffic.nics_of_host))
    src, dst, num = (traffic.pairs[c].to_numpy().astype(np.int64) for c in ("src", "dst", "num"))
    if listed.all() or listed.mean() < _LISTED:
        return np.empty(0, np.int64)
    busiest, of_peers = np.zeros(len(host)), np.zeros(len(host))
    for end in (src, dst):
        np.maximum.at(busiest, end, num)
    for end, peer in ((src, dst), (dst, src)):
        np.maximum.at(of_peers, end, busiest[peer])
    return np.flatnonzero(~listed & (busiest < _SELDOM * of_peers))


def _one_sided_hosts(
    traffic: Traffic, share: float, without: NDArray[np.int64], part: float = _SOME_PART
) -> NDArray[np.int64]:
    """Endpoints of hosts that mostly give or mostly take; what a training host receives it also sends, size by size.

    A ring enters a host by one NIC and leaves by another, so a host is weighed as a whole. Traffic with endpoints of
    `without` does not count, nor do hosts that exchange `part` of their bytes evenly with another one.
    """
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    num = int(host.max(initial=-1)) + 1
    giver, taker, load, classes = _list_gifts(traffic, without)
    uneven = [_imbalance(giver, taker, klass, load, num) for klass in classes]
    even = [_exchange_evenly(giver, taker, klass, load, num, part) for klass in classes]
    # Two hosts that only know each other may be a small job, whatever it does.
    peers = _count_peers(giver, taker, num)
    friends = np.zeros(num, np.int64)
    np.maximum.at(friends, giver, peers[taker])
    np.maximum.at(friends, taker, peers[giver])
    # Whoever passes on all that it takes serves nobody, also where records are cut at any size.
    given, taken = (np.bincount(end, load, minlength=num) for end in (giver, taker))
    passes_on = np.abs(given - taken) <= _PASSED_ON * taken
    trains = even[0] | even[1] | passes_on | _are_ends_of_rings(giver, taker, load, num)
    known = (np.maximum(peers, friends) >= 2) & ~trains
    return np.nonzero(((np.minimum(*uneven) > share) & known)[host])[0]


def _are_ends_of_rings(
    giver: NDArray[np.int64], taker: NDArray[np.int64], load: NDArray[np.float64], num: int
) -> NDArray[np.bool_]:
    """Hosts that only give to one host what it gives to another, or take from one what it takes: the next hop of a ring
    is not in the records.
    """
    links = pl.DataFrame({"a": giver, "b": taker, "load": load}).group_by("a", "b").agg(pl.col("load").sum())
    total = np.bincount(giver, load, minlength=num) + np.bincount(taker, load, minlength=num)
    ends = np.zeros(num, np.bool_)
    for end, middle in (("a", "b"), ("b", "a")):
        main = links.filter(pl.col("load") > _PURE * pl.Series(total)[links[end]])
        onward = links.rename({end: middle, middle: "beyond", "load": "passed"})
        passed = main.join(onward, on=middle).filter(pl.col("beyond") != pl.col(end))
        alike = (pl.col("passed") - pl.col("load")).abs() <= _PASSED_ON * pl.col("load")
        ends[passed.filter(alike)[end].to_numpy()] = True
    return ends


def _list_gifts(
    traffic: Traffic, without: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], list[NDArray[np.float64]]]:
    """Giver, taker and bytes of every stream, and its class of size in two ways: what lies on an edge of one does not
    on one of the other. Traffic with endpoints of `without` is left out.
    """
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    pair = traffic.streams["pair"].to_numpy()
    src, dst = (traffic.pairs[c].to_numpy().astype(np.int64)[pair] for c in ("src", "dst"))
    kept = ~(np.isin(src, without) | np.isin(dst, without))
    load = traffic.stream_load[kept]
    size = np.log2(np.maximum(load / np.maximum(traffic.stream_num[kept], 1), 1.0))
    return host[src[kept]], host[dst[kept]], load, [np.floor(size + shift) for shift in (0.0, 0.5)]


def _exchange_evenly(
    giver: NDArray[np.int64], taker: NDArray[np.int64], klass: NDArray[np.float64], load: NDArray[np.float64], num: int,
    part: float,
) -> NDArray[np.bool_]:  # fmt: skip
    """Hosts that give to some other host what they take from it, as stages of a pipeline do whatever they save.

    `part` is how much of all that a host gives and takes this must be.
    """
    low, high = np.minimum(giver, taker), np.maximum(giver, taker)
    table = pl.DataFrame({"low": low, "high": high, "klass": klass, "onward": np.where(giver == low, load, 0.0)})
    table = table.with_columns(pl.Series("back", np.where(giver == low, 0.0, load)))
    sums = table.group_by("low", "high", "klass").agg(pl.col("onward", "back").sum())
    even = pl.min_horizontal("onward", "back") > _EVEN * pl.max_horizontal("onward", "back")
    sums = sums.filter(even)
    ends, both = sums.select("low", "high").to_numpy(), (sums["onward"] + sums["back"]).to_numpy()
    total = np.bincount(giver, load, minlength=num) + np.bincount(taker, load, minlength=num)
    enough = both[:, None] >= part * total[ends]
    found: NDArray[np.bool_] = np.isin(np.arange(num), ends[enough])
    return found


def _imbalance(
    giver: NDArray[np.int64], taker: NDArray[np.int64], klass: NDArray[np.float64], load: NDArray[np.float64], num: int
) -> NDArray[np.float64]:
    """For each host, the share of its bytes not both received and sent in messages of about one size."""
    classes = klass.astype(np.int64)
    most = int(classes.max(initial=0)) + 1
    out = np.bincount(giver * most + classes, load, minlength=num * most).reshape(num, most)
    into = np.bincount(taker * most + classes, load, minlength=num * most).reshape(num, most)
    uneven: NDArray[np.float64] = np.abs(out - into).sum(axis=1) / np.maximum((out + into).sum(axis=1), 1.0)
    return uneven


def _count_peers(a: NDArray[np.int64], b: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    both = np.unique(np.concatenate([a * num + b, b * num + a])) if len(a) else np.zeros(0, np.int64)
    return np.bincount(both // max(num, 1), minlength=num)


def _stars(traffic: Traffic, without: NDArray[np.int64]) -> NDArray[np.int64]:
    """Endpoints that many others, but for those of `without`, talk to and whose peers do not talk to each other."""
    src, dst = (traffic.pairs[c].to_numpy() for c in ("src", "dst"))
    pairs = traffic.pairs.select("src", "dst").filter(pl.Series(~(np.isin(src, without) | np.isin(dst, without))))
    both = pl.concat([pairs, pairs.select(src="dst", dst="src")]).unique()
    degree = both.group_by("src").len().rename({"src": "e", "len": "degree"})
    typical = float(degree["degree"].median() or 0)  # type: ignore[arg-type]
    suspects = degree.filter(pl.col("degree") >= max(4.0, 2 * typical + 1))
    if suspects.is_empty():
        return np.empty(0, np.int64)
    spokes = both.filter(pl.col("src").is_in(suspects["e"].implode())).sort("src", "dst")
    # In an all-to-all group the peers all know each other; the clients of a store do not.
    unrelated = _closeness(spokes, both).filter(pl.col("closeness") < _UNRELATED)["src"].to_numpy().astype(np.int64)
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    served: NDArray[np.int64] = unrelated[~_train_together(traffic, without, int(host.max()) + 1)[host[unrelated]]]
    return served


def _train_together(traffic: Traffic, without: NDArray[np.int64], num: int) -> NDArray[np.bool_]:
    """Hosts that exchange a good part of all they send and receive evenly with another one: no store does."""
    giver, taker, load, classes = _list_gifts(traffic, without)
    even = [_exchange_evenly(giver, taker, klass, load, num, _GOOD_PART) for klass in classes]
    found: NDArray[np.bool_] = even[0] | even[1]
    return found


def _closeness(spokes: pl.DataFrame, both: pl.DataFrame) -> pl.DataFrame:
    """How many of an endpoint's peers know each other, from a sample of them."""
    rng = np.random.default_rng(0)
    drawn = [
        pl.DataFrame({"hub": np.full(200, hub), "src": rng.choice(peers, 200), "dst": rng.choice(peers, 200)})
        for (hub,), part in spokes.group_by("src", maintain_order=True)
        for peers in [part["dst"].to_numpy()]
    ]
    sample = pl.concat(drawn).filter(pl.col("src") != pl.col("dst"))
    known = sample.join(both.with_columns(known=pl.lit(1.0)), on=["src", "dst"], how="left", maintain_order="left")
    return known.group_by(pl.col("hub").alias("src"), maintain_order=True).agg(
        pl.col("known").fill_null(0.0).mean().alias("closeness")
    )
