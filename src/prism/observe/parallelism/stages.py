"""Stages: the order of endpoints in a pipeline, from which endpoint sends first in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.jobs.grouping import list_parts
from prism.observe.parallelism.hidden_stages import find_hidden_stages, number_through, pair_ends
from prism.observe.traffic.medians import median_groups, select_nth
from prism.observe.traffic.numbering import bound_groups, group_by_number, number_again, number_keys
from prism.observe.traffic.period import Times

Ints = NDArray[np.int64]

_SHORT = levels.SHARE_MINOR  # of the gaps between messages of one connection are shorter; long ones hold other things
_AS_OFTEN = levels.SHARE_LARGE  # of the messages of the busiest connection between two hosts
_AT_ONCE = levels.SHARE_SMALL  # of the time between messages: what is exchanged in one call ends closer to each other
_MORE_TURNS, _FEW_TURNS = 4, 2  # times more turns one way than the other, and a few that losses may make
_TWICE = (
    levels.RATIO_LONGER,
    levels.RATIO_FAR,
)  # times: how much longer a backward pass takes than a forward pass, with sums of gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMap:
    """The pipeline stage of each endpoint, and the chains they form."""

    stage: dict[int, int]
    chains: tuple[tuple[int, ...], ...]  # endpoints of each chain in stage order
    confidence: float
    through: Mapping[int, int] = field(default_factory=dict)  # from who leaves a host to who enters it, where unseen

    def tabulate(self, count: int) -> Ints:
        """The stage of each of at least `count` endpoints, -1 where it has none."""
        table = np.full(max(count, max(self.stage, default=-1) + 1), -1, np.int64)
        table[list(self.stage)] = list(self.stage.values())
        return table


NO_STAGES = StageMap(stage={}, chains=(), confidence=1.0)


def find_stages(
    sent: pl.DataFrame, boundaries: Times, host: Ints, ranks_of_host: Mapping[int, int] | None = None
) -> StageMap:
    """Order the endpoints that pipeline messages connect: forward is who sends first in a step, stage 0 who begins.

    `sent` are the pipeline's messages with src, dst and start_ns; `boundaries` are where steps begin; `host` is that of
    each endpoint: what comes back may leave and enter a host by other NICs. `ranks_of_host` is how many a host has.
    """
    if sent.is_empty():
        return NO_STAGES
    edges = _first_sent(sent, boundaries)
    quick = find_forward_ways(sent, host)
    quick |= {way for way in find_exchanging_ways(sent, host) if way[::-1] not in quick}
    between: dict[tuple[int, int], float] = {}
    for (s, d), at in edges.items():
        ends = (int(host[s]), int(host[d]))
        between[ends] = min(at, between.get(ends, np.inf))
    forward: dict[int, set[int]] = {}
    backward: dict[int, set[int]] = {}
    unclear = 0
    for s, d in edges:
        way, turned = (int(host[s]), int(host[d])), (int(host[d]), int(host[s]))
        ahead, back = between[way], between.get(turned, np.inf)
        onward = ahead < back or (ahead == back and s < d)
        if turned in quick or way in quick:
            onward = way in quick
        unclear += abs(back - ahead) < 0.01 * abs(ahead)
        a, b = (s, d) if onward else (d, s)
        forward.setdefault(a, set()).add(b)
        backward.setdefault(b, set()).add(a)
    stage: dict[int, int] = {}
    for part in list_parts(*np.array(list(edges), np.int64).T):
        members = part.tolist()
        _turn_one_way(members, forward, backward, edges)
        stage.update(_number_stages(members, forward, backward, edges))
    hidden_stages = find_hidden_stages(forward, backward, host, ranks_of_host or {})
    if hidden_stages:
        starts = {s: min(t for (a, _), t in edges.items() if a == s) for s, _ in edges}
        stage = number_through(hidden_stages, forward, starts)
    chains = _list_chains(stage, forward, backward)
    sure = max(0.5, 0.97 - unclear / max(len(edges), 1))
    return StageMap(stage=stage, chains=chains, confidence=sure, through=pair_ends(hidden_stages))


def _turn_one_way(
    members: list[int],
    forward: dict[int, set[int]],
    backward: dict[int, set[int]],
    edges: dict[tuple[int, int], float],
) -> None:
    """A path that reverses at a stage takes the direction with more time behind it: activations pass one way.

    Where times are coarse, the first messages of a step seem to leave both ends of a link at once.
    """
    near = {e: forward.get(e, set()) | backward.get(e, set()) for e in members}
    turns = any(len(forward.get(e, ())) > 1 or len(backward.get(e, ())) > 1 for e in members)
    ends = [e for e in members if len(near[e]) == 1]
    if not turns or len(ends) != 2 or any(len(own) > 2 for own in near.values()):
        return
    path = [min(ends)]
    while len(path) < len(members):
        path.append(next(iter(near[path[-1]] - set(path[-2:]))))
    ahead = [edges.get((b, a), np.inf) - edges.get((a, b), np.inf) for a, b in pairwise(path)]
    if sum(ahead) < 0:
        path = path[::-1]
    for e in path:
        forward.pop(e, None)
        backward.pop(e, None)
    for a, b in pairwise(path):
        forward[a], backward[b] = {b}, {a}


def find_forward_ways(sent: pl.DataFrame, host: Ints) -> set[tuple[int, int]]:
    """Pairs of hosts, sender first, between which activations pass where these follow each other faster than gradients.

    A backward pass takes about twice as long as a forward pass, so where each has the pipeline for itself its messages
    come half as often; where they alternate, both come as often and nothing is reported.
    """
    if sent.is_empty():
        return set()
    named = sent["stream"].to_numpy().astype(np.int64)
    stream, found = number_again(named, int(named.max(initial=-1)) + 1)
    gap = _find_short_gaps(sent["start_ns"].to_numpy(), stream, len(found), _SHORT)
    first = np.zeros(len(found), np.int64)
    first[stream[::-1]] = np.arange(len(stream) - 1, -1, -1)
    known = np.flatnonzero(~np.isnan(gap))
    src, dst, gap = (*(sent[c].to_numpy()[first[known]] for c in ("src", "dst")), gap[known])
    table = pl.DataFrame({"a": host[src], "b": host[dst], "gap": gap, "num": np.bincount(stream)[known]})
    # What the last stage hands back to the first may go the same way, half as often.
    main = table.filter(pl.col("num") >= _AS_OFTEN * pl.col("num").max().over("a", "b"))
    ways = main.group_by("a", "b").agg(pl.col("gap").median())
    spacing = {(int(a), int(b)): float(g) for a, b, g in ways.iter_rows()}
    return {(a, b) for (a, b), g in spacing.items() if _TWICE[0] * g < spacing.get((b, a), 0.0) < _TWICE[1] * g}


@kernel
def _find_short_gaps(start: Times, stream: Ints, count: int, share: float) -> NDArray[np.float64]:
    """The gap between messages of each stream at a quantile, the nearest of two; nan where it has a single message."""
    order, begin = group_by_number(stream, count)
    found = np.full(count, np.nan)
    for v in range(count):
        times = start[order[begin[v] : begin[v + 1]]]
        gaps = np.diff(times).astype(np.float64)
        if len(gaps) and gaps.min() < 0:
            gaps = np.diff(np.sort(times)).astype(np.float64)
        if len(gaps):
            found[v] = select_nth(gaps, int(share * (len(gaps) - 1) + 0.5))
    return found


def find_exchanging_ways(sent: pl.DataFrame, host: Ints) -> set[tuple[int, int]]:
    """Pairs of hosts, sender first, between which activations pass where these are exchanged for gradients in one call.

    Such a step begins with an activation that nothing comes back for, and ends with such a gradient. So a lone gradient
    is followed by a lone activation, and never the other way round.
    """
    src, dst = (host[sent[c].to_numpy()] for c in ("src", "dst"))
    stream, end = sent["stream"].to_numpy(), sent["end_ns"].to_numpy()
    order, begin = group_by_number(stream, int(stream.max(initial=0)) + 1)
    chosen: dict[tuple[int, int], int] = {}
    for v in np.flatnonzero(np.diff(begin)).tolist():  # the first stream of each way
        chosen.setdefault((int(src[order[begin[v]]]), int(dst[order[begin[v]]])), v)
    ends = {v: np.sort(end[order[begin[v] : begin[v + 1]]], kind="stable") for v in chosen.values()}
    found = set()
    for (a, b), v in chosen.items():
        if a > b or (b, a) not in chosen:
            continue
        turns = _count_turns(ends[v], ends[chosen[b, a]])
        if max(turns) > _MORE_TURNS * min(turns) + _FEW_TURNS:
            found.add((a, b) if turns[1] > turns[0] else (b, a))
    return found


def _count_turns(there: Ints, back: Ints) -> tuple[int, int]:
    """How often a lone message there is followed by a lone one back, and the other way round."""
    times = np.concatenate([there, back])
    order = np.argsort(times, kind="stable")
    gaps = np.diff(times[order])
    if len(gaps) < 2:
        return 0, 0
    is_back = order >= len(there)
    near = gaps < _AT_ONCE * float(np.median(np.diff(there))) if len(there) > 1 else gaps < 0
    met = near & (is_back[1:] != is_back[:-1])
    lone = ~(np.concatenate([met, [False]]) | np.concatenate([[False], met]))
    both = lone[1:] & lone[:-1]
    return int((both & is_back[1:] & ~is_back[:-1]).sum()), int((both & ~is_back[1:] & is_back[:-1]).sum())


def _first_sent(sent: pl.DataFrame, boundaries: Times) -> dict[tuple[int, int], float]:
    """For each directed pair, how long after the start of a step its first message usually leaves."""
    start = sent["start_ns"].to_numpy()
    step = np.searchsorted(boundaries, start, side="right") - 1
    inside = (step >= 0) & (step < len(boundaries) - 1) if len(boundaries) > 1 else np.zeros(len(start), np.bool_)
    if not inside.any():
        inside = np.ones(len(start), np.bool_)
        step = np.zeros(len(start), np.int64)
        boundaries = start.min(keepdims=True)
    own = np.flatnonzero(inside)
    src, dst = (sent[c].to_numpy()[own].astype(np.int64) for c in ("src", "dst"))
    most, num_steps = int(max(src.max(), dst.max())) + 1, int(step.max()) + 1
    cell, cells = number_keys((src * most + dst) * num_steps + step[own])
    first, _ = bound_groups(cell, len(cells), start[own] - boundaries[step[own]])
    ways, pair = np.unique(cells // num_steps, return_inverse=True)
    usual = median_groups(first.astype(np.float64), pair.astype(np.int64), len(ways))
    return {(way // most, way % most): at for way, at in zip(ways.tolist(), usual.tolist(), strict=True)}


def _number_stages(
    members: list[int],
    forward: dict[int, set[int]],
    backward: dict[int, set[int]],
    edges: dict[tuple[int, int], float],
) -> dict[int, int]:
    """Distance along forward links from where the pipeline begins."""
    roots = [e for e in members if e not in backward]
    if not roots:
        # Interleaved stages lead from the last back to the first: the pipeline begins with the first message of all.
        roots = [
            min(members, key=lambda e: min((edges.get((e, d), np.inf) for d in forward.get(e, ())), default=np.inf))
        ]
    stage = dict.fromkeys(roots, 0)
    here = roots
    while here:
        reached = []
        for e in here:
            for d in forward.get(e, ()):
                if d not in stage:
                    stage[d] = stage[e] + 1
                    reached.append(d)
        here = reached
    return {e: stage.get(e, 0) for e in members}


def _list_chains(
    stage: dict[int, int], forward: dict[int, set[int]], backward: dict[int, set[int]]
) -> tuple[tuple[int, ...], ...]:
    """From each endpoint that no earlier stage is seen to send to, along the links to the next stage."""
    chains = []
    for begin in sorted(stage):
        if any(stage[b] == stage[begin] - 1 for b in backward.get(begin, ())):
            continue
        chain = [begin]
        while True:
            onward = [d for d in sorted(forward.get(chain[-1], ())) if stage[d] == stage[chain[-1]] + 1]
            if not onward:
                break
            chain.append(onward[0])
        if len(chain) > 1:
            chains.append(tuple(chain))
    return tuple(chains)


def list_onward_streams(streams: pl.DataFrame, stages: StageMap, rank_key: str) -> pl.DataFrame:
    """What each rank sends to the next stage most of, with the stage it is `from`; all of a pipeline where none does.

    `rank_key` is the column that stands for a rank. What the last of interleaved stages hands back to the first may go
    the same way on connections of its own, half as often.
    """
    pipe = streams.filter(pl.col("kind") == "pp").sort("num", "stream", descending=[True, False])
    pipe = pipe.group_by(rank_key, maintain_order=True).first()
    src, dst = (pl.Series([stages.stage.get(e, -1) for e in pipe[c]], dtype=pl.Int64) for c in ("src", "dst"))
    pipe = pipe.with_columns(src.alias("from"))
    onward = pipe.filter(dst == src + 1)
    pipe = onward if onward.height else pipe
    return pipe.filter(pl.col("num") >= _AS_OFTEN * pl.col("num").max().over("src_host", "dst_host"))


def spread_over_nics(stages: StageMap, pipe: pl.DataFrame, pp: int, nics: pl.DataFrame) -> dict[int, int]:
    """The stage of each endpoint where a pipeline of `pp` stages has several on a host, which the network never sees.

    `pipe` are the streams of the pipeline, `nics` the job's endpoints with host_id, place (among the NICs of their host
    that the job may use) and places (how many these are). Ranks follow the order of NICs, so those of a host fall into
    one block per stage. A message enters a host by its receiver's NIC, whichever one it left by: activations by a NIC
    of the first block, gradients by one of the last.
    """
    hosts = max(stages.stage.values(), default=0) + 1
    if not stages.chains or pp <= hosts or pp % hosts:
        return stages.stage
    per_host = pp // hosts
    known = pl.DataFrame(
        {"endpoint": list(stages.stage), "at": list(stages.stage.values())},
        schema_overrides={"endpoint": nics.schema["endpoint"]},
    )
    at = (
        nics.join(known, on="endpoint")
        .group_by("host_id")
        .agg(pl.col("at").min(), pl.col("at").n_unique().alias("ats"))
    )
    placed = nics.filter(pl.col("places") >= per_host).join(at.filter(pl.col("ats") == 1), on="host_id")
    placed = placed.with_columns((pl.col("place") * per_host // pl.col("places")).alias("block"))
    block = dict(placed.select("endpoint", "block").iter_rows())
    entered: dict[bool, list[int]] = {True: [], False: []}
    for s, d in pipe.select("src", "dst").iter_rows():
        if d in block and s in stages.stage and stages.stage[s] != stages.stage[d]:
            entered[stages.stage[s] < stages.stage[d]].append(block[d])
    ahead, back = (
        np.mean(entered[way]) if entered[way] else default for way, default in ((True, 0), (False, per_host))
    )
    turned = per_host - 1 - pl.col("block") if ahead > back else pl.col("block")
    return dict(placed.select("endpoint", pl.col("at") * per_host + turned).iter_rows())
