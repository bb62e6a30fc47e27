"""Messages of a topic as FLOWS: goflow2's JSON and protobuf, Akvorado's raw datagrams; the content decides which."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from prism.collect.address_text import write_addresses
from prism.collect.collector import Collector
from prism.collect.counts import SourceCounts
from prism.collect.goflow import decode_messages
from prism.collect.tables import FlowOptions
from prism.collect.tables.aliases import Alias
from prism.collect.tables.files import make_flows
from prism.errors import InputError
from prism.records import FLOWS
from prism.records.delimited import is_flow_message, read_varint

_ROWS_TO_INFER = 1_000


@dataclass(slots=True)
class MessageDecoder:
    """Turns message values into FLOWS; every message is counted, whatever it holds."""

    counts: SourceCounts = field(default_factory=SourceCounts)
    columns: tuple[Alias, ...] = ()
    notes: dict[str, None] = field(default_factory=dict)
    _collector: Collector | None = None

    def decode(self, values: list[bytes]) -> pl.DataFrame:
        """FLOWS of some messages; their kind may change from one to the next."""
        self.counts.received += len(values)
        self.counts.received_bytes += sum(map(len, values))
        texts = [v for v in values if v[:1] == b"{"]
        rest = [v for v in values if v[:1] != b"{"] if len(texts) < len(values) else []
        frames = [self._decode_json(texts)] if texts else []
        if rest:
            raw = [v for v in rest if _is_raw(v)]
            frames.append(self._decode_raw(raw) if raw else FLOWS.empty())
            frames.append(self._decode_protobuf([v for v in rest if not _is_raw(v)] if raw else rest))
        made = [f for f in frames if f.height]
        return pl.concat(made, how="diagonal") if made else FLOWS.empty()

    def _decode_json(self, values: list[bytes]) -> pl.DataFrame:
        try:
            table = pl.read_ndjson(b"\n".join(values), infer_schema_length=_ROWS_TO_INFER)
        except (pl.exceptions.PolarsError, RuntimeError):
            table = self._read_one_by_one(values)
        try:
            read = make_flows(table, "messages", FlowOptions(skip_bad_rows=True, columns=self.columns, samples=True))
        except InputError as error:
            self.counts.malformed["messages that are no flow"] += len(values)
            self.notes[str(error)] = None
            return FLOWS.empty()
        for why, num in read.report.skipped_rows.items():
            self.counts.dropped[why] += num
        self.counts.flows += read.flows.height
        return read.flows

    def _read_one_by_one(self, values: list[bytes]) -> pl.DataFrame:
        """The slow way, for batches that hold a message which is no JSON or changes a type."""
        from prism.records.json_tables import read_json_lines

        read = read_json_lines(b"\n".join(v.replace(b"\n", b" ") for v in values).decode(errors="replace"))
        if read.bad_lines:
            self.counts.malformed["messages that are no JSON"] += len(read.bad_lines)
        return read.frame

    def _decode_protobuf(self, values: list[bytes]) -> pl.DataFrame:
        if not values:
            return FLOWS.empty()
        sizes = np.array([len(v) for v in values], np.int64)
        ends = np.cumsum(sizes)
        places = np.stack([ends - sizes, ends], axis=1)
        # goflow2 may put each message behind its own length.
        if _is_delimited(values[0]):
            places[:, 0] += [_length_bytes(v) for v in values]
        flows = decode_messages(b"".join(values), places, self.counts)
        self.counts.flows += flows.height
        return flows

    def _decode_raw(self, values: list[bytes]) -> pl.DataFrame:
        """Akvorado's inlet passes datagrams on as they came."""
        self._collector = self._collector or Collector(counts=self.counts)
        received, size = self.counts.received, self.counts.received_bytes
        for value in values:
            message = _read_raw(value)
            if message is None:
                self.counts.malformed["raw flows that break off"] += 1
                continue
            payload, sender, seconds = message
            self._collector.feed(payload, (sender, 0), seconds * 10**9)
        self.counts.received, self.counts.received_bytes = received, size
        return self._collector.flush()


def _is_delimited(value: bytes) -> bool:
    length, at = read_varint(value, 0)
    return at + length == len(value) and is_flow_message(value[at:])


def _length_bytes(value: bytes) -> int:
    return read_varint(value, 0)[1]


def _is_raw(value: bytes) -> bool:
    """Whether a message is Akvorado's RawFlow: a time, then the bytes of a datagram."""
    if value[:1] != b"\x08":
        return False
    _, at = read_varint(value, 1)
    return value[at : at + 1] == b"\x12"


def _read_raw(value: bytes) -> tuple[bytes, str, int] | None:
    """Payload, sender and second of arrival of a RawFlow (common/pb/rawflow.proto)."""
    found: dict[int, bytes | int] = {}
    at = 0
    while at < len(value):
        key, at = read_varint(value, at)
        number, at = read_varint(value, at)
        if number < 0:
            return None
        if key & 7 == 2:
            if at + number > len(value):
                return None
            found[key >> 3] = value[at : at + number]
            at += number
        elif key & 7 == 0:
            found[key >> 3] = number
        else:
            return None
    payload, sender, seconds = found.get(2), found.get(3, b""), found.get(1, 0)
    if not isinstance(payload, bytes) or not isinstance(sender, bytes) or not isinstance(seconds, int):
        return None
    if len(sender) != 16:
        return payload, "unknown", seconds
    high, low = (np.array([int.from_bytes(part, "big")], np.uint64) for part in (sender[:8], sender[8:]))
    return payload, str(write_addresses(high, low)[0]), seconds
