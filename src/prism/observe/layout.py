"""Layout: stages from pipeline chains, groups from who talks collectively, degrees from both and from the hosts."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.records.layout import Degree, Group, Layout

Ints = NDArray[np.int64]

_TOGETHER = 0.002  # of a transfer's length: ends closer than this are one collective's
_LOCKSTEP = 0.15  # of the usual distance between ranks: closer ones act as one


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMap:
    """The pipeline stage of each endpoint, and the chains they form."""

    stage: dict[int, int]
    chains: tuple[tuple[int, ...], ...]  # endpoints of each chain in stage order
    confidence: float


def find_stages(voices: pl.DataFrame, messages: pl.DataFrame) -> StageMap:
    """Order the endpoints of each pipeline chain: the last stage answers a message at once, the first waits longest.

    `voices` carry `kind`; `messages` are the job's, with pair and start.
    """
    pipe = voices.filter(pl.col("kind") == "pp").select("pair", "size_class", "src", "dst")
    links: dict[int, set[int]] = {}
    for s, d in pipe.select("src", "dst").iter_rows():
        links.setdefault(s, set()).add(d)
        links.setdefault(d, set()).add(s)
    depth = _depth_in_flight(pipe, messages)
    stage: dict[int, int] = {}
    chains: list[tuple[int, ...]] = []
    sure = 0
    for members in _components(links):
        order, certain = _order_chain(members, links, depth)
        sure += certain
        chains.append(tuple(order))
        stage.update({e: i for i, e in enumerate(order)})
    return StageMap(stage=stage, chains=tuple(chains), confidence=sure / len(chains) if chains else 1.0)


def _depth_in_flight(pipe: pl.DataFrame, messages: pl.DataFrame) -> dict[tuple[int, int], float]:
    """For each directed pipeline pair: how far its messages run ahead of the answers, at most, in messages."""
    flow = messages.join(pipe, on=["pair", "size_class"], how="inner").sort("start_ns")
    if flow.is_empty():
        return {}
    low, high = pl.min_horizontal("src", "dst"), pl.max_horizontal("src", "dst")
    flow = flow.with_columns(low.alias("a"), high.alias("b"))
    flow = flow.with_columns(pl.when(pl.col("src") == pl.col("a")).then(1).otherwise(-1).alias("sign"))
    ahead = flow.with_columns(pl.col("sign").cum_sum().over("a", "b").alias("ahead"))
    spread = ahead.group_by("a", "b").agg(
        # A lost record shifts all that follow, so the swing is taken over short stretches.
        (pl.col("ahead").rolling_max(64, min_samples=1) - pl.col("ahead").rolling_min(64, min_samples=1))
        .median()
        .alias("swing"),
    )
    return {(a, b): float(s) for a, b, s in spread.iter_rows()}


def _order_chain(
    members: list[int], links: dict[int, set[int]], depth: dict[tuple[int, int], float]
) -> tuple[list[int], bool]:
    """Endpoints of one chain from first stage to last, and whether the direction is certain."""
    ends = [e for e in members if len(links[e]) == 1]
    begin = min(ends) if ends else min(members)
    order, seen, here = [begin], {begin}, begin
    while True:
        onward = sorted(links[here] - seen)
        if not onward:
            break
        here = onward[0]
        order.append(here)
        seen.add(here)
    order += sorted(set(members) - seen)
    swings = [depth.get((min(a, b), max(a, b)), 0.0) for a, b in pairwise(order)]
    if len(swings) >= 2 and swings[0] != swings[-1]:
        return (order if swings[0] > swings[-1] else order[::-1]), True
    return order, False


def orient_chains(stages: StageMap, firsts: dict[tuple[int, int], float]) -> StageMap:
    """Turn chains whose direction is not certain so that the first message of a step leaves the first stage."""
    chains = []
    for chain in stages.chains:
        forward = firsts.get((chain[0], chain[1]))
        backward = firsts.get((chain[-1], chain[-2]))
        turned = forward is not None and backward is not None and backward < forward
        chains.append(chain[::-1] if turned else chain)
    stage = {e: i for chain in chains for i, e in enumerate(chain)}
    return StageMap(stage=stage, chains=tuple(chains), confidence=stages.confidence)


def _components(links: dict[int, set[int]]) -> list[list[int]]:
    seen: set[int] = set()
    found = []
    for start in sorted(links):
        if start in seen:
            continue
        queue, members = deque([start]), []
        seen.add(start)
        while queue:
            here = queue.popleft()
            members.append(here)
            for there in links[here] - seen:
                seen.add(there)
                queue.append(there)
        found.append(members)
    return found


def relabel_ties(voices: pl.DataFrame, stages: StageMap) -> pl.DataFrame:
    """A collective between endpoints of different stages is not data parallel: it ties their embeddings."""
    if not stages.chains:
        return voices
    table = pl.DataFrame(
        {"e": list(stages.stage), "s": list(stages.stage.values())}, schema={"e": pl.UInt32, "s": pl.Int32}
    )
    joined = voices.join(table.rename({"e": "src", "s": "ss"}), on="src", how="left").join(
        table.rename({"e": "dst", "s": "ds"}), on="dst", how="left"
    )
    across = (pl.col("ss") != pl.col("ds")).fill_null(False)
    kind = pl.when((pl.col("kind") == "dp") & across).then(pl.lit("embedding")).otherwise(pl.col("kind"))
    return joined.with_columns(kind.alias("kind")).drop("ss", "ds")


def infer_layout(
    voices: pl.DataFrame, stages: StageMap, endpoints: pl.DataFrame, members: Ints, messages: pl.DataFrame
) -> Layout:
    """Degrees and groups of one job. `members` are its endpoints, `endpoints` the table with hosts and rails."""
    host = endpoints["host_id"].to_numpy()
    pp = Counter(len(c) for c in stages.chains).most_common(1)[0][0] if stages.chains else 1
    per_stage = max(1, round(len(members) / pp))
    inner, sure = _inner_size(voices, stages, host, messages)
    groups = _find_groups(voices, stages, host, inner)
    address = endpoints["address"].to_list()
    cp = _group_degree(groups, "cp")
    ep = _group_degree(groups, "ep")
    tp = max(1, inner // cp) if cp > 1 and inner % cp == 0 and _inside_host(groups, "cp", host) else inner
    dp = max(1, per_stage // (tp * cp))
    return Layout(
        dp=Degree(dp, sure),
        pp=Degree(pp, stages.confidence if pp > 1 else 0.95),
        tp=Degree(tp, sure),
        cp=Degree(cp, 0.9),
        ep=Degree(ep, 0.9),
        groups=tuple(
            Group(kind=kind, members=tuple(address[e] for e in sorted(m)), confidence=0.9) for kind, m in groups
        ),
        stages={address[e]: s for e, s in stages.stage.items()},
    )


def _group_degree(groups: list[tuple[str, frozenset[int]]], kind: str) -> int:
    sizes = [len(m) for k, m in groups if k == kind]
    return Counter(sizes).most_common(1)[0][0] if sizes else 1


def _inside_host(groups: list[tuple[str, frozenset[int]]], kind: str, host: Ints) -> bool:
    return all(len({int(host[e]) for e in m}) == 1 for k, m in groups if k == kind)


def _inner_size(
    voices: pl.DataFrame, stages: StageMap, host: Ints, messages: pl.DataFrame
) -> tuple[int, float]:  # fmt: skip
    """How many endpoints of a host act as one in every stage (tensor parallel), and how sure that is."""
    by_time = _lockstep_size(voices, stages, host, messages) if stages.chains else None
    bundles = bundle_rings(voices, messages, stages, host)
    by_ring = Counter(len(b) for b in bundles.values()).most_common(1)[0][0] if bundles else None
    if by_time is not None:
        return by_time, 0.97 if by_ring in (None, by_time) else 0.8
    if by_ring is not None:
        return by_ring, 0.9
    return 1, 0.5


def _lockstep_size(voices: pl.DataFrame, stages: StageMap, host: Ints, messages: pl.DataFrame) -> int | None:
    """Endpoints of one host and stage whose pipeline messages start at the same moments, as tensor-parallel ones do."""
    pipe = voices.filter(pl.col("kind") == "pp").select("pair", "size_class", "src", "dst")
    sent = messages.join(pipe, on=["pair", "size_class"], how="inner").sort("start_ns")
    # The n-th message of each endpoint to the next stage, and to the one before.
    ups = sent.with_columns(
        up=pl.Series(
            [stages.stage.get(d, 0) > stages.stage.get(s, 0) for s, d in sent.select("src", "dst").iter_rows()]
        )
    )
    lists = ups.group_by("src", "up").agg(pl.col("start_ns"))
    starts = {(e, up): np.asarray(t) for e, up, t in lists.iter_rows()}
    cells: dict[tuple[int, int], list[int]] = {}
    for e, s in stages.stage.items():
        cells.setdefault((int(host[e]), s), []).append(e)
    distances: list[tuple[int, int, float]] = []
    for members in cells.values():
        for i, a in enumerate(members):
            for b in members[i + 1 :]:
                gaps = [
                    np.median(np.abs(starts[a, up][:n] - starts[b, up][:n]))
                    for up in (True, False)
                    if (a, up) in starts
                    and (b, up) in starts
                    and (n := min(len(starts[a, up]), len(starts[b, up]))) > 2
                ]
                if gaps:
                    distances.append((a, b, float(max(gaps))))
    if not distances:
        return None
    values = np.array([d for _, _, d in distances])
    wide = float(np.quantile(values, 0.9))
    if wide <= 0:
        return None
    near = values < _LOCKSTEP * wide
    if near.all() or values.min() > 0.5 * wide:
        # Everyone alike: either all act as one or noise hides it; the rings decide.
        return None
    together: dict[int, set[int]] = {}
    for (a, b, _), close in zip(distances, near, strict=True):
        if close:
            together.setdefault(a, {a}).add(b)
            together.setdefault(b, {b}).add(a)
    sizes = Counter(len(together.get(e, {e})) for members in cells.values() if len(members) > 1 for e in members)
    return sizes.most_common(1)[0][0]


def bundle_rings(
    voices: pl.DataFrame, messages: pl.DataFrame, stages: StageMap, host: Ints
) -> dict[tuple[int, int], list[set[int]]]:
    """For each host and stage, the data-parallel rings that leave it, as sets of sending endpoints.

    Channels of one ring start and end together; rings of different groups do not.
    """
    rings = voices.filter((pl.col("kind") == "dp") & pl.col("role").is_in(["oneway", "exchange"]))
    if rings.is_empty():
        return {}
    largest = rings.sort("bytes", descending=True).group_by("src", "dst", maintain_order=True).first()
    sent = messages.join(largest.select("pair", "size_class", "src", "dst"), on=["pair", "size_class"]).sort("start_ns")
    times = {
        (s, d): (np.asarray(a), np.asarray(b))
        for s, d, a, b in sent.group_by("src", "dst").agg(pl.col("start_ns"), pl.col("end_ns")).iter_rows()
    }
    leaving: dict[tuple[int, int], dict[int, tuple[Ints, Ints]]] = {}
    for (s, _), both in times.items():
        leaving.setdefault((int(host[s]), stages.stage.get(s, 0)), {}).setdefault(s, both)
    return {place: _same_moments(senders) for place, senders in leaving.items()}


def _same_moments(senders: dict[int, tuple[Ints, Ints]]) -> list[set[int]]:
    bundles: list[tuple[set[int], Ints]] = []
    for e, (begin, end) in sorted(senders.items()):
        for members, ends in bundles:
            n = min(len(ends), len(end))
            if n and np.median(np.abs(ends[:n] - end[:n])) <= _TOGETHER * np.median(end[:n] - begin[:n]):
                members.add(e)
                break
        else:
            bundles.append(({e}, end))
    return [members for members, _ in bundles]


def _find_groups(voices: pl.DataFrame, stages: StageMap, host: Ints, inner: int) -> list[tuple[str, frozenset[int]]]:
    found: list[tuple[str, frozenset[int]]] = [("pp", frozenset(chain)) for chain in stages.chains]
    for kind in ("dp", "cp", "tp", "ep", "embedding"):
        links: dict[int, set[int]] = {}
        for s, d in voices.filter(pl.col("kind") == kind).select("src", "dst").iter_rows():
            links.setdefault(s, set()).add(d)
            links.setdefault(d, set()).add(s)
        found += [(kind, frozenset(m)) for m in _components(links)]
    return found
