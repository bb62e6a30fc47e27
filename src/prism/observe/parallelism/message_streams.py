"""Streams: what one pair sends over one connection in messages of one size, and its pattern in every step."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.jobs.grouping import SKEW_NS, ObservedJob, choose_some
from prism.observe.parallelism.exchanges import with_exchanges
from prism.observe.traffic.medians import interpolate_quantile, take_median
from prism.observe.traffic.numbering import nearest
from prism.observe.traffic.table import Traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Relative difference up to which the two directions of a pair carry the same tensor.
_SAME_SIZE = levels.SIZE_DIFFERENCE
_ASKED = levels.SAMPLED_GROUPS  # streams of a family whose answers are examined
_UNHURRIED = levels.SHARE_SMALL  # of a stream's messages take no longer than the transfer itself
_FLOOR_NS = levels.CLOCK_TOLERANCE_NS
_ASKED_MESSAGES = levels.SAMPLED_MESSAGES  # of each
_LIVES = (
    levels.SHARE_SMALL,
    levels.SHARE_LARGE,
)  # of the steps that a connection lasts, at least and at most, where a job was started again
_AS_OFTEN = levels.SHARE_LARGE  # of a stream's messages that come back
_COUNTED = levels.SAMPLED_MESSAGES  # messages of a stream whose number shows how many are missing
_MOST_LOST = levels.SHARE_MINOR  # share of the records; more is a difference by design
_FAR_MORE = levels.RATIO_FAR  # times the variance that sampling makes
_CHANCE = levels.SIGMAS_UNLIKELY  # deviations by which an estimated spread may exceed that of sampling
_RUNS = levels.SHARE_HALF  # of the changes of size are left out: far fewer begin a run


def find_message_streams(traffic: Traffic, job: ObservedJob) -> pl.DataFrame:
    """One row per stream of a job: how often it sends per step, how large, and whether it is answered.

    Columns: stream pair connection src dst src_host dst_host bytes spread num first_ns duration_ns per_step
    presence longest_gap overlap together answered family unit. `answered` is whether messages of one size come back
    between the two hosts as often, `together` the share of messages that one comes back with at the same time; both
    are measured on a few streams of each family, those of equal rate and size. `longest_gap` is a share of the period;
    `unit` is the connection, where connections are distinguished, else the stream.
    """
    frame = _measure(traffic, job)
    frame = frame.with_columns(
        family=pl.struct(
            (pl.col("per_step").clip(1e-3).log(2.0) * 2).round().cast(pl.Int32),
            (pl.col("bytes").clip(1.0).log() / 0.1).round().cast(pl.Int32),
        ).rank("dense")
    )
    frame = frame.with_columns(pl.col("spread").median().over("family"))  # Ranks behave alike.
    answers = _find_answers(traffic, frame, estimate_loss(frame))
    unit = pl.col("connection") if traffic.connected else pl.col("stream")
    frame = frame.with_columns(unit.cast(pl.Int64).alias("unit"))
    return with_exchanges(traffic, frame.join(answers, on="family", how="left", maintain_order="left"))


def find_rows(streams: pl.DataFrame, wanted: pl.Series) -> Ints:
    """The row of each wanted stream, -1 where it is not among these."""
    number = streams["stream"].to_numpy()
    row = np.full(int(max(number.max(initial=0), wanted.max() or 0)) + 1, -1, np.int64)
    row[number] = np.arange(len(number))
    rows: Ints = row[wanted.to_numpy()]
    return rows


def estimate_loss(streams: pl.DataFrame) -> float:
    """The share of a job's records that are missing, by how much the counts of similar streams scatter.

    Ranks of one host do alike and send equally many messages; another host may be of another stage. Of records that are
    lost at random, the variance of what is left over its mean is the share that is lost. Streams that differ by design
    scatter by far more, or many send equally much: where a capture ends, a stage has sent more of a step than another.
    """
    often = streams.filter(pl.col("num") >= _COUNTED)
    num, place = pl.col("num").cast(pl.Float64), ("family", "src_host")
    beside = pl.len().over(place).cast(pl.Float64)
    around = (num - num.mean().over(place)).abs() * (beside / (beside - 1)).sqrt()
    off = pl.when(beside >= levels.MIN_SAMPLES).then(around).otherwise((num - num.median().over("family")).abs())
    scatter = 1.4826 * pl.col("off").median()
    alike = (
        often.with_columns(off.alias("off"))
        .group_by("family")
        .agg((scatter**2 / num.median()).alias("lost"), pl.len(), pl.col("num").unique_counts().max().alias("equal"))
        .filter((pl.col("len") >= levels.MIN_STATISTICS) & (pl.col("equal") < levels.SHARE_MINOR * pl.col("len")))
    )
    lost = alike.filter(pl.col("lost") < _MOST_LOST).sort("len", "family")["lost"].tail(1)
    return float(lost[0]) if len(lost) and lost[0] > levels.SHARE_NEGLIGIBLE else 0.0


def _measure(traffic: Traffic, job: ObservedJob) -> pl.DataFrame:
    present = traffic.streams_of(job.pairs)
    rows, count = traffic.rows_of_streams(present), traffic.stream_num[present]
    begin = np.concatenate([[0], np.cumsum(count)])
    start, end, size = (traffic.messages[c].to_numpy()[rows] for c in ("start_ns", "end_ns", "bytes"))
    first = begin[:-1]
    mean = np.add.reduceat(size.astype(np.float64), first) / count if len(first) else np.zeros(0)
    period = job.period_ns or float(max(1, job.last_ns - job.first_ns))
    steps, own_steps, alive, gap = _count_steps(start, begin, job.first_ns, period)
    # A restarted job has new connections: each is counted only while it exists.
    partly = (own_steps >= _LIVES[0] * steps) & (alive < _LIVES[1] * steps)
    alive = np.where(partly, alive, steps)
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    table = traffic.streams[present]
    pair = table["pair"].to_numpy()
    src, dst = (traffic.pairs[c].to_numpy()[pair] for c in ("src", "dst"))
    spread = _spread_beyond_chance(size.astype(np.float64), mean, count, traffic.sample_bytes)
    # Layer-wise traffic is never silent for long.
    layerwise = (gap < levels.SHARE_HALF * period) & (count > _COUNTED) & (traffic.sample_bytes > 0)
    own = np.repeat(layerwise, count)
    spread[layerwise] = _leave_runs(
        spread[layerwise], size[own].astype(np.float64), mean[layerwise], count[layerwise], traffic.sample_bytes
    )
    return table.with_columns(
        src=src,
        dst=dst,
        src_host=host[src],
        dst_host=host[dst],
        bytes=mean,
        spread=spread,
        num=count,
        first_ns=start[first] if len(first) else start,
        duration_ns=np.add.reduceat((end - start).astype(np.float64), first) / count if len(first) else np.zeros(0),
        per_step=count / np.maximum(alive, 1),
        presence=np.minimum(own_steps / np.maximum(alive, 1), 1.0),
        longest_gap=gap / period,
        overlap=_share_overlapping(start, end, first, count),
    )


def _share_overlapping(start: Ints, end: Ints, first: Ints, count: Ints) -> Floats:
    """The share of each stream's messages that begin before the one before has ended."""
    if not len(first):
        return np.zeros(0)
    begun = np.concatenate([[False], start[1:] < end[:-1]])
    begun[first] = False
    share: Floats = np.add.reduceat(begun.astype(np.float64), first) / count
    return share


