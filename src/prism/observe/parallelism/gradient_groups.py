"""Gradient groups: connections that act together because they carry one collective, or one micro-batch of a replica."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.jobs.grouping import SKEW_NS, choose_some, list_parts
from prism.observe.parallelism.connections import (
    BOUND_SCATTER,
    Connection,
    Floats,
    Ints,
    ends_as_one,
    measure_bond,
    part_ends,
    read_connection,
)
from prism.observe.parallelism.shared_sequences import Groups, count_in_step
from prism.observe.traffic.numbering import nearest
from prism.observe.traffic.table import Traffic

_OTHER_SIZE = levels.SHARE_SMALL  # of the logarithm of bytes
_PLACES = levels.SAMPLED_GROUPS  # hosts that are examined
_MAIN = levels.SHARE_MINOR  # of a connection's main messages: those sent once a step show little
_UNEVEN = levels.MIN_EVENTS  # times more connections to one host than to another
_OTHER_LOAD = levels.SHARE_NEGLIGIBLE  # of the logarithm of what a group sends in all
_OTHER_STAGE = (
    levels.ONE_PERCENT
)  # of a step: stages send their gradients further apart, at least a micro-batch's backward pass
_FEW_HOSTS = levels.MIN_EVENTS  # of a group; among many, one that is seen is always close behind the last
_LONGEST_WAIT = levels.RATIO_FAR  # times the shortest length that counts: a hang would outweigh all else
_WAITS = levels.SHARE_SMALL  # of the shortest length: mean wait of connections that is needed for an estimate
_VISIBLE_LAST = levels.SHARE_QUICK  # of the steps: in so many a visible rank is the last one
_STEADY = levels.SHARE_NEGLIGIBLE  # of the shortest length by which sampling may move an end


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGroups:
    """Counts from the gradients that leave a host; 0 where there are none.

    `dense` and `expert` count the groups of one stage that sum them, those of experts where they are others; `stages`
    counts the stages of a host, by when they send; `connections` those of one group and host, `in_step` how many
        begin together, as ranks do that share a sequence.
    """

    dense: int
    expert: int
    stages: int
    connections: int
    in_step: int


NO_GRADIENT_GROUPS = GradientGroups(dense=0, expert=0, stages=1, connections=0, in_step=1)


def count_gradient_groups(
    traffic: Traffic, streams: pl.DataFrame, period_ns: float, *, shared: bool = True
) -> GradientGroups:
    """How many different groups send gradients from a host, and how these and their connections keep time.

    Connections between two NICs are those of several ranks where NICs are `shared`, else channels of one collective.
    """
    rings = streams.filter(pl.col("kind") == "dp")
    if rings.is_empty():
        return NO_GRADIENT_GROUPS
    one = "unit" if traffic.connected else "connection"
    sent = pl.col("bytes") * pl.col("num")
    rings = rings.with_columns(sent.sum().over(one).alias("load")).filter(sent >= _MAIN * sent.max().over(one))
    rings = rings.sort("bytes", "stream", descending=[True, False])
    largest = _without_mixed(rings.group_by(one, maintain_order=True).first())
    if not shared:
        largest = largest.unique(["src", "dst", "bytes"], keep="first", maintain_order=True)
    largest = largest.select("src", "dst", "src_host", "dst_host", "stream", "bytes", "load")
    largest = largest.sort("bytes", maintain_order=True)
    found: list[GradientGroups] = []
    places: list[Groups] = []
    sharp_ns = _measure_sharpness(traffic, largest)
    hosts = largest.sort("src_host", maintain_order=True).partition_by("src_host", maintain_order=True)
    for place in choose_some(np.arange(len(hosts)), _PLACES).tolist():
        sized = _join_parts(_by_size(hosts[place]))
        parts = [_group_connections(_read_connections(traffic, part), sharp_ns) for part in sized]
        # A message that directly follows others does not show when its rank arrived.
        silent = [(len(groups), -groups[0][0].usual_silence) for groups in parts]
        least = silent.index(min(silent))
        places.append(parts[least])
        counted = [_count_groups(groups, period_ns) for groups in parts]
        found.append(replace(counted[least], expert=max(count.dense for count in counted)))
    usual = replace(Counter(found).most_common(1)[0][0], in_step=count_in_step(places, period_ns, sharp_ns))
    # Shards of a copy span fewer hosts than the job; dense gradients are summed over all of them.
    whole = _span(largest)
    partial = any(_span(part) < whole for part in _by_size(largest) if part.height >= 0.1 * largest.height)
    return replace(usual, expert=usual.dense) if partial else usual


def _without_mixed(units: pl.DataFrame) -> pl.DataFrame:
    """Sampling lets sizes that differ by little run together; units where it did not are enough, where most are."""
    pure = units.filter(pl.col("role") != "routed")
    return pure if 2 * pure.height > units.height else units


def find_independent_ranks(traffic: Traffic, streams: pl.DataFrame, most: int) -> set[int]:
    """How many ranks of a host, of `most` behind one connection, may arrive independently; empty where nothing shows.

    A transfer begins when its sender arrives and ends when all have arrived, so that of the last one is as short as a
    transfer can be. If ranks arrive independently, the last of all arrives later after the last visible one the
    more there are: by the difference of the largest of so many draws of a normal distribution.
    """
    arrivals = _read_arrivals(traffic, streams)
    if arrivals is None or arrivals.num_hosts > _FEW_HOSTS:
        return set()
    group, host = arrivals.group, arrivals.host
    beside = [(a, b) for i, a in enumerate(group) for k, b in enumerate(group[:i]) if host[i] == host[k]]
    if not all(_are_bound(a, b) for a, b in beside):
        return set()
    return fit_independent_ranks(arrivals.waits, arrivals.num_hosts, most)


def shows_all_ranks(traffic: Traffic, streams: pl.DataFrame, most: int) -> bool:
    """Whether only the visible ranks arrive independently, though each NIC may have `most`.

    Ranks that exchange tokens or blocks of a sequence wait for each other before they sum gradients.
    """
    if streams["kind"].is_in(["pp", "cp", "ep", "tp"]).any():
        return False
    arrivals = _read_arrivals(traffic, streams)
    return arrivals is not None and arrivals.are_of_all_ranks(most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Connections of one collective, their hosts, and how long each waited in every step, in shortest lengths."""

    group: list[Connection]
    host: list[int]
    waits: Floats
    shortest: float  # ns

    @property
    def num_hosts(self) -> int:
        """Hosts that send."""
        return len(set(self.host))

    def are_of_all_ranks(self, most: int) -> bool:
        """Whether the last of them hardly waits; one that is always last does not show whether others are late."""
        last = np.array(self.host)[np.nanargmin(self.waits, axis=0)]
        if np.unique(last, return_counts=True)[1].max() >= levels.SHARE_LARGE * len(last):
            return False
        clocks = levels.CLOCK_TOLERANCE_NS / self.shortest
        return fit_independent_ranks(self.waits, self.num_hosts, most, clocks) == {1}


