"""Work: how long each rank computes, read where nothing else can hold it up.

In steady state a slow rank and its neighbours look alike, because a send waits for its receiver. But the first
micro-batch of a step finds every rank idle on its way there and on its way back, and so does the last one on its way
back: what passes between a message in and the message out is then compute alone. Ranks that only take part in
collectives are read by how late they come. Ranks that pass blocks of a sequence around a ring come together, whoever of
them is late: which one it is shows in how long blocks wait (`findings/residuals.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.parallelism.stages import StageMap
from prism.observe.traffic.medians import median_groups, quantile_groups
from prism.observe.traffic.numbering import bound_groups, number_again

WORK = pl.Schema({"endpoint": pl.UInt32, "stage": pl.Int32, "step": pl.Int32, "phase": pl.String, "work_ns": pl.Int64})

Ints = NDArray[np.int64]

_PART = {"endpoint": pl.UInt32, "step": pl.Int32, "phase": pl.String, "work_ns": pl.Int64}
_TIMES = ("start_ns", "end_ns")
_SIDES = ("src", "dst")
_MOST_LATE = levels.SHARE_MINOR  # share of the hosts that may be late in most steps; where more are, it is by design
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
    stage_of = np.full(max(size, max(stages.stage, default=-1) + 1), -1, np.int64)
    stage_of[list(stages.stage)] = list(stages.stage.values())
    inside = messages.lazy().filter(pl.col("step") >= 0)
    work = _work_in_pipeline(inside, stage_of, steps, stages.through) if stages.chains else pl.DataFrame(schema=_PART)
    if work.is_empty() and not (messages["kind"] == "cp").any():
        work = _work_before_collectives(inside, stage_of, host, steps)
    work = work.filter(pl.col("work_ns") > 0).group_by("endpoint", "step", "phase").agg(pl.col("work_ns").min())
    work = work.with_columns(pl.Series("stage", np.maximum(stage_of[work["endpoint"].to_numpy()], 0)))
    return work.select(pl.col(c).cast(t) for c, t in WORK.items()).sort("phase", "endpoint", "step")


def _work_in_pipeline(
    messages: pl.LazyFrame, stage_of: Ints, steps: pl.DataFrame, through: Mapping[int, int]
) -> pl.DataFrame:
    """First forward, turn at the last stage, backward of every rank and step.

    Stages that a host keeps to itself count as one rank, the one that the pipeline enters it by.
    """
    first, last = int(stage_of[stage_of >= 0].min()), int(stage_of.max())
    sent = _pipeline_messages(messages, stage_of, last)
    if through:
        sent = sent.with_columns(pl.col("src", "dst").replace(dict(through)))
    ins = {way: _edges(sent, "dst", way) for way in ("forward", "backward")}
    outs = {way: _edges(sent, "src", way) for way in ("forward", "backward")}
    began = outs["forward"].filter(_at_stage(outs["forward"], stage_of, first))
    begin = _since_last(messages, began, through, steps)
    passed = _between(ins["forward"], outs["forward"], "first")
    returned = pl.concat([_between(ins["backward"], outs["backward"], side) for side in ("first", "last")])
    passed = passed.filter(~_at_stage(passed, stage_of, first))
    turned = _turns(sent, outs["backward"], stage_of, last)
    # Where nothing passes the other stages, the step is cut elsewhere and what leaves the first stage is not its first.
    reached = pl.concat([passed, turned.select(passed.columns)]).filter(pl.col("work_ns") > 0).select("step").unique()
    begin = _lift(begin.join(reached, on="step", how="semi"), passed, turned)
    parts = [
        begin.with_columns(phase=pl.lit("forward")),
        passed.with_columns(phase=pl.lit("forward")),
        returned.with_columns(phase=pl.lit("backward")),
        turned.with_columns(phase=pl.lit("turn")),
    ]
    return pl.concat([p.select(list(_PART)) for p in parts])


def _since_last(
    messages: pl.LazyFrame, began: pl.DataFrame, through: Mapping[int, int], steps: pl.DataFrame
) -> pl.DataFrame:
    """How long before they send the first message of a step anything ended at ranks, or in the job before the step.

    A step may be cut anywhere in a silence or before the last thing ends, and hosts hide much of what ends at a rank.
    """
    ends = [messages.select(pl.col(side).replace(dict(through)).alias("endpoint"), ready="end_ns") for side in _SIDES]
    own = pl.concat(ends).filter(pl.col("endpoint").is_in(began["endpoint"].unique().implode())).sort("ready")
    both = (
        began.lazy()
        .sort("first")
        .join_asof(own, left_on="first", right_on="ready", by="endpoint", check_sortedness=False)
    )
    every = messages.select(over="end_ns").sort("over")
    cuts = steps.lazy().select(pl.col("index").cast(pl.Int32).alias("step"), cut="start_ns").sort("cut")
    before = cuts.join_asof(every, left_on="cut", right_on="over").select("step", "over")
    ready = pl.max_horizontal("ready", "over")
    return (
        both.join(before, on="step").select("endpoint", "step", work_ns=pl.col("first") - ready).drop_nulls().collect()
    )


def _lift(begin: pl.DataFrame, passed: pl.DataFrame, turned: pl.DataFrame) -> pl.DataFrame:
    """The first stage's work; where a step seems to start with its first message, a usual forward is added to it."""
    forward = passed["work_ns"].median() if passed.height else None
    if forward is None and turned.height:
        forward = float(turned["work_ns"].median()) / 3  # type: ignore[arg-type]  # a backward is twice a forward
    own = begin["work_ns"].median() if begin.height else None
    if forward is None or own is None or float(own) >= 0.5 * float(forward):  # type: ignore[arg-type]
        return begin
    return begin.with_columns(pl.col("work_ns") + round(float(forward) - float(own)))  # type: ignore[arg-type]