def _spread_beyond_chance(size: Floats, mean: Floats, count: Ints, sample_bytes: float) -> Floats:
    """The relative spread of each stream's sizes, without what sampling adds: one part in the root of the packets seen.

    Samples run two sizes together that differ by little. Where sizes differ by far more than sampling explains, the
    smaller and the larger ones are measured apart, too: two sizes are then steady, and tokens routed at random are not.
    """
    stream = np.repeat(np.arange(len(count)), count)
    whole, chance = _measure_spread(size, stream, len(count), sample_bytes)
    if not sample_bytes:
        return whole
    parts, _ = _measure_spread(size, 2 * stream + (size > mean[stream]), 2 * len(count), sample_bytes)
    larger = np.bincount(stream, size > mean[stream], len(count)) / np.maximum(count, 1)
    apart = np.sqrt((1 - larger) * parts[::2] ** 2 + larger * parts[1::2] ** 2)
    return np.where(whole**2 > _FAR_MORE * chance, np.minimum(whole, apart), whole)


def _leave_runs(spread: Floats, size: Floats, mean: Floats, count: Ints, sample_bytes: float) -> Floats:
    """The spread of streams whose sizes come in runs, as those of a sequence's blocks do, forward and then backward.

    Routed tokens differ from message to message.
    """
    begin = np.concatenate([[0], np.cumsum(count)])
    for v in np.flatnonzero(spread > 0).tolist():
        chance = sample_bytes / mean[v] * (1 + _CHANCE * np.sqrt(2 / count[v]))
        changes = _measure_changes(size[begin[v] : begin[v + 1]]) / mean[v] ** 2
        spread[v] = min(spread[v], np.sqrt(max(changes - chance, 0.0)))
    return spread


