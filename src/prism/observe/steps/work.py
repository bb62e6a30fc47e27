"""Work: how long each rank computes, measured where nothing else can hold it up.

In steady state a slow rank and its neighbours look alike, because a send waits for its receiver. But the first
micro-batch of a step finds every rank idle on its way there and on its way back, and so does the last one on its way
back: the time between the incoming and the outgoing message is then compute alone. Ranks that only take part in
collectives are measured by how late they arrive. Ranks that pass blocks of a sequence around a ring arrive together,
whichever of them is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.parallelism.stages import StageMap
from prism.observe.traffic.medians import median_groups, quantile_groups, take_median
from prism.observe.traffic.numbering import bound_groups

WORK = pl.Schema({"endpoint": pl.UInt32, "stage": pl.Int32, "step": pl.Int32, "phase": pl.String, "work_ns": pl.Int64})

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST_LATE = levels.SHARE_MINOR  # share of the hosts that may be late in most steps; where more are, it is by design
_NEVER = 2**62  # the time of what was not seen
_LONG = levels.SHARE_NEARLY_ALL  # quantile: sampled packets make a message look shorter
_WAITED = levels.SHARE_HALF  # of what a message takes: one that ends so close before an answer is not what is answered
# Of a step: lateness is weighed against this much work, where what a rank did before is not seen.
_BEFORE = levels.SHARE_MINOR


def measure_work(messages: pl.DataFrame, stages: StageMap, host: Ints, steps: pl.DataFrame) -> pl.DataFrame:
    """WORK of every rank and step: in a pipeline, else before collectives, unless ranks pass blocks of sequences.

    `messages` carry src, dst, kind, the index of their step, -1 outside all steps, and their place in it. `host` is the
    number of the host of each endpoint.
    """
    if steps.is_empty() or messages.is_empty():
        return pl.DataFrame(schema=WORK)
    size = int(max(messages["src"].max(), messages["dst"].max())) + 1  # type: ignore[type-var, arg-type]
    stage_of = stages.tabulate(size)
    work = _work_in_pipeline(messages, stage_of, steps, stages.through) if stages.chains else pl.DataFrame()
    if work.is_empty() and not (messages["kind"] == "cp").any():
        work = _work_before_collectives(messages.lazy().filter(pl.col("step") >= 0), stage_of, host, steps)
    if work.is_empty():
        return pl.DataFrame(schema=WORK)
    work = work.filter(pl.col("work_ns") > 0)
    work = work.with_columns(pl.Series("stage", np.maximum(stage_of[work["endpoint"].to_numpy()], 0)))
    return work.select(pl.col(c).cast(t) for c, t in WORK.items()).sort("phase", "endpoint", "step")


def _work_in_pipeline(
    messages: pl.DataFrame, stage_of: Ints, steps: pl.DataFrame, through: Mapping[int, int]
) -> pl.DataFrame:
    """First forward, turn at the last stage, backward of every rank and step; none is above zero where it is hidden.

    Stages that a host keeps to itself count as one rank, the one that the pipeline enters it by. The last stage and the
    first are neighbours where stages hold several pieces of the model.
    """
    inside = np.flatnonzero(messages["step"].to_numpy() >= 0)
    if not len(inside):
        return pl.DataFrame()
    src, dst, step, place, start, end = (
        messages[c].to_numpy()[inside].astype(np.int64) for c in ("src", "dst", "step", "place", "start_ns", "end_ns")
    )
    origin = int(start.min())
    start, end = start - origin, end - origin
    first, last = int(stage_of[stage_of >= 0].min()), int(stage_of.max())
    hop, wrap = stage_of[dst] - stage_of[src], last > 1
    known = (stage_of[src] >= 0) & (stage_of[dst] >= 0) & (messages["kind"] == "pp").to_numpy()[inside]
    onward = np.flatnonzero(known & ((hop == 1) | (wrap & (hop == -last))))
    back = np.flatnonzero(known & ((hop == -1) | (wrap & (hop == last))))
    entered_by = np.arange(len(stage_of))
    entered_by[list(through)] = list(through.values())
    src, dst = entered_by[src], entered_by[dst]
    ranks = np.flatnonzero(np.bincount(np.concatenate([src, dst])))
    row = np.zeros(len(stage_of), np.int64)
    row[ranks] = np.arange(len(ranks))
    src, dst, stage, shape = row[src], row[dst], stage_of[ranks], (len(ranks), steps.height)

    def bound(way: Ints, side: Ints, at: Ints) -> Floats:
        """When the first and the last message of each rank and step come in, or leave."""
        found = np.stack(bound_groups(side[way] * shape[1] + step[way], shape[0] * shape[1], at[way]))
        return np.where(np.abs(found) == _NEVER, np.nan, found).reshape(2, *shape)

    sent, answered = bound(onward, src, start), bound(back, src, start)
    passed, returned = (sent - bound(onward, dst, end))[0], answered - bound(back, dst, end)
    passed[stage == first] = np.nan
    asked = np.concatenate([onward, back])
    asked = asked[stage[dst[asked]] == last]
    cell = dst[asked] * shape[1] + step[asked]
    turned = _turn(answered[0].ravel(), cell, place[asked], start[asked], end[asked]).reshape(shape)
    begin = np.where((stage == first)[:, None], sent[0], np.nan)
    cut = steps["start_ns"].to_numpy() - origin
    over = find_over(end, cut)
    begin -= _find_ready(begin, np.concatenate([src, dst]), end, over)
    paused = find_pauses((cut - over).clip(0), float(np.median(steps["end_ns"].to_numpy() - origin - cut)))
    begin -= np.where(begin > paused, paused, 0.0)
    # Where nothing passes the other stages, the step is cut elsewhere and what leaves the first stage is not its first.
    begin[:, ~((passed > 0) | (turned > 0)).any(axis=0)] = np.nan
    # Where a step seems to start with its first message, a usual forward is added; a backward is twice a forward.
    own, usual, turn = (float(take_median(table[~np.isnan(table)])) for table in (begin, passed, turned))
    usual = turn / 3 if np.isnan(usual) else usual
    begin += round(usual - own) if own < 0.5 * usual else 0
    least = np.fmin(*np.where(returned <= 0, np.inf, returned))
    phases = {
        "backward": np.where(np.isinf(least), 0.0, least),
        "forward": np.where((stage == first)[:, None], begin, passed),
        "turn": turned,
    }
    parts = []
    for phase, table in phases.items():
        at, when = np.nonzero(~np.isnan(table))
        seen = pl.DataFrame({"endpoint": ranks[at], "step": when, "work_ns": table[at, when].astype(np.int64)})
        parts.append(seen.with_columns(phase=pl.lit(phase)))
    return pl.concat(parts)


def find_pauses(silent: Floats, step: float) -> Floats:
    """How much longer silences around steps are than usual (a checkpoint, an evaluation); nan if unknown."""
    known = silent[~np.isnan(silent)]
    usual = float(np.median(known)) if len(known) else 0.0
    return np.where(silent > usual + max(0.05 * step, 0.5 * usual), silent - usual, 0.0)


def find_over(end: Ints, cut: Ints) -> Floats:
    """When the last message of the job before each step ended; nan for none."""
    over = np.maximum.accumulate(bound_groups(np.searchsorted(cut, end), len(cut) + 1, end)[1][:-1])
    return np.where(over == -_NEVER, np.nan, over)


def _find_ready(begin: Floats, rank: Ints, end: Ints, over: Floats) -> Floats:
    """When anything last ended at ranks before they begin a step, or in the job before the step; nan for never.

    `begin` is by rank and step, `rank` are the senders of messages and then their receivers. A step may be cut anywhere
    in a silence or before the last thing ends, and hosts hide much of what ends at a rank.
    """
    ready = np.tile(over, (len(begin), 1))
    row, at = np.nonzero(~np.isnan(begin))
    own = np.flatnonzero(np.bincount(row, minlength=len(begin))[rank])
    if len(row):
        span = int(end.max()) + 1  # One rank after the other on one line of time.
        done = np.sort(rank[own] * span + end[own % len(end)], kind="stable")
        wanted = row * span + begin[row, at].astype(np.int64)
        last = done[np.maximum(np.searchsorted(done, wanted, side="right") - 1, 0)] - row * span
        ready[row, at] = np.fmax(ready[row, at], np.where((last >= 0) & (last <= begin[row, at]), last, np.nan))
    return ready


def _turn(answered: Floats, cell: Ints, place: Ints, start: Ints, end: Ints) -> Floats:
    """At the last stage: from a message in to the first answer, a forward and a backward; by cell, nan for none.

    `cell` is the rank and step of each message in. Where many come in before the first answer, all forwards are done
    before any backward: the last counts. A message at a place in a step where it usually ends with the answer waits
    until its receiver turns to it; one such may seem to end long before where its last packets were not seen.
    """
    num = int(place.max(initial=-1)) + 1
    answer = np.nan_to_num(answered, nan=-np.inf)[cell]
    took = quantile_groups((end - start).astype(np.float64), place, num, _LONG)
    left = median_groups(answer - end, place, num)
    asked = np.flatnonzero((end <= answer) & ~(left < _WAITED * took)[place])
    earliest, latest = bound_groups(cell[asked], len(answered), end[asked])
    count = np.bincount(cell[asked], minlength=len(answered))
    return np.where(count > 0, answered - np.where(count <= 2, earliest, latest), np.nan)


def _count_late_hosts(host: Ints, hops: pl.DataFrame) -> int:
    """How many hosts must be late, at least, for all these hops to be: one late host delays its hops in and out."""
    left = {(int(host[s]), int(host[d])) for s, d in hops.select("src", "dst").iter_rows()}
    num = 0
    while left:
        worst = Counter(end for hop in left for end in set(hop)).most_common(1)[0][0]
        left = {hop for hop in left if worst not in hop}
        num += 1
    return num


def _work_before_collectives(messages: pl.LazyFrame, stage_of: Ints, host: Ints, steps: pl.DataFrame) -> pl.DataFrame:
    """How late each rank sends for the first time in a step, and half of how late it is first sent to.

    Where a hop starts as soon as its two ends have arrived, the hops into and out of a late rank start late; where the
    sender alone decides, only those out of it do. Either way it scores highest.
    """
    length = float((steps["end_ns"] - steps["start_ns"]).median())  # type: ignore[arg-type]
    like = (pl.col("bytes").log1p() * 20).round().alias("like")
    first = messages.filter(pl.col("place") == 0).select("src", "dst", "step", "start_ns", "bytes", "kind").collect()
    first = first.with_columns(like, pl.Series("stage", stage_of[first["src"].to_numpy()]))
    # Only what nearly every rank sends can be compared.
    common = first.group_by("kind", "like").agg(pl.col("src").n_unique().alias("num"))
    common = common.sort("num", "like", descending=True).head(1)
    first = first.join(common.select("kind", "like"), on=["kind", "like"], how="semi")
    late = pl.col("start_ns") - pl.col("start_ns").quantile(0.25, "lower").over("step", "stage")
    first = first.with_columns(late.clip(lower_bound=0).alias("late"))
    often = first.group_by("src", "dst").agg((pl.col("late") > 0.01 * length).mean().alias("share"))
    hops = often.filter(pl.col("share") > 0.5)
    if first.is_empty() or _count_late_hosts(host, hops) > _MOST_LATE * len(np.unique(host[first["src"].to_numpy()])):
        return pl.DataFrame()  # Groups that start at different times by design say nothing about a rank.
    out = first.group_by(pl.col("src").alias("endpoint"), "step").agg(pl.col("late").median())
    into = first.group_by(pl.col("dst").alias("endpoint"), "step").agg(pl.col("late").median().alias("late_in"))
    both = out.join(into, on=["endpoint", "step"], how="left")
    late = pl.col("late") + 0.5 * pl.col("late_in").fill_null(0.0) + _BEFORE * length
    return both.select("endpoint", "step", pl.lit("start").alias("phase"), late.round().cast(pl.Int64).alias("work_ns"))