def _read_arrivals(traffic: Traffic, streams: pl.DataFrame) -> Arrivals | None:
    """How long the connections of a collective wait for those that arrive last; None if these are not visible."""
    rings = streams.filter(pl.col("kind") == "dp").sort("bytes", "stream", descending=[True, False])
    largest = rings.group_by("unit", maintain_order=True).first()
    if largest.is_empty():
        return None
    connections = [read_connection(traffic, int(v)) for v in largest["stream"].to_list()]
    hosts = largest["src_host"].to_list()
    of_one = [(c, int(h)) for c, h in zip(connections, hosts, strict=True) if ends_as_one(connections[0], c)]
    group, host = [c for c, _ in of_one], [h for _, h in of_one]
    if len(set(host)) < levels.MIN_TWO:
        return None
    shortest = min(connection.shortest for connection in group)
    first = max(group, key=lambda connection: len(connection.fresh))
    if not len(first.fresh) or not max(connection.noise for connection in group) <= _STEADY * shortest > 0:
        return None
    ends = first.end[np.searchsorted(first.start, first.fresh)]
    waits = np.array([_wait(connection, ends, shortest) for connection in group])
    waits = waits[:, ~np.isnan(waits).all(axis=0)]
    return Arrivals(group=group, host=host, waits=waits, shortest=shortest) if waits.size else None


