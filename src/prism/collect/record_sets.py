"""Data sets of one template, decoded together into FLOWS: numpy over whole columns, no work per record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.address_text import map_ipv4, write_addresses
from prism.collect.elements import Role
from prism.collect.record_times import NO_TIME, ExportClock, Times, read_times
from prism.collect.sampling import Sampling, rates_in
from prism.collect.templates import Template

Words = NDArray[np.uint64]

EXPORTED = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "src": pl.String,
        "dst": pl.String,
        "bytes": pl.Int64,
        "src_port": pl.Int32,
        "dst_port": pl.Int32,
        "packets": pl.Int64,
        "sampling_rate": pl.Int64,
        "exporter": pl.String,
    }
)
_MOST_BYTES = float(2**60)
_WIDE: tuple[Role, ...] = ("src6", "dst6")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Records of one template as they came in one message."""

    template: Template
    payload: bytes
    num_records: int
    records: NDArray[np.int64] | None  # where each begins in the payload; None where all are of one length
    exporter: str
    sampling: Sampling
    export_ns: int
    uptime_ms: int  # -1: the header has none
    boot_ns: int  # -1: unknown


def decode_sets(sets: list[DataSet], dropped: Counter[str]) -> pl.DataFrame:
    """FLOWS of data sets that share one template; records that cannot be flows are counted in `dropped`."""
    template = sets[0].template
    columns = read_columns(template, sets)
    counts = np.array([s.num_records for s in sets])
    halves = _addresses(columns)
    if halves is None or "bytes" not in columns:
        missing = "addresses" if halves is None else "byte counts"
        dropped[f"records without {missing}"] += int(counts.sum())
        return pl.DataFrame(schema=EXPORTED)
    clock = ExportClock(
        export_ns=np.repeat(np.array([s.export_ns for s in sets], np.int64), counts),
        uptime_ms=np.repeat(np.array([s.uptime_ms for s in sets], np.int64), counts),
        boot_ns=np.repeat(np.array([s.boot_ns for s in sets], np.int64), counts),
    )
    start, end = read_times(columns, clock)
    rate = _rates(columns, sets, counts)
    size = columns["bytes"].astype(np.float64)
    sane = (size * rate < _MOST_BYTES) & (start >= 0)
    if not sane.all():
        dropped["records of unknown time"] += int((start < 0).sum())
        dropped["records of absurd size"] += int(((start >= 0) & ~sane).sum())
    frame = _to_frame(columns, halves, start, end, rate, _exporters(columns, sets, counts))
    frame = frame.filter(pl.Series(sane))
    return _with_reverse(frame, columns, sane)


def read_columns(template: Template, sets: list[DataSet]) -> dict[Role, Words]:
    """Every known field of the sets' records; wide addresses as two rows, high and low halves."""
    if template.record_bytes is not None:
        data = np.frombuffer(b"".join(s.payload[: s.num_records * template.record_bytes] for s in sets), np.uint8)
        table = data.reshape(-1, template.record_bytes)
        starts = np.cumsum(template.lengths) - template.lengths
        return {
            role: _to_words(table[:, starts[i] : starts[i] + template.fields[i].length], wide=role in _WIDE)
            for role, i in template.positions.items()
        }
    data = np.frombuffer(b"".join(s.payload for s in sets), np.uint8)
    bases = np.cumsum([0] + [len(s.payload) for s in sets[:-1]])
    records = np.concatenate([s.records + base for s, base in zip(sets, bases, strict=True) if s.records is not None])
    offsets = template.field_offsets(data, records)
    return {
        role: _to_words(data[offsets[:, i, None] + np.arange(template.fields[i].length)], wide=role in _WIDE)
        for role, i in template.positions.items()
    }


def _to_words(raw: NDArray[np.uint8], *, wide: bool) -> Words:
    """Big-endian fields of up to eight bytes as numbers; sixteen bytes as two rows of halves."""
    if wide:
        return np.ascontiguousarray(raw).view(">u8").astype(np.uint64).T
    length = raw.shape[1]
    if length in (1, 2, 4, 8):
        return np.ascontiguousarray(raw).view(f">u{length}")[:, 0].astype(np.uint64)
    padded = np.zeros((len(raw), 8), np.uint8)
    padded[:, 8 - length :] = raw
    return padded.view(">u8")[:, 0].astype(np.uint64)


