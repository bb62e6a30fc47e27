"""Layout: degrees and groups, from stages, from which ranks act as one, and from how many there are."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.jobs.grouping import ObservedJob, connect
from prism.observe.parallelism.gradient_groups import GradientGroups, count_gradient_groups, waits_for_senders_alone
from prism.observe.parallelism.lockstep_ranks import LockstepRanks, find_lockstep_ranks
from prism.observe.parallelism.stages import StageMap, spread_over_nics
from prism.observe.traffic.table import Traffic
from prism.records.layout import Degree, Group, Layout

__all__ = ["StageMap", "infer_layout", "relabel_ties"]

Ints = NDArray[np.int64]

_LAYERS = 12  # messages of one size per step that are one of each layer rather than buckets of gradients
_ONCE = 1.4  # per step
_USUAL_GPUS = 8  # of a host; the count that evidence of several ranks behind one NIC must lead to


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many ranks a job has, and how many of them a host holds."""

    total: int
    per_host: float
    sure: float
    shared: bool  # whether NICs are shared by several


def relabel_ties(streams: pl.DataFrame, stages: StageMap) -> pl.DataFrame:
    """A collective between the first and the last stage is not data parallel: it ties their embeddings."""
    if not stages.chains:
        return streams
    last = max(stages.stage.values())
    table = np.full(int(max(streams["src"].max(), streams["dst"].max())) + 1, -1, np.int64)  # type: ignore[type-var, arg-type]
    own = np.array([e for e in stages.stage if e < len(table)], np.int64)
    table[own] = [stages.stage[e] for e in own.tolist()]
    src, dst = table[streams["src"].to_numpy()], table[streams["dst"].to_numpy()]
    collective = streams["kind"].is_in(["dp", "cp", "tp"]).to_numpy()
    known = (src >= 0) & (dst >= 0) & collective
    across = known & (src != dst)
    ends = (np.minimum(src, dst) == 0) & (np.maximum(src, dst) == last)
    if across.sum() > 2 * max(1, (across & ends).sum()):
        return streams  # Collectives between all stages: the stages are wrong.
    return streams.with_columns(
        pl.when(pl.Series(across & ends)).then(pl.lit("embedding")).otherwise("kind").alias("kind")
    )