def fit_independent_ranks(waits: Floats, num_hosts: int, most: int, shortest: float = _WAITS) -> set[int]:
    """How many ranks of a host may arrive independently, given what each visible connection waits in each step.

    Mean waits below the `shortest` show nothing.
    """
    least = np.nanmin(waits, axis=0)
    undelayed = float(np.quantile(least, _VISIBLE_LAST))
    each = float(np.nanmean(waits)) - undelayed
    if each < shortest:
        return set()
    left = (float(np.mean(least)) - undelayed) / each
    unsure = float(np.std(least)) / each / math.sqrt(len(least))
    off = {n: abs(left - _share_of_wait(num_hosts, n)) for n in range(1, most + 1) if most % n == 0}
    fits = [n for n, away in off.items() if away <= min(off.values()) + unsure]
    # With more ranks a visible one is seldom last, and seemingly undelayed ones have waited: more look like fewer.
    return set(fits) | {n for n in off if n > fits[0] > 1}


def _share_of_wait(visible: int, each: int) -> float:
    """How much later the last of all ranks arrives than the last visible one, of the mean wait; `each` share one."""
    last = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in (visible, visible * each)]  # Blom, 1958
    return 1 - last[0] / last[1]


def _are_bound(a: Connection, b: Connection) -> bool:
    """Whether two connections begin closer to each other than independent ranks would."""
    bond = measure_bond(a, b)
    return bond is not None and bond.scatter_ns < BOUND_SCATTER * bond.silence_ns


def _wait(connection: Connection, ends: Ints, shortest: float) -> Floats:
    """How long a connection's message waited that ended at each of some moments, in units of the shortest length.

    nan where none did: its record is lost.
    """
    order = np.argsort(connection.end, kind="stable")
    at = order[nearest(connection.end[order], ends)]
    length = (connection.end - connection.start)[at] / shortest
    together = np.abs(connection.end[at] - ends) < min(SKEW_NS, 0.4 * shortest)
    waited: Floats = np.where(together, np.clip(length - 1.0, 0.0, _LONGEST_WAIT), np.nan)
    return waited