def _addresses(columns: dict[Role, Words]) -> tuple[Words, Words, Words, Words] | None:
    """High and low halves of source and destination; a record that has both families uses the one that is not zero."""
    four = "src4" in columns and "dst4" in columns
    six = "src6" in columns and "dst6" in columns
    if not four and not six:
        return None
    if not six:
        zero = np.zeros(len(columns["src4"]), np.uint64)
        return zero, map_ipv4(columns["src4"]), zero, map_ipv4(columns["dst4"])
    (src_high, src_low), (dst_high, dst_low) = columns["src6"], columns["dst6"]
    if not four:
        return src_high, src_low, dst_high, dst_low
    narrow = (columns["src4"] != 0) | (columns["dst4"] != 0)
    zero64 = np.uint64(0)
    return (
        np.where(narrow, zero64, src_high),
        np.where(narrow, map_ipv4(columns["src4"]), src_low),
        np.where(narrow, zero64, dst_high),
        np.where(narrow, map_ipv4(columns["dst4"]), dst_low),
    )


def _rates(columns: dict[Role, Words], sets: list[DataSet], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    own = rates_in(columns)
    if own is not None:
        return own
    rate = np.repeat(np.array([s.sampling.rate for s in sets], np.int64), counts)
    if "selector" not in columns:
        return rate
    edges = np.concatenate([[0], np.cumsum(counts)])
    for one, (a, b) in zip(sets, pairwise(edges), strict=True):
        for selector, selected in one.sampling.selectors.items():
            rate[a:b][columns["selector"][a:b] == selector] = selected
    return rate


def _exporters(columns: dict[Role, Words], sets: list[DataSet], counts: NDArray[np.int64]) -> pl.Series:
    if "exporter4" in columns:
        address = columns["exporter4"]
        return write_addresses(np.zeros(len(address), np.uint64), map_ipv4(address))
    names = pl.Series([s.exporter for s in sets], dtype=pl.String)
    return names.gather(np.repeat(np.arange(len(sets)), counts))


def _to_frame(
    columns: dict[Role, Words],
    halves: tuple[Words, Words, Words, Words],
    start: Times,
    end: Times,
    rate: NDArray[np.int64],
    exporter: pl.Series,
) -> pl.DataFrame:
    def number(role: Role, most: int) -> pl.Series:
        if role not in columns:
            return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(start))
        return pl.Series(np.minimum(columns[role], np.uint64(most)).astype(np.int64))

    ends = pl.Series(np.where(end < start, np.where(end == NO_TIME, NO_TIME, start), end))
    frame = pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": ends,
            "src": write_addresses(halves[0], halves[1]),
            "dst": write_addresses(halves[2], halves[3]),
            "bytes": number("bytes", 2**60),
            "src_port": number("src_port", 65535),
            "dst_port": number("dst_port", 65535),
            "packets": number("packets", 2**60),
            "sampling_rate": rate,
            "exporter": exporter,
        }
    )
    return frame.with_columns(
        pl.col("end_ns").replace(int(NO_TIME), None),
        pl.col("bytes") * pl.col("sampling_rate"),
        pl.col("packets") * pl.col("sampling_rate"),
    ).cast(dict(EXPORTED))  # type: ignore[arg-type]


def _with_reverse(frame: pl.DataFrame, columns: dict[Role, Words], sane: NDArray[np.bool_]) -> pl.DataFrame:
    """A two-way record (RFC 5103) is two flows."""
    if "reverse_bytes" not in columns:
        return frame
    zero = np.zeros(len(sane), np.uint64)
    back = frame.with_columns(
        pl.col("dst").alias("src"),
        pl.col("src").alias("dst"),
        pl.col("dst_port").alias("src_port"),
        pl.col("src_port").alias("dst_port"),
        pl.Series("bytes", np.minimum(columns["reverse_bytes"], 2**40).astype(np.int64)[sane])
        * pl.col("sampling_rate"),
        pl.Series("packets", np.minimum(columns.get("reverse_packets", zero), 2**40).astype(np.int64)[sane])
        * pl.col("sampling_rate"),
    )
    return pl.concat([frame, back.filter(pl.col("bytes") > 0)])
