"""A slow link within a collective: its hops end last, the others as far ahead of them as the algorithm allows.

In a ring of N ranks the k-th chunk of a hop D ranks behind the slow one was the (k - D)-th there, so that hop ends D
chunks before the slow one. In the other direction, a hop u ranks before the slow one is ahead by what the buffers of
the ranks in between hold: two chunks each (NCCL: 8 slots per connection, 4 to a chunk). In an all-to-all every pair is
independent. In trees each hop waits for the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from prism.lab.scenarios.planted import Planted
from prism.lab.scenarios.timeline import JobPlan, JobRun
from prism.simulate.solving.slowdowns import Slowdown

_CHUNK_BYTES = 4 << 20  # of a NIC: NCCL's 4 MiB buffer holds two chunks, and a NIC serves about two channels
_BUFFERED = 2  # chunks that a rank holds


def end_hops_apart(run: JobRun, planted: Sequence[Planted]) -> JobRun:
    """The run with the changed ends of the hops of collectives that a network fault slowed."""
    for p in planted:
        slow = run.plan.index in p.disturbances and p.slow_hops.get(run.plan.index)
        if slow:
            windows = [s for s in p.disturbances[run.plan.index].slowdowns if s.target == "group"]
            run = _end_apart(run, frozenset(slow), windows)
    return run


def _end_apart(run: JobRun, slow: frozenset[int], windows: Sequence[Slowdown]) -> JobRun:
    plan = run.plan
    groups = plan.connections["group"].to_numpy()[run.connection]
    collective = ~plan.connections["kind"].cast(pl.String).is_in(["pp", "cp"]).to_numpy()[run.connection]
    begin, end = min(w.start_ns for w in windows), max(w.end_ns for w in windows)
    touched = collective & np.isin(groups, [w.id for w in windows]) & (run.end_ns > begin) & (run.start_ns < end)
    at = np.flatnonzero(touched)
    if not len(at):
        return run
    hops = pl.DataFrame(
        {"at": at, "connection": run.connection[at], "group": groups[at], "start": run.start_ns[at],
         "end": run.end_ns[at], "bytes": run.bytes[at]}
    )  # fmt: skip
    # All hops of one call of a group end at the same nanosecond.
    calls = hops.group_by("group", "end").agg(
        pl.col("start").max().alias("ready"), pl.col("connection").unique().sort().alias("shape")
    )
    calls = calls.filter(_is_slowed(calls, windows))
    shapes = calls.select("group", "shape").unique().with_row_index("number")
    leads = [_leads(plan, group, shape, slow) for group, shape in shapes.select("group", "shape").iter_rows()]
    table = shapes.select("number").with_columns(pl.Series("lead", leads, pl.List(_LEAD))).explode("lead")
    table = table.filter(pl.col("lead").is_not_null()).unnest("lead")
    if table.is_empty():
        return run
    found = hops.join(calls.join(shapes, on=["group", "shape"]).drop("shape"), on=["group", "end"])
    found = found.join(table, on=["number", "connection"])
    took = pl.col("end") - pl.col("ready")
    chunks = pl.max_horizontal("chunks", pl.col("bytes") / _CHUNK_BYTES)
    speed = max(w.speed for w in windows)
    ahead = (took * pl.min_horizontal(pl.col("lead") / chunks, 1 - speed)).round().cast(pl.Int64)
    ends = run.end_ns.copy()
    moved = found.select("at", ended=pl.max_horizontal(pl.col("end") - ahead, pl.col("start") + 1))
    ends[moved["at"].to_numpy()] = moved["ended"].to_numpy()
    return replace(run, end_ns=ends)


_LEAD = pl.Struct({"connection": pl.Int32, "lead": pl.Float64, "chunks": pl.Float64})


def _is_slowed(calls: pl.DataFrame, windows: Sequence[Slowdown]) -> pl.Series:
    """Which calls were mostly inside a window."""
    ready, end = calls["ready"].to_numpy(), calls["end"].to_numpy()
    inside = np.zeros(len(ready), np.int64)
    for begin, finish in {(w.start_ns, w.end_ns) for w in windows}:
        inside += np.clip(np.minimum(end, finish) - np.maximum(ready, begin), 0, None)
    return pl.Series(inside > 0.5 * (end - ready))


def _leads(plan: JobPlan, group: int, shape: list[int], slow: frozenset[int]) -> list[dict[str, float]]:
    """How many chunks each hop of a call is ahead of the slow ones, and of how many; none for hops that wait."""
    own = plan.connections.filter(pl.col("connection").is_in(shape))
    if not slow & set(shape):
        return []
    if own["kind"][0] == "ep":
        return [{"connection": c, "lead": 1.0, "chunks": 1.0} for c in shape if c not in slow]
    onward = dict(own.select("src", "dst").iter_rows())
    if len(onward) < own.height or set(onward) != set(onward.values()):
        return []  # not a ring: a host sends to several others
    num_ranks = plan.graph.groups.filter(pl.col("group") == group).height
    by_ends = {(s, d): c for c, s, d in own.select("connection", "src", "dst").iter_rows()}
    found = []
    for (src, dst), connection in by_ends.items():
        if connection in slow:
            continue
        ring, node = [(src, dst)], dst
        while node != src:
            ring.append((node, onward[node]))
            node = onward[node]
        places = [i for i, ends in enumerate(ring) if by_ends[ends] in slow]
        if not places:
            continue  # another lane's
        each = max(1, num_ranks // len(ring))  # ranks of a host
        lead = each * min(_BUFFERED * places[0], len(ring) - places[-1])
        found.append({"connection": connection, "lead": float(lead), "chunks": 2.0 * max(num_ranks - 1, 1)})
    return found