def _measure_changes(size: Floats) -> float:
    """The variance of sizes by how messages differ from the one before, without the few that begin a run."""
    changes = np.sort(np.diff(size) ** 2)[: round((1 - _RUNS) * (len(size) - 1))]
    normal = NormalDist()
    most = normal.inv_cdf(1 - _RUNS / 2)
    kept = 1 - 2 * most * normal.pdf(most) / (1 - _RUNS)  # of the variance of normal changes
    return float(np.mean(changes)) / kept / 2


def _measure_spread(size: Floats, part: Ints, parts: int, sample_bytes: float) -> tuple[Floats, Floats]:
    """The relative spread of sizes of each part beyond that of sampling, and the variance that sampling makes."""
    num, total, square = (np.bincount(part, weights, parts) for weights in (None, size, size**2))
    num = np.maximum(num, 1)
    usual = np.maximum(total / num, 1.0)
    chance = sample_bytes / usual * (1 + _CHANCE * np.sqrt(2 / num))
    found = np.maximum(square / num - usual**2, 0.0) / usual**2
    return np.sqrt(np.maximum(found - chance, 0.0)), chance


@kernel
def _count_steps(start: Ints, begin: Ints, origin: int, period: float) -> tuple[int, Ints, Ints, Floats]:
    """Periods in which anything is sent, those in which each stream is, those from its first message to its last, and
    each stream's usual longest gap in one.
    """
    num = len(begin) - 1
    last = 0
    for i in range(len(start)):
        last = max(last, int((start[i] - origin) / period))
    busy = np.zeros(last + 2, np.bool_)
    own = np.zeros(num, np.int64)
    alive = np.zeros(num, np.int64)
    gap = np.zeros(num)
    for v in range(num):
        before = -1
        longest = 0.0
        total = 0.0
        for i in range(begin[v], begin[v + 1]):
            step = max(0, int((start[i] - origin) / period))
            busy[step] = True
            if i > begin[v]:
                longest = max(longest, min(float(start[i] - start[i - 1]), period))
            if step != before:
                own[v] += 1
                total += longest
                longest = 0.0
                before = step
        gap[v] = total / max(own[v] - 1, 1)
    before_step = np.zeros(len(busy) + 1, np.int64)
    before_step[1:] = np.cumsum(busy)
    for v in range(num):
        if begin[v + 1] > begin[v]:
            first = max(0, int((start[begin[v]] - origin) / period))
            final = max(0, int((start[begin[v + 1] - 1] - origin) / period))
            alive[v] = before_step[final + 1] - before_step[first]
    return busy.sum(), own, alive, gap


