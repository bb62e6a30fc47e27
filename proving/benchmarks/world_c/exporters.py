"""From messages on the wire to the records that a flow exporter writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from .wire import ROCE_PORT, Wire

PACKET_BYTES = 4096
KEY = ["src", "dst", "src_port", "dst_port", "qp"]


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """How records are made. Times in seconds; 0 or None switches a thing off."""

    idle: float | None = None  # inactive timeout; None: one record per message
    active: float = 1e9  # active timeout
    one_in: int = 1  # packet sampling
    sums: float = 0.0  # one record per pair and this many seconds, instead of flows
    round_to: float = 0.0  # times are cut to this
    double: bool = False  # the leaves of source and destination both export, with their names
    lost: float = 0.0  # share of records that never arrive
    clocks: float = 0.0  # spread of the leaves' clocks
    qp: bool = True  # the exporter reads RDMA headers


def messages(wire: Wire, length: float) -> pl.DataFrame:
    """All messages that lie in the capture, by address."""
    fabric = wire.fabric
    names = [fabric.address(e) for e in range(fabric.num_hosts * fabric.num_nics)]
    leaves = [fabric.leaf(e) for e in range(len(names))]
    start, end, src, dst, size, port, qp = (np.concatenate(c) for c in zip(*wire.parts, strict=True))
    table = np.array(names, dtype=object)
    rdma = pl.DataFrame(
        {
            "start": start, "end": end, "src": table[src], "dst": table[dst], "size": np.round(size),
            "src_port": port, "dst_port": np.full(len(start), ROCE_PORT), "qp": qp,
        },
        schema_overrides={"src": pl.String, "dst": pl.String},
    )  # fmt: skip
    frames = [rdma]
    if wire.texts:
        columns = ["start", "end", "src", "dst", "size", "src_port", "dst_port"]
        other = pl.DataFrame(wire.texts, schema=columns, orient="row")
        frames.append(other.with_columns(pl.col("size").cast(pl.Float64), qp=pl.lit(0, pl.Int64)))
    leaf = dict(zip(names, leaves, strict=True))
    return (
        pl.concat(frames, how="vertical_relaxed")
        .filter(pl.col("start") >= 0, pl.col("start") < length)
        .with_columns(
            src_leaf=pl.col("src").replace_strict(leaf, default="border", return_dtype=pl.String),
            dst_leaf=pl.col("dst").replace_strict(leaf, default="border", return_dtype=pl.String),
        )
    )


def export(frame: pl.DataFrame, how: Exporter, rng: np.random.Generator) -> pl.DataFrame:
    """Records of messages, as this exporter writes them, times in seconds."""
    if how.double:
        far = frame.filter(pl.col("src_leaf") != pl.col("dst_leaf"))
        later = far.with_columns(pl.col("start") + 3e-6, pl.col("end") + 3e-6, exporter=pl.col("dst_leaf"))
        frame = pl.concat([frame.with_columns(exporter=pl.col("src_leaf")), later])
    else:
        frame = frame.with_columns(exporter=pl.col("src_leaf"))
    frame = frame.drop("src_leaf", "dst_leaf")
    if how.one_in > 1:
        frame = sample(frame, how.one_in, rng)
    if how.clocks:
        leaves = frame["exporter"].unique().sort().to_list()
        offset = dict(zip(leaves, rng.normal(0, how.clocks, len(leaves)).tolist(), strict=True))
        shift = pl.col("exporter").replace_strict(offset, return_dtype=pl.Float64)
        frame = frame.with_columns(pl.col("start") + shift, pl.col("end") + shift)
    if how.sums:
        frame = sum_up(frame, how.sums)
    elif how.idle is not None:
        frame = time_out(frame, how.idle, how.active)
    if how.lost:
        frame = frame.filter(pl.Series(rng.random(frame.height) >= how.lost))
    if how.round_to:
        cut = how.round_to
        frame = frame.with_columns((pl.col("start") / cut).floor() * cut, (pl.col("end") / cut).floor() * cut)
    if not how.double:
        frame = frame.drop("exporter")
    return frame


def sample(frame: pl.DataFrame, one_in: int, rng: np.random.Generator) -> pl.DataFrame:
    """Keep what sampled packets show: their bytes, unscaled, from the first sampled packet to the last."""
    size, start, end = (frame[c].to_numpy() for c in ("size", "start", "end"))
    packets = np.maximum(1, np.ceil(size / PACKET_BYTES)).astype(np.int64)
    seen = rng.binomial(packets, 1 / one_in)
    keep = seen > 0
    count, length = seen[keep], (end - start)[keep]
    first, last = (1 - rng.random(len(count)) ** (1 / count) for _ in range(2))
    last = np.minimum(last, 1 - first)
    begin, finish = start[keep] + first * length, end[keep] - last * length
    finish = np.where(count == 1, begin, finish)
    each = np.minimum(PACKET_BYTES, size[keep] / packets[keep])
    return frame.filter(pl.Series(keep)).with_columns(
        start=pl.Series(begin), end=pl.Series(finish), size=pl.Series(np.round(count * each))
    )


def time_out(frame: pl.DataFrame, idle: float, active: float) -> pl.DataFrame:
    """Join messages of a 5-tuple (and QP) until it is silent for `idle`, and cut it every `active` seconds."""
    keys = [*KEY, "exporter"]
    frame = frame.sort([*keys, "start"])
    before = pl.col("end").cum_max().shift(1).over(keys)
    new = before.is_null() | (pl.col("start") - before > idle)
    frame = frame.with_columns(run=new.cum_sum())
    origin = pl.col("start").min().over("run")
    frame = frame.with_columns(
        low=((pl.col("start") - origin) / active).floor().cast(pl.Int64),
        high=((pl.col("end") - origin) / active).floor().cast(pl.Int64),
        origin=origin,
    )
    pieces = frame.with_columns(piece=pl.int_ranges("low", pl.col("high") + 1)).explode("piece")
    left = pl.max_horizontal("start", pl.col("origin") + pl.col("piece") * active)
    right = pl.min_horizontal("end", pl.col("origin") + (pl.col("piece") + 1) * active)
    share = pl.when(pl.col("low") == pl.col("high")).then(1.0).otherwise(
        (right - left) / (pl.col("end") - pl.col("start")).clip(1e-9)
    )  # fmt: skip
    pieces = pieces.with_columns(start=left, end=right, size=pl.col("size") * share)
    return (
        pieces.group_by([*keys, "run", "piece"], maintain_order=True)
        .agg(pl.col("start").min(), pl.col("end").max(), pl.col("size").sum().round())
        .filter(pl.col("size") >= 1)
        .drop("run", "piece")
    )


def sum_up(frame: pl.DataFrame, seconds: float) -> pl.DataFrame:
    """One record per pair, port and period, which lasts from its first message to its last."""
    return (
        frame.with_columns(period=(pl.col("start") / seconds).floor())
        .group_by(["src", "dst", "dst_port", "exporter", "period"], maintain_order=True)
        .agg(
            pl.col("start").min(), pl.col("end").max(), pl.col("size").sum(),
            pl.col("src_port").first(), pl.col("qp").first(),
        )
        .drop("period")
    )  # fmt: skip


def to_flows(frame: pl.DataFrame, how: Exporter, t0_ns: int) -> pl.DataFrame:
    """Records in the columns of shared/data/world, sorted by time."""
    columns = [
        (t0_ns + (pl.col("start") * 1e9).round().cast(pl.Int64)).alias("start_ns"),
        (t0_ns + (pl.col("end") * 1e9).round().cast(pl.Int64)).alias("end_ns"),
        "src",
        "dst",
        pl.col("size").cast(pl.Int64).alias("bytes"),
        pl.col("src_port").cast(pl.Int32),
        pl.col("dst_port").cast(pl.Int32),
    ]
    if how.qp:
        columns.append("qp")
    if how.one_in > 1:
        columns.append(pl.lit(how.one_in, pl.Int64).alias("sampling_rate"))
    if how.double:
        columns.append("exporter")
    return frame.select(columns).sort("start_ns")
