"""Measure flows as exporters do: cut and merge records, sample and lose them, with clocks that are wrong."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.lab.scenarios.measurement import Measurement

_EXPORTERS_SEED, _BYTES_SEED, _SAMPLES_SEED, _LOSS_SEED = range(4)


def capture(
    records: pl.DataFrame, connections: pl.DataFrame, config: Measurement, epoch_ns: int, seed: int
) -> pl.DataFrame:
    """Records (connection, start_ns, end_ns, bytes) as exported; `connections` holds the exporter of each."""
    records = _add_overhead(records, config, seed)
    if config.idle_timeout_ms > 0:
        records = merge_bursts(records, round(config.idle_timeout_ms * 1e6))
    if config.active_timeout_ms > 0:
        records = cut_long(records, round(config.active_timeout_ms * 1e6))
    if config.sampling_rate > 1:
        records = sample_packets(records, config, seed)
    elif config.with_packets:
        records = records.with_columns((-(-pl.col("bytes") // config.packet_bytes)).alias("packets"))
    if config.lost > 0:
        keep = np.random.default_rng([seed, 21, _LOSS_SEED]).random(records.height) >= config.lost
        records = records.filter(pl.Series(keep))
    if config.clock_offset_ms > 0 or config.clock_drift_ppm > 0:
        records = skew_clocks(records, connections, config, epoch_ns, seed)
    if config.resolution_ms > 0:
        unit = round(config.resolution_ms * 1e6)
        records = records.with_columns((pl.col(c) // unit * unit).alias(c) for c in ("start_ns", "end_ns"))
    return records


def _add_overhead(records: pl.DataFrame, config: Measurement, seed: int) -> pl.DataFrame:
    """Headers and retransmissions make every record a little larger than its payload."""
    if config.byte_jitter == 0:
        return records
    extra = np.abs(np.random.default_rng([seed, 21, _BYTES_SEED]).standard_normal(records.height)) * config.byte_jitter
    size = records["bytes"].to_numpy()
    return records.with_columns(pl.Series("bytes", size + np.rint(size * extra).astype(np.int64)))


def merge_bursts(records: pl.DataFrame, idle_ns: int) -> pl.DataFrame:
    """An exporter closes a record when its connection was idle for the timeout; until then all is one record."""
    ordered = records.sort("connection", "start_ns", maintain_order=True)
    busy_until = pl.col("end_ns").cum_max().shift(1).over("connection")
    opens = ((pl.col("start_ns") - busy_until) > idle_ns).fill_null(True)
    numbered = ordered.with_columns(opens.cum_sum().alias("record"))
    return (
        numbered.group_by("record", maintain_order=True)
        .agg(pl.col("connection").first(), pl.col("start_ns").first(), pl.col("end_ns").max(), pl.col("bytes").sum())
        .drop("record")
    )


def cut_long(records: pl.DataFrame, active_ns: int) -> pl.DataFrame:
    """An exporter reports a long transfer every active timeout; pieces have bytes in proportion to their length."""
    start, end, size = (records[c].to_numpy() for c in ("start_ns", "end_ns", "bytes"))
    pieces = np.maximum(1, -(-(end - start) // active_ns))
    row = np.repeat(np.arange(records.height), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = start[row] + piece * active_ns
    finish = np.minimum(begin + active_ns, end[row])
    length = np.maximum(end - start, 1).astype(float)
    # Differences of rounded cumulative sums, so that the pieces add up to the total.
    until = np.where(
        finish == end[row], size[row], np.rint(size[row] * ((finish - start[row]) / length[row])).astype(np.int64)
    )
    before = np.where(piece > 0, np.roll(until, 1), 0)
    return pl.DataFrame(
        {
            "connection": records["connection"].to_numpy()[row],
            "start_ns": begin,
            "end_ns": finish,
            "bytes": until - before,
        }
    )


def sample_packets(records: pl.DataFrame, config: Measurement, seed: int) -> pl.DataFrame:
    """One packet in N is seen: bytes are estimates, times are those of sampled packets, small records disappear."""
    rng = np.random.default_rng([seed, 21, _SAMPLES_SEED])
    start, end, size = (records[c].to_numpy() for c in ("start_ns", "end_ns", "bytes"))
    packets = np.maximum(1, -(-size // config.packet_bytes))
    seen = rng.binomial(packets, 1 / config.sampling_rate)
    kept = np.flatnonzero(seen)
    count = seen[kept]
    length = (end - start)[kept].astype(float)
    # First and last of `count` moments spread evenly at random over the record.
    first = 1 - rng.random(len(kept)) ** (1 / count)
    last = np.where(count > 1, first + (1 - first) * rng.random(len(kept)) ** (1 / np.maximum(count - 1, 1)), first)
    scaled = count * config.sampling_rate
    mean_packet = np.maximum(1, np.minimum(size[kept], config.packet_bytes))
    return pl.DataFrame(
        {
            "connection": records["connection"].to_numpy()[kept],
            "start_ns": start[kept] + (first * length).astype(np.int64),
            "end_ns": start[kept] + (last * length).astype(np.int64),
            "bytes": scaled * mean_packet,
            "packets": scaled,
            "sampling_rate": np.full(len(kept), config.sampling_rate, np.int64),
        }
    )


def skew_clocks(
    records: pl.DataFrame, connections: pl.DataFrame, config: Measurement, epoch_ns: int, seed: int
) -> pl.DataFrame:
    """Every exporter's clock has a constant offset and a small drift."""
    names = connections["exporter"].unique().sort()
    rng = np.random.default_rng([seed, 21, _EXPORTERS_SEED])
    offset = rng.normal(0, config.clock_offset_ms * 1e6, len(names))
    drift = rng.normal(0, config.clock_drift_ppm * 1e-6, len(names))
    numbers = connections["exporter"].replace_strict(
        dict(zip(names, range(len(names)), strict=True)), return_dtype=pl.Int64
    )
    which = numbers.to_numpy()[records["connection"].to_numpy()]
    moved = {}
    for column in ("start_ns", "end_ns"):
        times = records[column].to_numpy()
        moved[column] = times + np.rint(offset[which] + drift[which] * (times - epoch_ns)).astype(np.int64)
    return records.with_columns(pl.Series(name, values) for name, values in moved.items())