def _find_answers(traffic: Traffic, streams: pl.DataFrame, lost: float) -> pl.DataFrame:
    """For each family, whether it is answered and how often at the same time; `lost` is the share of records."""
    start, end = (traffic.messages[c].to_numpy() for c in ("start_ns", "end_ns"))
    columns = ("stream", "src", "dst", "src_host", "dst_host", "bytes", "family", "spread", "num")
    table = {c: streams[c].to_numpy() for c in columns}
    by_ends = _index_ends(table["src"], table["dst"])
    by_hosts = _index_ends(table["src_host"], table["dst_host"])
    found = []
    sampled = traffic.sample_bytes > 0
    families, grouped = np.unique(table["family"], return_inverse=True)
    for f, family in enumerate(families.tolist()):
        members = np.flatnonzero(grouped == f)
        shares = []
        for i in choose_some(members, _ASKED).tolist():
            back = _twins(table, i, by_ends(table["dst"][i], table["src"][i]), merged=sampled)
            if table["num"][back].sum() < _AS_OFTEN * table["num"][i]:
                # A message enters a host by its receiver's NIC, so what comes back may go by others.
                back = _twins(table, i, by_hosts(table["dst_host"][i], table["src_host"][i]), merged=sampled)
            if not len(back):
                shares.append((0.0, 0.0))
                continue
            own = traffic.rows_of_stream(table["stream"][i])
            twins = traffic.rows_of_streams(table["stream"][back])
            times = np.sort(end[twins], kind="stable")
            ratio = len(twins) / len(own)
            noise = traffic.sample_bytes / max(float(table["bytes"][i]), 1.0)
            # Where the records of all its answers are lost, a message seems to have none.
            together, at_once = _share_together(start[own], end[own], times, noise)
            shares.append((min(together / (1 - lost**at_once), 1.0), float(ratio >= 0.5)))
        together, answered = np.median(np.array(shares), axis=0).tolist()
        found.append((family, together, answered))
    return pl.DataFrame(
        found,
        schema={"family": streams.schema["family"], "together": pl.Float64, "answered": pl.Float64},
        orient="row",
    )


def _index_ends(src: Ints, dst: Ints) -> Callable[[int, int], Ints]:
    """A look-up: the rows with a source and a destination, in order."""
    key = (src.astype(np.int64) << 32) + dst
    order = np.argsort(key, kind="stable")
    ordered = key[order]

    def look_up(one: int, other: int) -> Ints:
        wanted = np.int64((int(one) << 32) + int(other))
        rows: Ints = order[np.searchsorted(ordered, wanted) : np.searchsorted(ordered, wanted, side="right")]
        return rows

    return look_up


def _twins(table: dict[str, Floats], i: int, candidates: Ints, *, merged: bool) -> Ints:
    """Streams among the candidates that carry messages of the same size, or whose size varies as much.

    Where one way's messages may be `merged`, since samples do not show where to split them, all are as large together.
    """
    near = max(_SAME_SIZE, 2 * float(table["spread"][i]))
    size = np.abs(table["bytes"][candidates] / max(table["bytes"][i], 1.0) - 1) <= near
    varies = np.abs(table["spread"][candidates] - table["spread"][i]) <= _SAME_SIZE
    load = table["bytes"] * table["num"]
    as_much = merged & (np.abs(load[candidates] / max(load[i], 1.0) - 1) <= _SAME_SIZE)
    alike: Ints = candidates[(size & varies) | as_much]
    return alike


@kernel
def _share_together(start: Ints, end: Ints, twins: Ints, noise: float) -> tuple[float, int]:
    """The share of messages with a twin that ends with them, once the clocks of two exporters are set right.

    And how many such twins a message usually has: each rank behind a NIC has one of its own.

    A collective ends on all its hops at once, though each begins when its own sender arrives, and turns of a ring end
    within the time of a transfer; messages of a pipeline may wait for much longer than that. `noise` is the share of a
    message's length by which sampling usually moves its end.
    """
    length = (end[:_ASKED_MESSAGES] - start[:_ASKED_MESSAGES]).astype(np.float64)
    ends = np.sort(end[:_ASKED_MESSAGES])
    distance = (twins[nearest(twins, ends)] - ends).astype(np.float64)
    shift = take_median(distance)
    if abs(shift) > 3 * SKEW_NS:
        shift = 0.0
    usual = take_median(length)
    near = max(interpolate_quantile(length, _UNHURRIED), _FLOOR_NS) + 2 * noise * usual
    first = np.searchsorted(twins, ends + shift - near, side="left")
    beside = np.searchsorted(twins, ends + shift + near, side="right") - first
    return float(np.mean(np.abs(distance - shift) <= near)), max(1, int(np.median(beside)))