def _join_parts(parts: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Units of other sizes that leave by other NICs are stages of one model; experts share NICs with the rest."""
    joined: list[pl.DataFrame] = []
    for part in parts:
        nics = set(part["src"].to_list())
        at = next((i for i, other in enumerate(joined) if not nics & set(other["src"].to_list())), None)
        if at is None:
            joined.append(part)
        else:
            joined[at] = pl.concat([joined[at], part])
    return joined


def _read_connections(traffic: Traffic, own: pl.DataFrame) -> list[Connection]:
    """The connections of units; one of several hosts that are sent as much is enough."""
    src, dst, stream, load = (own[c].to_numpy() for c in ("src", "dst_host", "stream", "load"))
    hosts, num = np.unique(dst, return_counts=True)
    # Experts that span every second host go past those that all else is summed with.
    uneven = _UNEVEN * num.min() <= num.max()
    chosen = np.flatnonzero(uneven | (dst == hosts[np.argmax(num)]))
    chosen = chosen[np.lexsort((stream[chosen], src[chosen]))]
    return [read_connection(traffic, int(stream[i]), float(load[i])) for i in chosen]


def _measure_sharpness(traffic: Traffic, rings: pl.DataFrame) -> float:
    """How far the ends of two hops scatter that follow each other on a ring, and so surely are of one collective."""
    onward = rings.select(
        pl.col("src").alias("dst"), pl.col("stream").alias("next"), pl.col("bytes").alias("next_bytes")
    )
    alike = (pl.col("bytes").log() - pl.col("next_bytes").log()).abs() < _OTHER_SIZE
    hops = rings.select("stream", "dst", "bytes").join(onward, on="dst").filter(alike).sort("stream", "next")
    if hops.is_empty():
        return float("inf")
    chosen = hops[choose_some(np.arange(hops.height), _PLACES)]
    ways = zip(chosen["stream"].to_list(), chosen["next"].to_list(), strict=True)
    return float(
        np.median([part_ends(read_connection(traffic, one), read_connection(traffic, other)) for one, other in ways])
    )


def _group_connections(connections: list[Connection], sharp_ns: float) -> Groups:
    """Groups of connections that end as one with any other: two clocks may differ by too much to compare."""
    groups: Groups = []
    for connection in connections:
        own = next((g for g in groups if any(ends_as_one(m, connection, sharp_ns) for m in g)), None)
        if own is None:
            groups.append([connection])
        else:
            own.append(connection)
    groups = _join_slow(groups)
    strays = 1 < len(groups) < len(connections) / 2 and sorted(map(len, groups))[-2] == 1
    if strays and max(connection.noise for connection in connections) > 0:
        return [connections]  # Sampled: the clock of one may be off by too much to be compared.
    usual = Counter(map(len, groups)).most_common(1)[0][1]
    if strays or usual <= levels.SHARE_HALF * len(groups):
        # Every group has equally many connections on a host: if some are separate, larger ones are several groups.
        size = math.gcd(*map(len, groups))
        groups = [group[i : i + size] for group in groups for i in range(0, len(group), size)]
    return groups


def _join_slow(groups: Groups) -> Groups:
    """The groups with single connections at a slow place in the largest, if that holds most: these end apart anyway."""
    most = max(groups, key=len)
    if 2 * len(most) <= sum(map(len, groups)):
        return groups
    usual, far = math.log(max(most[0].shortest, 1.0)), math.log(levels.RATIO_LONGER)
    slow = [len(group) == 1 and abs(math.log(max(group[0].shortest, 1.0)) - usual) > far for group in groups]
    most += [group[0] for group, is_slow in zip(groups, slow, strict=True) if is_slow]
    return [group for group, is_slow in zip(groups, slow, strict=True) if not is_slow]


def _count_groups(groups: Groups, period_ns: float) -> GradientGroups:
    """Groups of one stage, and stages of groups that send at other times or, where all send at once, other amounts."""
    timed = _count_stages([group[0] for group in groups], period_ns)
    stages = timed if timed > 1 else count_stages_by_load([group[0].load for group in groups])
    size = Counter(map(len, groups)).most_common(1)[0][0]
    return GradientGroups(dense=len(groups) // stages, expert=0, stages=stages, connections=size, in_step=1)


def count_stages_by_load(load: list[float]) -> int:
    """Stages among groups that send as much each: the first and the last stage hold the embeddings, and send more."""
    ordered = np.sort(np.log(np.maximum(load, 1.0)))
    steps = np.diff(ordered)
    if len(steps) < 2 or steps.max() < _OTHER_LOAD:
        return 1
    cut = int(np.argmax(steps)) + 1
    tensor, odd = divmod(len(ordered) - cut, 2)
    alike = max(np.ptp(ordered[:cut]), np.ptp(ordered[cut:])) < 0.3 * steps[cut - 1]
    if odd or not alike or len(ordered) % tensor:
        return 1
    return len(ordered) // tensor


def _count_stages(firsts: list[Connection], period_ns: float) -> int:
    """Stages among groups: they send gradients one after the other; tensor-parallel ranks of a stage send at once."""
    bonds = [measure_bond(firsts[0], connection) for connection in firsts[1:]]
    offsets = np.sort([0.0, *(b.offset_ns for b in bonds if b is not None)])
    limit = max(_OTHER_STAGE * period_ns, SKEW_NS)
    cut = np.flatnonzero(np.diff(offsets) > limit) + 1
    sizes = {len(part) for part in np.split(offsets, cut)}
    return len(cut) + 1 if len(sizes) == 1 and len(offsets) == len(firsts) else 1


def _by_size(own: pl.DataFrame) -> list[pl.DataFrame]:
    """Units that carry messages of about one size, apart from the others; units are in order of size."""
    size = np.log(np.maximum(own["bytes"].to_numpy(), 1.0))
    cut = np.flatnonzero(np.diff(size) > _OTHER_SIZE) + 1
    return [own[a:b] for a, b in pairwise([0, *cut.tolist(), own.height])]


def _span(units: pl.DataFrame) -> int:
    """Hosts of the largest part that units connect."""
    return max(map(len, list_parts(*(units[c].to_numpy().astype(np.int64) for c in ("src_host", "dst_host")))))
