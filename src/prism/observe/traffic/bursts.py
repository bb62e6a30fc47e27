"""Bursts: what a connection sends between two long silences, where that is always the same number of bytes.

A capture, or an exporter whose idle timeout is about as long as the pauses inside a transfer, cuts the same transfer
at another place each time. Single records then do not show where a step ends, but their sums do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.traffic.records import EXACT_SIZE

_EQUAL = levels.SHARE_LARGE  # share of the bursts that carry what is usual on their connection
_HEAVY = levels.SHARE_SMALL  # of the bytes of the heaviest connection: lighter ones do not send in every step
_OTHERWISE = levels.SHARE_MINOR  # by how much more often a connection may send than another one of the same job
_LESS = levels.ONE_PERCENT  # share of the bursts by which fewer may be equal than for a shorter silence
_SEVERAL = levels.SHARE_MINOR  # of the bytes: bursts that hold more than one step
_REGULAR = levels.SHARE_LARGE  # share of the bursts with as many messages
_LEAST = levels.MIN_STATISTICS  # bursts of a connection
_TRIED = levels.SAMPLED_STREAMS  # lengths of silences


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """One message for each burst, in the heaviest stream of its connection, and these streams."""

    messages: pl.DataFrame
    streams: pl.DataFrame
    period_ns: float  # the usual time from one burst to the next
    regular: bool  # whether most hold as many messages, so that these are not cut at random


def join_bursts(messages: pl.DataFrame, streams: pl.DataFrame) -> Bursts | None:
    """The messages of one job by bursts; None if no length of silence sets apart bursts that carry the same.

    `messages` are pair stream start_ns end_ns bytes, `streams` are stream connection bytes num. Small messages, such as
    acknowledgements of a transport, and connections that carry little are left out: they are cut at random too.
    """
    load = pl.col("bytes") * pl.col("num")
    large = streams.filter(pl.col("bytes") >= levels.SMALL_MESSAGE_BYTES)
    total = load.sum().over("connection")
    heavy = large.filter(total >= _HEAVY * total.max()).sort(load, descending=True)
    owner = heavy.select("stream", "connection", pl.col("stream").first().over("connection").alias("head"))
    joined = messages.join(owner, on="stream").sort("connection", "start_ns")
    reach = pl.col("end_ns").cum_max().shift(1).over("connection")
    joined = joined.with_columns((pl.col("start_ns") - reach).alias("silent"))
    bursts = _choose_bursts(joined)
    if bursts is None:
        return None
    between = bursts.select(pl.col("start_ns").diff().over("head"))["start_ns"]
    whole = bursts.group_by("head", maintain_order=True).agg(
        pl.col("bytes").median().alias("usual"), pl.len().cast(pl.Int64).alias("times"),
        (pl.col("end_ns") - pl.col("start_ns")).mean().alias("took"),
    )  # fmt: skip
    heads = streams.join(whole, left_on="stream", right_on="head", maintain_order="left").with_columns(
        bytes="usual", num="times", duration_ns="took", per_step=pl.lit(1.0), presence=pl.lit(1.0),
        role=pl.when(pl.col("kind") == "pp").then(pl.lit("pp")).otherwise(pl.lit("oneway")),
    )  # fmt: skip
    return Bursts(
        messages=bursts.select(messages.columns).sort("pair", "start_ns"),
        streams=heads.select(streams.columns).sort("stream"),
        period_ns=float(between.median() or 0.0),  # type: ignore[arg-type]
        regular=bool(
            bursts.select((pl.col("parts") == pl.col("parts").median().over("head")).mean()).item() > _REGULAR
        ),
    )


def _choose_bursts(messages: pl.DataFrame) -> pl.DataFrame | None:
    """The messages by bursts, for the longest silence of those that make most of them equal; None where few are.

    Parts of a step, such as micro-batches, may be equal too.
    """
    gaps = messages["silent"].drop_nulls().to_numpy()
    gaps = gaps[gaps > levels.CLOCK_TOLERANCE_NS]
    best, most = None, 0.0
    for limit in np.unique(np.geomspace(gaps.min(), gaps.max(), _TRIED).astype(np.int64)) if len(gaps) else []:
        number = (pl.col("silent").fill_null(limit) >= limit).cum_sum().alias("burst")
        bursts = messages.group_by(number, maintain_order=True).agg(
            pl.all().exclude("bytes", "end_ns", "stream").first(),
            pl.col("end_ns").max(), pl.col("bytes").sum(), pl.col("head").first().alias("stream"), parts=pl.len(),
        )  # fmt: skip
        usual = pl.col("bytes").median().over("head")
        equal = bursts.select("bytes", num=pl.len().over("head"), times=pl.col("bytes") / usual)
        share = float(((equal["times"] - 1).abs() <= EXACT_SIZE).mean() or 0.0)  # type: ignore[arg-type]
        size, times = equal["bytes"].to_numpy(), equal["times"].to_numpy()
        if size[times > levels.RATIO_LONGER].sum() > _SEVERAL * size.sum():
            continue  # Silences inside slow steps are as long as those between quick ones.
        least, often = (int(f(equal["num"])) for f in (min, max))
        if share >= max(_EQUAL, (1 - _LESS) * most) and least >= _LEAST and often <= (1 + _OTHERWISE) * least:
            best, most = bursts, max(share, most)
    return best