def _pipeline_messages(messages: pl.LazyFrame, stage_of: Ints, last: int) -> pl.DataFrame:
    """src dst step place start_ns end_ns forward: messages between neighbouring stages.

    The last and the first are neighbours where stages hold several pieces of the model.
    """
    sent = messages.filter(pl.col("kind") == "pp").select("src", "dst", "step", "place", *_TIMES).collect()
    a, b = stage_of[sent["src"].to_numpy()], stage_of[sent["dst"].to_numpy()]
    hop = b - a
    wrap = last > 1
    forward = (hop == 1) | (wrap & (hop == -last))
    back = (hop == -1) | (wrap & (hop == last))
    return sent.with_columns(pl.Series("forward", forward)).filter(pl.Series((forward | back) & (a >= 0) & (b >= 0)))


def _edges(sent: pl.DataFrame, side: str, way: str) -> pl.DataFrame:
    """First and last message of each endpoint and step on one side: when it arrived, or when it left."""
    own = sent.filter(pl.col("forward") == (way == "forward"))
    at = own["end_ns" if side == "dst" else "start_ns"].to_numpy()
    num_steps = int(own["step"].max() or 0) + 1  # type: ignore[arg-type]
    cell, found = _number_cells(own, side, num_steps)
    first, last = bound_groups(cell, len(found), at)
    return _name_cells(found, num_steps).with_columns(pl.Series("first", first), pl.Series("last", last))


def _number_cells(sent: pl.DataFrame, side: str, num_steps: int) -> tuple[Ints, Ints]:
    """A number for the endpoint at one side and the step of each message, and what each number stands for."""
    cell = sent[side].to_numpy().astype(np.int64) * num_steps + sent["step"].to_numpy()
    return number_again(cell, int(cell.max(initial=-1)) + 1)  # type: ignore[no-any-return]


def _name_cells(found: Ints, num_steps: int) -> pl.DataFrame:
    """The endpoint and step of cells."""
    columns = {"endpoint": (found // num_steps).astype(np.uint32), "step": (found % num_steps).astype(np.int32)}
    return pl.DataFrame(columns)


def _between(arrived: pl.DataFrame, left: pl.DataFrame, side: str) -> pl.DataFrame:
    both = arrived.join(left, on=["endpoint", "step"], suffix="_out")
    return both.select("endpoint", "step", work_ns=pl.col(f"{side}_out") - pl.col(side))


def _turns(sent: pl.DataFrame, out: pl.DataFrame, stage_of: Ints, last: int) -> pl.DataFrame:
    """At the last stage: from a message in to the first answer, a forward and a backward.

    Where many messages come in before the first answer, all forwards are done before any backward: the last counts.
    """
    answer = out.filter(_at_stage(out, stage_of, last)).select("endpoint", "step", "first")
    own = sent.filter(_at_stage(sent.select(endpoint="dst"), stage_of, last))
    num_steps = int(own["step"].max() or 0) + 1  # type: ignore[arg-type]
    cell, found = _number_cells(own, "dst", num_steps)
    cells = _name_cells(found, num_steps).join(answer, on=["endpoint", "step"], how="left", maintain_order="left")
    arrived, answered = own["end_ns"].to_numpy(), cells["first"].fill_null(-(2**62)).to_numpy()[cell]
    asked = np.flatnonzero((arrived <= answered) & ~_wait_for_receiver(own, answered))
    earliest, latest = bound_groups(cell[asked], len(found), arrived[asked])
    num = np.bincount(cell[asked], minlength=len(found))
    begin = pl.Series(np.where(num <= 2, earliest, latest))
    return cells.with_columns(work_ns=pl.col("first") - begin).drop("first").filter(pl.Series(num > 0))


def _wait_for_receiver(own: pl.DataFrame, answered: Ints) -> NDArray[np.bool_]:
    """Messages of places in a step that usually end with the answer: their receiver takes them when it turns to it.

    One such may seem to end long before where its last packets were not seen.
    """
    place = own["place"].to_numpy().astype(np.int64)
    num = int(place.max(initial=-1)) + 1
    took = quantile_groups((own["end_ns"] - own["start_ns"]).to_numpy().astype(np.float64), place, num, _LONG)
    left = median_groups((answered - own["end_ns"].to_numpy()).astype(np.float64), place, num)
    return np.asarray((left < _WAITED * took)[place], np.bool_)


def _at_stage(frame: pl.DataFrame, stage_of: Ints, stage: int) -> pl.Series:
    return pl.Series(stage_of[frame["endpoint"].to_numpy()] == stage)


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

    Where a hop starts as soon as its two ends have come, the hops into and out of a late rank start late; where the
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
        return pl.DataFrame(schema=_PART)  # Groups that start at different times by design say nothing of a rank.
    out = first.group_by(pl.col("src").alias("endpoint"), "step").agg(pl.col("late").median())
    into = first.group_by(pl.col("dst").alias("endpoint"), "step").agg(pl.col("late").median().alias("late_in"))
    both = out.join(into, on=["endpoint", "step"], how="left")
    late = pl.col("late") + 0.5 * pl.col("late_in").fill_null(0.0) + _BEFORE * length
    return both.select("endpoint", "step", pl.lit("start").alias("phase"), late.round().cast(pl.Int64).alias("work_ns"))
