"""Rings: those that look like pipelines, and those of which a part is not in the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob, list_parts
from prism.observe.traffic.table import Traffic
from prism.records.layout import Layout

Ints = NDArray[np.int64]
Links = dict[tuple[int, int], float]

_HEAVY = levels.SHARE_SMALL  # of the bytes of the heaviest pair: lighter ones carry what is sent now and then
_ALIKE = levels.ONE_PERCENT  # by which the hops of a ring differ in bytes, also where the job is killed in a step
_RING = levels.MIN_SAMPLES  # hosts
_MESH = levels.MIN_TWO  # hosts that are connected with all others


def turn_rings(traffic: Traffic, job: ObservedJob, streams: pl.DataFrame) -> pl.DataFrame:
    """The streams; hops of a pipeline that form a ring carry gradients or shards.

    What the last stage of a pipeline hands back to the first is less than what its other hops carry.
    """
    if traffic.sample_bytes or not (streams["kind"] == "pp").any():
        return streams
    ways = streams.select("src_host", "dst_host")
    kinds = ways.with_columns(piped=streams["kind"] == "pp").group_by("src_host", "dst_host").agg(pl.col("piped").any())
    piped = set(kinds.filter("piped").select("src_host", "dst_host").iter_rows())
    rings = [ring for ring in list_rings(_weigh(traffic, job.pairs)) if not piped.isdisjoint(ring)]
    hops = pl.DataFrame(list({hop for ring in rings for hop in ring}), schema=ways.schema, orient="row")
    own = ways.join(hops.with_columns(ring=True), on=ways.columns, how="left", maintain_order="left")["ring"]
    turned = own.fill_null(False) & (streams["role"] != "rare")
    return streams.with_columns(
        pl.when(turned).then(pl.lit("exchange")).otherwise("role").alias("role"),
        pl.when(turned).then(pl.lit("dp")).otherwise("kind").alias("kind"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What the records of a job lack: hosts that belong to it as well, and hops of its own."""

    hosts: tuple[int, ...] = ()
    hops: bool = False

    def judge(self, traffic: Traffic, layout: Layout) -> tuple[Layout, tuple[str, ...]]:
        """The layout, which is uncertain unless all hosts are seen and are replicas, and why."""
        ranks = np.prod([getattr(layout, name).value or 0 for name in ("dp", "pp", "tp", "cp")])
        if not (self.hosts or (self.hops and layout.dp.value != ranks)):
            return layout, ()
        names = ", ".join(traffic.endpoints["address"].gather(list(self.hosts)))
        others = f"; {names} may belong to it, too" if names else ""
        return layout.cap(levels.SHARE_HALF), (f"how it is laid out is uncertain: some hops have no records{others}",)


def find_unseen(traffic: Traffic, job: ObservedJob) -> Unseen:
    """Which hosts and hops of a job are not in the records, as where one switch exports and another does not.

    Ranks of one job are all connected, if only by a few bytes. Where some are connected with all others and the rest
    not with each other, what the rest sends each other is not recorded. What is connected with the former only is
    another such host.
    """
    src, dst, size = (traffic.pairs[c].to_numpy().astype(np.int64) for c in ("src", "dst", "bytes"))
    # Storage is sent as many bytes as ranks are.
    light = job.storage_pairs[size[job.storage_pairs] < _HEAVY * size[job.pairs].max(initial=0)]
    own = np.concatenate([job.pairs, light])
    near = _neighbours(zip(src[own].tolist(), dst[own].tolist(), strict=True))
    members = set(job.endpoints.tolist())
    reached = Counter(e for member in members for e in near[member])
    every = members | {e for e, num in reached.items() if num >= _MESH}
    known = {e for e in members if near[e] >= every - {e}}
    rest = np.array(sorted(every - known), np.int64)
    if len(known) < _MESH or len(rest) < _MESH or members.isdisjoint(rest.tolist()):
        return Unseen()
    if (np.isin(src, rest) & np.isin(dst, rest)).any():
        return Unseen()
    return Unseen(hosts=tuple(sorted(set(rest.tolist()) - members)), hops=True)


def _weigh(traffic: Traffic, pairs: Ints) -> Links:
    """The bytes that hosts send to each other, for those that send many."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    links: Links = {}
    for src, dst, size in zip(*(traffic.pairs[c].to_numpy()[pairs] for c in ("src", "dst", "bytes")), strict=True):
        way = (int(host[src]), int(host[dst]))
        links[way] = links.get(way, 0.0) + float(size)
    least = _HEAVY * max(links.values(), default=0.0)
    return {way: size for way, size in links.items() if size >= least}


def list_rings(links: Links) -> list[set[tuple[int, int]]]:
    """Hops that carry as much as each other and connect each of three hosts or more with two others."""
    ways = sorted(links, key=lambda way: links[way])
    size = np.array([links[way] for way in ways])
    cut = np.flatnonzero(np.diff(size) > _ALIKE * size[1:]) + 1
    rings = []
    for alike in np.split(np.array(ways, np.int64).reshape(-1, 2), cut):
        near = _neighbours(alike.tolist())
        for part in list_parts(*alike.T):
            hosts = set(part.tolist())
            if len(hosts) >= _RING and all(len(near[e]) == 2 for e in hosts):
                rings.append({(a, b) for a, b in alike.tolist() if a in hosts})
    return rings


def _neighbours(links: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    near: dict[int, set[int]] = {}
    for a, b in links:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    return near
