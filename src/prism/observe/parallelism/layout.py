"""Layout: degrees and groups, from stages, from which ranks act as one, and from how many there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob, connect
from prism.observe.parallelism.gradient_groups import GradientGroups, count_gradient_groups, waits_for_senders_alone
from prism.observe.parallelism.layout_model import (
    Degrees,
    LayoutConfig,
    Reading,
    confidence_of,
    rank_layouts,
    stages_on_host,
)
from prism.observe.parallelism.lockstep_ranks import find_lockstep_ranks
from prism.observe.parallelism.stages import StageMap, spread_over_nics
from prism.observe.traffic.table import Traffic
from prism.records.layout import DEGREES, Alternative, Degree, Group, Layout

__all__ = ["StageMap", "infer_layout", "relabel_ties"]

Ints = NDArray[np.int64]

_LAYERS = levels.SAMPLE  # messages of one size per step that are one of each layer rather than buckets of gradients
_ONCE = 1.4  # per step
_LISTED = 4  # layouts that are listed, the best one among them
_USUAL_GPUS = 8  # of a host; the count that evidence of several ranks behind one NIC must lead to
_FEW_NICS = (1, 2)  # of a host with more GPUs than NICs
_FAST_GBPS = 25.0  # a NIC above which a host has several GPUs; machines with one have 1, 10 or 25 Gbit/s
_LARGE_BYTES = 1 << 20  # of a transfer that shows how fast a NIC is
_SERVERS = levels.MAJORITY  # how sure that is


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many ranks a job has, and how many of them a host holds."""

    total: int
    per_host: float
    sure: float
    shared: bool  # whether NICs are shared by several
    guessed: bool = False  # from what is usual, not from what was seen


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
    """The most likely layout of a job; with `gpus_per_host` NICs may be shared by ranks that cannot be told apart."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    ranks = count_ranks(traffic, job, streams, gpus_per_host, host)
    period_ns = job.period_ns or float(job.last_ns - job.first_ns)
    gradients = count_gradient_groups(traffic, streams, period_ns, shared=ranks.shared)
    if ranks.guessed and not ranks.shared and gradients.dense:
        gradients = replace(gradients, dense=1, expert=1, stages=1)  # channels and groups cannot be told apart
    counts = _Counts(
        ranks=ranks,
        streams=streams,
        stages=stages,
        host=host,
        gradients=_part_experts(gradients, ranks.per_host),
        groups=find_groups(streams, stages),
    )
    ranked = rank_layouts(ranks.total, counts.inside, [*counts.read(), *_read_lockstep(traffic, counts)])
    best = ranked[0].degrees
    address = traffic.endpoints["address"].to_list()
    staged = spread_over_nics(stages, streams.filter(pl.col("kind") == "pp"), best.pp, _list_nics(traffic, job))
    return Layout(
        **{name: Degree(getattr(best, name), round(ranks.sure * confidence_of(ranked, name), 3)) for name in DEGREES},
        joint=round(ranks.sure * ranked[0].probability, 3),
        alternatives=tuple(
            Alternative(**asdict(other.degrees), probability=round(ranks.sure * other.probability, 3))
            for other in ranked[1:_LISTED]
        ),
        sharding="unknown",
        groups=tuple(
            Group(kind=kind, members=tuple(address[e] for e in sorted(m)), confidence=0.9) for kind, m in counts.groups
        ),
        stages={address[e]: s for e, s in staged.items()},
    )


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """What was counted of a job, as readings that layouts predict."""

    ranks: Ranks
    streams: pl.DataFrame
    stages: StageMap
    host: Ints
    gradients: GradientGroups
    groups: list[tuple[str, frozenset[int]]]
    config: LayoutConfig = field(default_factory=LayoutConfig)

    @property
    def inside(self) -> int:
        """Ranks of a host."""
        return max(1, int(self.ranks.per_host))

    @property
    def seen(self) -> int:
        """Stages that messages pass."""
        return max(self.stages.stage.values(), default=0) + 1

    @property
    def key(self) -> str:
        """What stands for a rank: several connections of two NICs are several ranks only where NICs are shared."""
        return "unit" if self.ranks.shared else "pair"

    @property
    def sharded(self) -> bool:
        """Whether ranks of a host share one copy of the model, layer by layer."""
        return self.gradients.dense > 0 and _shards_by_layer(self.streams)

    def spread(self, kind: str, tp: int) -> int:
        """The degree of groups of a kind that span hosts, beside tensor parallelism."""
        return _spread_degree(self.groups, kind, self.host, max(1.0, self.inside / tp))

    @property
    def spans(self) -> bool:
        """Whether any context or expert group is seen."""
        return self.covers("cp") or self.covers("ep")

    def read(self) -> Iterator[Reading]:
        """Counts of stages, of gradient groups and of groups that span hosts."""
        yield from self._read_stages()
        yield from self._read_gradients()
        config = self.config
        across = _spanned_hosts(self.groups, "tp", self.host)
        if across > 1:
            yield Reading(value=across * self.inside, reliability=config.groups, predict=lambda d: (d.tp,))
        for kind in ("cp", "ep"):
            if self.covers(kind):
                yield Reading(
                    value=1,
                    reliability=config.groups,
                    predict=lambda d, kind=kind: (int(getattr(d, kind) == self.spread(kind, d.tp)),),  # type: ignore[misc]
                )
        if not self.covers("cp"):
            yield Reading(value=1, reliability=config.groups, predict=lambda d: (int(d.cp * d.tp <= self.inside),))

    def _hybrid(self, degrees: Degrees) -> tuple[int, ...]:
        """Ranks of a host that hold one copy in shards: each sums its own with other hosts, layer by layer."""
        alone = degrees.tp == degrees.pp == degrees.cp == 1 and not self.stages.chains
        return (self.inside,) if alone and _sends_layers(self.streams) else ()

    def covers(self, kind: str) -> bool:
        """Whether groups of a kind hold most endpoints of the job, and not a few that were read wrong."""
        members = set().union(*(m for k, m in self.groups if k == kind)) if self.groups else set()
        every = {e for _, m in self.groups for e in m}
        return 2 * len(members) > len(every)

    def _read_stages(self) -> Iterator[Reading]:
        config, total = self.config, self.ranks.total
        if not self.stages.chains:
            # A pipeline inside a host shows only by when its stages send their gradients.
            value = self.gradients.stages if self.gradients.dense else 1
            fits = min(value, self.inside)
            yield Reading(value=fits, reliability=config.stages, predict=lambda d: (d.pp,))
            return
        yield Reading(
            value=self.seen,
            reliability=config.stages,
            predict=lambda d: (d.pp, d.pp // stages_on_host(d, total, self.inside)),
        )
        senders = _count_senders(self.streams, self.stages, self.key)
        if senders and total % senders == 0 and total // senders >= self.seen:
            yield Reading(value=senders, reliability=config.senders, predict=lambda d: (total // d.pp,))

    def _read_gradients(self) -> Iterator[Reading]:
        config, gradients, chains = self.config, self.gradients, bool(self.stages.chains)
        on_host = gradients.dense * gradients.stages
        if self.ranks.shared and on_host > self.inside and on_host % self.inside == 0:
            on_host = self.inside  # Each of the groups has several channels.
        if self.sharded:
            yield Reading(value=1, reliability=config.groups, predict=lambda d: (d.tp,))
        elif 0 < on_host <= self.inside:
            yield Reading(
                value=on_host,
                reliability=config.one_group if on_host == 1 else config.groups,
                merged=on_host == 1,
                predict=lambda d: (d.tp * (max(1, d.pp // self.seen) if chains else d.pp), *self._hybrid(d)),
            )
        elif not on_host:
            yield Reading(value=1, reliability=config.unseen, predict=lambda d: (int(d.dp == d.cp == 1),))
        if gradients.dense and not self.covers("ep"):
            share, odd = divmod(gradients.expert, gradients.dense)
            yield Reading(value=share if share and not odd else 1, reliability=config.groups, predict=lambda d: (d.ep,))
        if not self.spans and gradients.expert == gradients.dense and gradients.connections * on_host == self.inside:
            # Tensor parallelism binds the ranks of a host before context parallelism does.
            one = gradients.dense == 1
            yield Reading(
                value=gradients.in_step,
                reliability=config.lockstep,
                predict=lambda d: (d.tp * d.cp, *self._hybrid(d)) if one else (d.cp,),
            )


def _read_lockstep(traffic: Traffic, counts: _Counts) -> Iterator[Reading]:
    """How many ranks begin as one, where gradients do not tell; measured only there, for it takes long."""
    gradients, config = counts.gradients, counts.config
    on_host = gradients.dense * gradients.stages
    experts = gradients.expert > gradients.dense or any(kind == "ep" for kind, _ in counts.groups)
    if counts.stages.chains and not counts.sharded:
        hidden = gradients.connections * on_host < counts.inside
        if not (hidden if on_host > 1 else not experts):
            return
        acting = find_lockstep_ranks(traffic, counts.streams, counts.stages, counts.key)
        if acting is None:
            return
        yield Reading(value=acting.size, reliability=config.lockstep, predict=lambda d: (d.tp * d.cp,))
        if on_host <= 1:
            yield Reading(value=acting.tensor, reliability=config.lockstep, predict=lambda d: (d.tp,))
    elif (
        not counts.stages.chains
        and not counts.spans
        and gradients.stages == 1
        and _has_unseen_ranks(gradients, counts.streams, counts.inside)
        and waits_for_senders_alone(traffic, counts.streams)
    ):
        together = int(counts.inside / gradients.dense)
        yield Reading(value=together, reliability=config.groups, predict=lambda d: (d.cp,))


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
    # Connections are those of several ranks in a pipeline; in a ring they are channels of one collective.
    piped = bool((streams["kind"] == "pp").any())
    if (shared > 1 if piped else traffic.connected) and _are_servers(traffic, job, hosts):
        return Ranks(total=len(hosts) * _USUAL_GPUS, per_host=_USUAL_GPUS, sure=_SERVERS, shared=piped, guessed=True)
    return Ranks(total=count, per_host=nics, sure=0.9 if shared == 1 else 0.6, shared=False)


def count_seen_ranks(traffic: Traffic, job: ObservedJob, layout: Layout) -> int | None:
    """How many ranks a job has where single messages do not show; None where more of them may be behind a NIC."""
    hosts = np.unique(traffic.endpoints["host_id"].to_numpy()[job.endpoints]).tolist()
    if all(traffic.nics_of_host.get(int(h), 0) not in _FEW_NICS for h in hosts):
        return len(job.endpoints)
    ranks = math.prod(d.value or 1 for d in (layout.dp, layout.pp, layout.tp, layout.cp))
    return ranks if ranks == len(hosts) * _USUAL_GPUS else None


def _are_servers(traffic: Traffic, job: ObservedJob, hosts: Ints) -> bool:
    """Whether hosts have one or two NICs, fast enough for several GPUs: records do not show how many are behind.

    NCCL opens several connections between two hosts for one GPU too, so that they do not tell.
    """
    if any(traffic.nics_of_host.get(int(h), 0) not in _FEW_NICS for h in hosts):
        return False
    sent = traffic.messages.select("start_ns", "end_ns", "bytes")[traffic.rows_of(job.pairs)]
    took = pl.col("end_ns") - pl.col("start_ns")
    large = sent.filter((pl.col("bytes") >= _LARGE_BYTES) & (took > 0)).select(8 * pl.col("bytes") / took).to_series()
    # Hops that wait for a late rank seem slow, so the quickest show what the NICs can carry.
    return len(large) > 0 and float(large.quantile(0.99) or 0.0) >= _FAST_GBPS


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


def _count_senders(streams: pl.DataFrame, stages: StageMap, key: str) -> int:
    """Ranks that send to the next stage, of the stage with most of them."""
    pipe = streams.filter(pl.col("kind") == "pp")
    src, dst = ([stages.stage.get(int(e), -1) for e in pipe[c]] for c in ("src", "dst"))
    onward = pipe.with_columns(pl.Series("from", src), pl.Series("to", dst)).filter(pl.col("to") == pl.col("from") + 1)
    return int(onward.group_by("from").agg(pl.col(key).n_unique())[key].max() or 0)  # type: ignore[arg-type]


def _shards_by_layer(streams: pl.DataFrame) -> bool:
    """Whether gradients leave layer by layer and the rest of the model once: ranks of a host share one copy of it."""
    units = streams.filter(pl.col("kind") == "dp").group_by("unit").agg(
        pl.len().alias("sizes"), pl.col("per_step").min().alias("once"), pl.col("per_step").max().alias("often"),
        (pl.col("role") == "routed").any().alias("mixed"),
    )  # fmt: skip
    known = units.filter(~pl.col("mixed"))  # Where few packets are sampled, sizes that differ by little run together.
    layered = (pl.col("sizes") == 2) & (pl.col("once") < _ONCE) & (pl.col("often") >= _LAYERS * pl.col("once"))
    return bool(known.select(layered.mean() > 0.5).item()) if known.height else False


def _sends_layers(streams: pl.DataFrame) -> bool:
    """Whether most connections send many gradients of one size in a step: those of layers that are alike."""
    units = streams.filter(pl.col("kind") == "dp").group_by("unit").agg(pl.col("per_step").max())
    return bool(units.select((pl.col("per_step") >= _LAYERS).mean() > 0.5).item()) if units.height else False


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
