"""Data sets of one template, decoded together into FLOWS: numpy over whole columns, no work per record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.address_text import map_ipv4, write_addresses, write_macs
from prism.collect.elements import Role
from prism.collect.packets import ETHERNET, INDEX, PACKET, RAW, dissect
from prism.collect.record_times import NO_TIME, ExportClock, Times, read_times
from prism.collect.sampled_packets import to_flows
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
# What a firewall counts for both ends of a connection, where a record has no plain counts.
_TWO_WAY: dict[Role, Role] = {
    "bytes": "initiator_bytes", "packets": "initiator_packets",
    "reverse_bytes": "responder_bytes", "reverse_packets": "responder_packets",
}  # fmt: skip
NO_BYTES = "records without byte counts, written with 0 bytes"
NO_START = "records timed by when they arrived: the exporter did not tell when it started"
READ_IN_PART = (NO_BYTES, NO_START)
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


def decode_sets(sets: list[DataSet], dropped: Counter[str], events: Counter[str]) -> pl.DataFrame:
    """FLOWS of data sets that share one template; records that cannot be flows are counted in `dropped`.

    What was read with less than the exporter should have sent is counted in `events`.
    """
    template = sets[0].template
    columns = read_columns(template, sets)
    counts = np.array([s.num_records for s in sets])
    ends = _write_ends(columns)
    if ends is None and template.section is not None:
        return _read_sampled(template, sets, columns, counts)
    if ends is None:
        dropped["records without addresses"] += int(counts.sum())
        return pl.DataFrame(schema=EXPORTED)
    if "bytes" not in columns:
        columns |= {role: columns[said] for role, said in _TWO_WAY.items() if said in columns}
    if "bytes" not in columns:
        events[NO_BYTES] += int(counts.sum())
        columns["bytes"] = np.zeros(int(counts.sum()), np.uint64)
    clock = _clock_of(sets, counts)
    num_unknown = clock.count_unknown(columns)
    if num_unknown:
        events[NO_START] += num_unknown
    start, end = read_times(columns, clock)
    rate = _rates(columns, sets, counts)
    size = columns["bytes"].astype(np.float64)
    sane = (size * rate < _MOST_BYTES) & (start >= 0)
    if not sane.all():
        dropped["records of unknown time"] += int((start < 0).sum())
        dropped["records of absurd size"] += int(((start >= 0) & ~sane).sum())
    frame = _to_frame(columns, ends, start, end, rate, _exporters(columns, sets, counts))
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
    data, places = _place_fields(template, sets)
    return {
        role: _to_words(data[places[:, i, :1] + np.arange(template.fields[i].length)], wide=role in _WIDE)
        for role, i in template.positions.items()
    }


def _place_fields(template: Template, sets: list[DataSet]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of the sets, and offset and length of every field of every record in them."""
    data = np.frombuffer(b"".join(s.payload for s in sets), np.uint8)
    bases = np.cumsum([0] + [len(s.payload) for s in sets[:-1]])
    size = template.record_bytes or 0
    records = [np.arange(s.num_records) * size if s.records is None else s.records for s in sets]
    return data, template.field_offsets(data, np.concatenate([r + b for r, b in zip(records, bases, strict=True)]))


def _read_sampled(
    template: Template, sets: list[DataSet], columns: dict[Role, Words], counts: NDArray[np.int64]
) -> pl.DataFrame:
    """FLOWS of records that carry the first bytes of a sampled packet."""
    assert template.section is not None
    data, places = _place_fields(template, sets)
    index = np.zeros(len(places), INDEX)
    index["offset"], index["captured"] = places[:, template.section, 0], places[:, template.section, 1]
    index["length"] = index["captured"]
    index["link"] = ETHERNET if template.fields[template.section].role == "frame" else RAW
    given = read_times(columns, _clock_of(sets, counts))[0]
    exported = np.repeat(np.array([s.export_ns for s in sets], np.int64), counts)
    index["time_ns"] = np.where(given < 0, exported, given)
    packets = np.zeros(len(index), PACKET)
    dissect(data, index, packets)
    kept = packets["payload"] > 0
    flows = to_flows(packets[kept], _rates(columns, sets, counts)[kept], _exporters(columns, sets, counts).filter(kept))
    return flows.select(list(EXPORTED)).cast(dict(EXPORTED))  # type: ignore[arg-type]


def _clock_of(sets: list[DataSet], counts: NDArray[np.int64]) -> ExportClock:
    return ExportClock(
        export_ns=np.repeat(np.array([s.export_ns for s in sets], np.int64), counts),
        uptime_ms=np.repeat(np.array([s.uptime_ms for s in sets], np.int64), counts),
        boot_ns=np.repeat(np.array([s.boot_ns for s in sets], np.int64), counts),
    )


def _write_ends(columns: dict[Role, Words]) -> tuple[pl.Series, pl.Series] | None:
    """Source and destination as text: IP addresses, or where there are none MAC addresses."""
    halves = _addresses(columns)
    if halves is not None:
        return write_addresses(halves[0], halves[1]), write_addresses(halves[2], halves[3])
    if "src_mac" in columns and "dst_mac" in columns:
        return write_macs(columns["src_mac"]), write_macs(columns["dst_mac"])
    if "station_mac" not in columns or "access_point_mac" not in columns:
        return None
    station, point = columns["station_mac"], columns["access_point_mac"]
    back = columns.get("from_access_point", np.zeros(len(station), np.uint64)) == 1
    return write_macs(np.where(back, point, station)), write_macs(np.where(back, station, point))


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
    endpoints: tuple[pl.Series, pl.Series],
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
            "src": endpoints[0],
            "dst": endpoints[1],
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
