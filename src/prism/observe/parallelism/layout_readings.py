"""Measured counts of a job, as readings that layouts predict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import list_parts
from prism.observe.parallelism.gradient_groups import GradientGroups, find_independent_ranks
from prism.observe.parallelism.layout_model import Degrees, LayoutConfig, Reading, stages_on_host
from prism.observe.parallelism.lockstep_ranks import find_lockstep_ranks
from prism.observe.parallelism.rank_counts import Ranks
from prism.observe.parallelism.stages import StageMap, list_onward_streams
from prism.observe.traffic.table import Traffic

Ints = NDArray[np.int64]

# Messages of one size per step that are one of each layer rather than buckets of gradients.
_LAYERS = levels.SAMPLED_GROUPS
_ONCE = levels.RATIO_LONGER  # per step


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What was counted of a job, as readings that layouts predict."""

    ranks: Ranks
    streams: pl.DataFrame
    stages: StageMap
    host: Ints
    gradients: GradientGroups
    groups: list[tuple[str, frozenset[int]]]
    connected: bool = True  # whether records name connections: else channels look like groups
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
        """What identifies a rank: several connections of two NICs are several ranks only if NICs are shared."""
        return "unit" if self.ranks.shared else "pair"

    @cached_property
    def sharded(self) -> bool:
        """Whether ranks of a host share one copy of the model, layer by layer."""
        return self.gradients.dense > 0 and _shards_by_layer(self.streams)

    @cached_property
    def layered(self) -> bool:
        """Whether gradients leave layer by layer."""
        return _sends_layers(self.streams)

    def spread(self, kind: str, tp: int) -> int:
        """The degree of groups of a kind that span hosts, beside tensor parallelism."""
        per_block = self.inside / (self.rings if kind == "cp" else tp)
        return _spread_degree(self.groups, kind, self.host, max(1.0, per_block))

    @cached_property
    def rings(self) -> int:
        """Rings of context blocks that pass from a host to the next side by side; each has ranks of its own."""
        key = "unit" if self.ranks.guessed else self.key
        ways = self.streams.filter(pl.col("kind") == "cp").group_by("src_host", "dst_host")
        side_by_side = int(ways.agg(pl.col(key).n_unique())[key].median() or 1)  # type: ignore[arg-type]
        return max(n for n in range(1, self.inside + 1) if self.inside % n == 0 and n <= max(side_by_side, 1))

    @cached_property
    def exchanging(self) -> int:
        """Ranks of a host that send tokens to all of another over one connection at once; 1 where none do so.

        A message leaves by the NIC of its receiver, behind which several receivers may be.
        """
        routed = self.streams.filter(pl.col("kind") == "ep")
        overlap = float(routed.group_by("unit").agg(pl.col("overlap").max())["overlap"].median() or 0.0)  # type: ignore[arg-type]
        nics = routed["src"].n_unique() / max(routed["src_host"].n_unique(), 1)
        at_once = -math.log(max(1 - overlap, 1 / levels.SAMPLED_MESSAGES))
        shares = [n for n in range(1, self.inside + 1) if self.inside % n == 0]
        return min(shares, key=lambda n: abs(math.log(n * max(1, n / max(nics, 1))) - at_once))

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
        if self.covers("ep") and self.exchanging > 1:
            yield Reading(
                value=self.exchanging,
                reliability=config.groups,
                predict=lambda d: tuple(
                    self.inside // (d.tp * n) for n in (1, d.cp, *stages_on_host(d, self.ranks.total, self.inside))
                ),
            )
        if self.covers("cp"):
            # Frameworks number ranks by tensor first and by sequence next, so rings side by side are parts of a tensor.
            yield Reading(value=self.rings, reliability=config.groups, predict=lambda d: (d.tp,))
        if not self.covers("cp"):
            yield Reading(value=1, reliability=config.groups, predict=lambda d: (int(d.cp * d.tp <= self.inside),))

    def _hybrid(self, degrees: Degrees) -> tuple[int, ...]:
        """Ranks of a host that hold one copy in shards: each sums its own with other hosts, layer by layer."""
        return self._replicas(degrees) if self.layered else ()

    def _as_one(self, degrees: Degrees) -> tuple[int, ...]:
        """Replicas of a host whose channels are those of one collective, and end as one."""
        return self._replicas(degrees) if self.connected else self._hybrid(degrees)

    def _replicas(self, degrees: Degrees) -> tuple[int, ...]:
        """All ranks of a host, where nothing but replicas is in it."""
        alone = degrees.tp == degrees.pp == degrees.cp == 1 and not self.stages.chains
        return (self.inside,) if alone else ()

    def covers(self, kind: str) -> bool:
        """Whether groups of a kind hold half of the endpoints of a job or more, and not a few that were read wrong."""
        members = set().union(*(m for k, m in self.groups if k == kind)) if self.groups else set()
        every = {e for _, m in self.groups for e in m}
        return bool(members) and 2 * len(members) >= len(every)

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
            predict=lambda d: (d.pp, *(d.pp // n for n in stages_on_host(d, total, self.inside))),
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
        elif on_host == 1 and gradients.in_step > 1:
            pass  # Groups of ranks that arrive together also end together, so their number is not visible.
        elif 0 < on_host <= self.inside:
            yield Reading(
                value=on_host,
                reliability=config.one_group if on_host == 1 else config.groups,
                merged=on_host == 1,
                predict=lambda d: (d.tp * (max(1, d.pp // self.seen) if chains else d.pp), *self._hybrid(d)),
            )
        elif not on_host:
            # Replicas that share a host sum their gradients in it.
            yield Reading(
                value=1, reliability=config.unseen, predict=lambda d: (int(d.dp * d.cp * d.tp <= self.inside),)
            )
        if gradients.dense and not self.covers("ep"):
            share, odd = divmod(gradients.expert, gradients.dense)
            yield Reading(value=share if share and not odd else 1, reliability=config.groups, predict=lambda d: (d.ep,))
        if not self.spans and gradients.expert == gradients.dense and gradients.connections * on_host == self.inside:
            # Tensor parallelism binds the ranks of a host before context parallelism does.
            one = gradients.dense == 1
            yield Reading(
                value=gradients.in_step,
                reliability=config.lockstep,
                predict=lambda d: (d.tp * d.cp, *self._as_one(d)) if one else (d.cp,),
            )


def read_lockstep(traffic: Traffic, counts: Counts) -> Iterator[Reading]:
    """How many ranks begin together, if gradients do not show it; measured only then, because it is slow."""
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
        # Blocks of a sequence that hosts pass to each other need not begin as one.
        apart = counts.covers("cp")
        yield Reading(
            value=acting.size,
            reliability=config.lockstep,
            predict=lambda d: (d.tp * d.cp, d.tp) if apart else (d.tp * d.cp,),
        )
        if on_host <= 1:
            yield Reading(value=acting.tensor, reliability=config.lockstep, predict=lambda d: (d.tp,))
    elif (
        not counts.stages.chains
        and not counts.spans
        and gradients.stages == 1
        and _has_unseen_ranks(gradients, counts.streams, counts.inside)
    ):
        together = int(counts.inside / gradients.dense)
        if independent := find_independent_ranks(traffic, counts.streams, together):
            fits = {together // n for n in independent}
            yield Reading(value=1, reliability=config.unseen, predict=lambda d: (int(d.cp in fits),))


def part_experts(gradient_groups: GradientGroups, per_host: float) -> GradientGroups:
    """One group more than a host has ranks: one of experts per rank, and one of everything else."""
    if (
        gradient_groups.dense == gradient_groups.expert == per_host + 1
        and gradient_groups.connections == gradient_groups.stages == 1
    ):
        return replace(gradient_groups, dense=1, expert=gradient_groups.dense - 1)
    return gradient_groups


def _has_unseen_ranks(gradient_groups: GradientGroups, streams: pl.DataFrame, inside: float) -> bool:
    """Whether a host has more ranks than connections, of which nothing else is known."""
    few = 0 < gradient_groups.connections * gradient_groups.dense < inside and inside % gradient_groups.dense == 0
    return few and gradient_groups.expert == gradient_groups.dense and not _shards_by_layer(streams)


def _count_senders(streams: pl.DataFrame, stages: StageMap, key: str) -> int:
    """Ranks that send to the next stage, of the stage with most of them."""
    onward = list_onward_streams(streams, stages, key).group_by("from").agg(pl.col(key).n_unique())
    return int(onward[key].max() or 0)  # type: ignore[arg-type]


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
    """Whether most connections send many gradients of one size in a step, and another size once at most.

    The many are layers that are alike. Buckets that are summed after every microbatch are many too, but then the
    parameters, of another size, come in as many buckets.
    """
    often, once = pl.col("per_step").max().round(), pl.col("per_step").min()
    layered = (often >= _LAYERS) & ((pl.len() == 1) | (once < _ONCE))
    units = streams.filter(pl.col("kind") == "dp").group_by("unit").agg(layered.alias("layered"))
    return bool(units.select(pl.col("layered").mean() > 0.5).item()) if units.height else False


def find_groups(streams: pl.DataFrame, stages: StageMap) -> list[tuple[str, frozenset[int]]]:
    """Pipelines, and endpoints that collectives of one kind connect."""
    found: list[tuple[str, frozenset[int]]] = [("pp", frozenset(chain)) for chain in stages.chains]
    for kind in ("dp", "cp", "tp", "ep", "embedding"):
        own = streams.filter(pl.col("kind") == kind)
        parts = list_parts(*(own[c].to_numpy().astype(np.int64) for c in ("src", "dst")))
        found += [(kind, frozenset(part.tolist())) for part in parts]
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