def infer_layout(
    traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, stages: StageMap, gpus_per_host: int | None = None
) -> Layout:
    """The degrees of a job; with `gpus_per_host` NICs may be shared by ranks that cannot be told apart."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    groups = find_groups(streams, stages)
    gradient_groups = count_gradient_groups(traffic, streams, job.period_ns or float(job.last_ns - job.first_ns))
    ranks = count_ranks(traffic, job, streams, gpus_per_host, host)
    gradient_groups = _part_experts(gradient_groups, ranks.per_host)
    inside = max(1.0, ranks.per_host)
    # Several connections of two NICs are several ranks only where NICs are shared.
    key = "unit" if ranks.shared else "pair"
    seen = max(stages.stage.values(), default=0) + 1
    pp = (
        _pipeline_degree(streams, seen, stages, ranks, key, traffic.connected)
        if stages.chains
        else gradient_groups.stages
    )
    lockstep, tp_sure = _find_lockstep(traffic, streams, stages, gradient_groups, key, max(1, pp // seen), inside)
    tp = max(1, min(lockstep.tensor, ranks.total // pp))
    tp_across = _spanned_hosts(groups, "tp", host)
    tp = int(tp_across * inside) if tp_across > 1 else tp
    per_block = max(1.0, inside / max(tp, 1))
    cp = max(lockstep.context, _spread_degree(groups, "cp", host, per_block))
    ep = _spread_degree(groups, "ep", host, per_block)
    if (
        cp == ep == 1
        and gradient_groups.expert == gradient_groups.dense
        and gradient_groups.connections * gradient_groups.dense * gradient_groups.stages == inside
    ):
        # Tensor parallelism binds the ranks of a host before context parallelism does.
        tp, cp = (max(tp, gradient_groups.in_step), 1) if gradient_groups.dense == 1 else (tp, gradient_groups.in_step)
    if (
        cp == ep == pp == 1
        and _has_unseen_ranks(gradient_groups, streams, inside)
        and waits_for_senders_alone(traffic, streams)
    ):
        cp = int(inside / gradient_groups.dense)
    pp, tp, cp = fit_degrees(ranks.total, pp, tp, cp)
    dp = ranks.total // (pp * tp * cp)
    if (
        ep == 1
        and gradient_groups.expert > gradient_groups.dense > 0
        and gradient_groups.expert % gradient_groups.dense == 0
    ):
        shared = min(gradient_groups.expert // gradient_groups.dense, dp)
        ep = shared if dp % shared == 0 else 1
    address = traffic.endpoints["address"].to_list()
    staged = spread_over_nics(stages, streams.filter(pl.col("kind") == "pp"), pp, _list_nics(traffic, job))
    return Layout(
        dp=Degree(dp, min(tp_sure, ranks.sure)),
        pp=Degree(pp, stages.confidence if pp > 1 else 0.95),
        tp=Degree(tp, tp_sure),
        cp=Degree(cp, 0.9),
        ep=Degree(ep, 0.9),
        sharding="unknown",
        groups=tuple(
            Group(kind=kind, members=tuple(address[e] for e in sorted(m)), confidence=0.9) for kind, m in groups
        ),
        stages={address[e]: s for e, s in staged.items()},
    )


def fit_degrees(total: int, pp: int, tp: int, cp: int) -> tuple[int, int, int]:
    """The degrees nearest to those measured whose product divides the number of ranks.

    Stages are seen one by one, so they give way last; ranks in lockstep are counted by how alike they are.
    """
    if total % (pp * tp * cp) == 0:
        return pp, tp, cp
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    fitting = [(p, t, c) for p in divisors for t in divisors for c in divisors if total % (p * t * c) == 0]
    weights = ((pp, 4.0), (tp, 1.0), (cp, 1.5))

    def distance(degrees: tuple[int, int, int]) -> float:
        return sum(w * abs(math.log(found / wanted)) for found, (wanted, w) in zip(degrees, weights, strict=True))

    return min(fitting, key=distance)


def _part_experts(gradient_groups: GradientGroups, per_host: float) -> GradientGroups:
    """One group more than a host has ranks: those of experts, one per rank, and that of all else in like messages."""
    if (
        gradient_groups.dense == gradient_groups.expert == per_host + 1
        and gradient_groups.connections == gradient_groups.stages == 1
    ):
        return replace(gradient_groups, dense=1, expert=gradient_groups.dense - 1)
    return gradient_groups


def _list_nics(traffic: Traffic, job: ObservedJob) -> pl.DataFrame:
    """The job's endpoints with their place among the NICs of their host, or among the job's own on a shared host."""
    places = pl.col("host_id").replace_strict(count_own_nics(traffic, job), return_dtype=pl.Int64)
    own = traffic.endpoints[job.endpoints].with_columns(places.alias("places"), pl.len().over("host_id").alias("seen"))
    ranked = pl.struct("rail", "endpoint").rank("ordinal").over("host_id").cast(pl.Int64) - 1
    by_rail = pl.col("rail").cast(pl.Int64) - pl.col("rail").min()
    silent = (pl.col("places") > pl.col("seen")) & pl.col("rail").is_not_null()
    return own.select("endpoint", "host_id", pl.when(silent).then(by_rail).otherwise(ranked).alias("place"), "places")


def _has_unseen_ranks(gradient_groups: GradientGroups, streams: pl.DataFrame, inside: float) -> bool:
    """Whether a host has more ranks than connections, of which nothing else is known."""
    few = 0 < gradient_groups.connections * gradient_groups.dense < inside and inside % gradient_groups.dense == 0
    return few and gradient_groups.expert == gradient_groups.dense and not _shards_by_layer(streams)


def count_ranks(
    traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, gpus_per_host: int | None, host: Ints
) -> Ranks:
    """One rank per NIC, unless several connections of one kind and moment show that NICs are shared."""
    hosts = np.unique(host[job.endpoints])
    count = len(job.endpoints) + _count_silent_nics(traffic, job, streams, hosts, host)
    nics = count / max(len(hosts), 1)
    if gpus_per_host is not None:
        known = [traffic.nics_of_host.get(int(h), 0) for h in hosts]
        usual = max(Counter(known).most_common(1)[0][0], 1) if known else 1
        share = max(1.0, gpus_per_host / usual)
        return Ranks(total=round(count * share), per_host=nics * share, sure=0.95, shared=share > 1)
    shared = _ranks_per_nic(streams)
    if shared > 1 and round(nics * shared) == _USUAL_GPUS:
        return Ranks(total=count * shared, per_host=nics * shared, sure=0.8, shared=True)
    return Ranks(total=count, per_host=nics, sure=0.9 if shared == 1 else 0.6, shared=False)


def _count_silent_nics(traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, hosts: Ints, host: Ints) -> int:
    """NICs of the job's hosts that nobody uses, though ranks do: inner stages never speak outside where no gradients
    leave a host, nor do inner ranks of a ring that enters a host by one NIC and leaves it by another.
    """
    dp = streams.filter(pl.col("kind") == "dp")
    piped, both = (streams["kind"] == "pp").any(), dp["src"].is_in(dp["dst"].implode()).any()
    if both or not (piped or dp.height) or (piped and dp.height):
        return 0
    own = count_own_nics(traffic, job)
    seen = np.bincount(host[job.endpoints], minlength=int(hosts.max()) + 1)
    return sum(max(own[h] - int(seen[h]), 0) for h in hosts.tolist())


def count_own_nics(traffic: Traffic, job: ObservedJob) -> dict[int, int]:
    """NICs of each of the job's hosts: all that the host has where no other job uses any, else those that are seen."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    seen_on = np.bincount(host)
    own = np.bincount(host[job.endpoints], minlength=len(seen_on))
    return {
        h: max(int(own[h]), traffic.nics_of_host.get(h, 0) if own[h] == seen_on[h] else 0)
        for h in np.unique(host[job.endpoints]).tolist()
    }


def _ranks_per_nic(streams: pl.DataFrame) -> int:
    """Connections of one kind between two NICs: pipelines of several ranks, gradients of several groups."""
    busy = streams.filter(pl.col("kind").is_in(["pp", "dp"]))
    if busy.is_empty():
        return 1
    per_pair = busy.group_by("pair", "kind").agg(pl.col("connection").n_unique().alias("n"))
    most = [int(per_pair.filter(pl.col("kind") == k)["n"].mode().max() or 1) for k in ("pp", "dp")]  # type: ignore[arg-type]
    return max(most)


def _pipeline_degree(
    streams: pl.DataFrame, seen: int, stages: StageMap, ranks: Ranks, key: str, connected: bool
) -> int:
    """Stages that are seen, or more where several share a host: fewer ranks send onward than a stage would hold."""
    if key == "unit" and not connected:
        return seen  # Ranks behind one NIC that do not send side by side are not told apart.
    pipe = streams.filter(pl.col("kind") == "pp")
    src, dst = ([stages.stage.get(int(e), -1) for e in pipe[c]] for c in ("src", "dst"))
    onward = pipe.with_columns(pl.Series("from", src), pl.Series("to", dst)).filter(pl.col("to") == pl.col("from") + 1)
    senders = onward.group_by("from").agg(pl.col(key).n_unique())[key].max()
    if isinstance(senders, int) and senders and ranks.total % senders == 0:
        return max(seen, ranks.total // senders)
    return seen


def _find_lockstep(
    traffic: Traffic,
    streams: pl.DataFrame,
    stages: StageMap,
    gradient_groups: GradientGroups,
    key: str,
    per_host: int,
    inside: float,
) -> tuple[LockstepRanks, float]:
    """As many tensor-parallel ranks as groups of one stage sum their gradients apart, else those that act as one.

    Replicas of a host that share a sequence or experts act as one too, but sum their gradients together; `per_host` is
    how many stages share a host.
    """
    alone = LockstepRanks(tensor=1, context=1)
    if gradient_groups.dense and _shards_by_layer(streams):
        return alone, 0.8
    groups = gradient_groups.dense * gradient_groups.stages // per_host if stages.chains else gradient_groups.dense
    hidden = stages.chains and gradient_groups.connections * gradient_groups.dense * gradient_groups.stages < inside
    acting = find_lockstep_ranks(traffic, streams, stages, key) if groups > 1 and hidden else None
    if groups > 1 and acting is not None and acting.size % groups == 0:
        return LockstepRanks(tensor=groups, context=acting.size // groups), 0.9
    if groups > 1:
        return LockstepRanks(tensor=groups, context=1), 0.95
    if not stages.chains or gradient_groups.expert > gradient_groups.dense or (streams["kind"] == "ep").any():
        return alone, 0.95 if groups else 0.5
    # Groups that all wait for the same late rank may end as one, and then their ranks leave as one.
    return find_lockstep_ranks(traffic, streams, stages, key) or alone, 0.85


def _shards_by_layer(streams: pl.DataFrame) -> bool:
    """Whether gradients leave layer by layer and the rest of the model once: ranks of a host share one copy of it."""
    units = streams.filter(pl.col("kind") == "dp").group_by("unit").agg(
        pl.len().alias("sizes"), pl.col("per_step").min().alias("once"), pl.col("per_step").max().alias("often"),
        (pl.col("role") == "routed").any().alias("mixed"),
    )  # fmt: skip
    known = units.filter(~pl.col("mixed"))  # Where few packets are sampled, sizes that differ by little run together.
    layered = (pl.col("sizes") == 2) & (pl.col("once") < _ONCE) & (pl.col("often") >= _LAYERS * pl.col("once"))
    return bool(known.select(layered.mean() > 0.5).item()) if known.height else False


def find_groups(streams: pl.DataFrame, stages: StageMap) -> list[tuple[str, frozenset[int]]]:
    """Pipelines, and endpoints that collectives of one kind connect."""
    found: list[tuple[str, frozenset[int]]] = [("pp", frozenset(chain)) for chain in stages.chains]
    for kind in ("dp", "cp", "tp", "ep", "embedding"):
        own = streams.filter(pl.col("kind") == kind)
        if own.is_empty():
            continue
        src, dst = own["src"].to_numpy().astype(np.int64), own["dst"].to_numpy().astype(np.int64)
        nodes = np.unique(np.concatenate([src, dst]))
        labels = connect(len(nodes), np.searchsorted(nodes, src), np.searchsorted(nodes, dst))
        order = np.argsort(labels, kind="stable")
        cut = np.flatnonzero(np.diff(labels[order])) + 1
        found += [(kind, frozenset(nodes[part].tolist())) for part in np.split(order, cut)]
    return found


def _spanned_hosts(groups: list[tuple[str, frozenset[int]]], kind: str, host: Ints) -> int:
    spans = [len({int(host[e]) for e in m}) for k, m in groups if k == kind]
    return Counter(spans).most_common(1)[0][0] if spans else 1


def _spread_degree(groups: list[tuple[str, frozenset[int]]], kind: str, host: Ints, per_block: float) -> int:
    """The degree of groups that span hosts: as many ranks on each as are left beside tensor parallelism."""
    sizes = [len(m) for k, m in groups if k == kind]
    if not sizes:
        return 1
    spanned = _spanned_hosts(groups, kind, host)
    size = Counter(sizes).most_common(1)[0][0]
    return max(size, round(spanned * per_block)) if spanned > 1 and size <= spanned * per_block else size
