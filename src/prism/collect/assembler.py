"""The owner of a flow table: batches of packets in, FLOWS out, with memory bounded and everything counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from prism.collect import flow_table
from prism.collect.address_text import write_addresses
from prism.collect.counts import SourceCounts
from prism.collect.flow_table import COMPLETE, ENTRY, ROLES, Table
from prism.collect.packets import PACKET, Bytes, Packets, dissect

PACKET_FLOWS = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "src": pl.String,
        "dst": pl.String,
        "bytes": pl.Int64,
        "src_port": pl.Int32,
        "dst_port": pl.Int32,
        "qp": pl.Int64,
        "packets": pl.Int64,
    }
)
_SMALLEST, _LARGEST = 1 << 12, 1 << 20  # entries of the table; the largest takes 128 MB
_FORGET_NS = 60 * 10**9

_EVENTS = {
    flow_table.ACKS: "RoCE acknowledgements",
    flow_table.NAKS: "RoCE negative acknowledgements",
    flow_table.CNPS: "RoCE congestion notifications",
    flow_table.RETRANSMITTED: "RoCE packets sent again",
    flow_table.PSN_GAPS: "gaps in RoCE packet numbers",
    flow_table.CUT_MESSAGES: "RoCE messages without their end",
    flow_table.HEADLESS: "RoCE messages without their beginning",
    flow_table.REQUESTS: "RoCE reads and atomics asked for",
    flow_table.TCP_AGAIN: "TCP packets sent again",
    flow_table.NOT_IP: "packets without payload or not IP",
}
_MALFORMED = {
    flow_table.BROKEN_HEADERS: "packets with broken headers",
    flow_table.CUT_HEADERS: "packets cut inside their headers; capture at least 128 bytes of each (tcpdump -s 128)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstConfig:
    """How packets that are not RoCE become flows."""

    gap_ns: int = 5_000_000  # Silence that ends a burst; above the pauses of TCP inside a data centre.
    longest_ns: int = 10_000_000_000  # A burst is cut here, so that endless transfers are seen too.


@dataclass(slots=True)
class FlowAssembler:
    """Turns packets into FLOWS: RoCEv2 messages, and bursts of everything else."""

    counts: SourceCounts
    config: BurstConfig = field(default_factory=BurstConfig)
    _table: Table = field(default_factory=lambda: np.zeros(_SMALLEST, ENTRY), repr=False)
    _used: int = 0
    _now_ns: int = 0
    _tallies: np.ndarray[tuple[int], np.dtype[np.int64]] = field(
        default_factory=lambda: np.zeros(flow_table.NUM_COUNTS, np.int64)
    )

    def take(self, data: Bytes, index: Packets) -> pl.DataFrame:
        """FLOWS that these packets complete."""
        packets = np.zeros(index.size, PACKET)
        dissect(data, index, packets)
        self.counts.received += index.size
        self.counts.received_bytes += int(index["length"].sum(dtype=np.int64))
        if not index.size:
            return pl.DataFrame(schema=PACKET_FLOWS)
        # One packet stamped far in the future must not close what is open.
        self._now_ns = max(self._now_ns, int(np.median(index["time_ns"])))
        done: list[Table] = []
        at = 0
        while at < packets.size:
            out = np.empty(2 * (packets.size - at), COMPLETE)
            at, n, self._used = flow_table.gather(
                packets, at, self._table, self._used, ROLES, self.config.gap_ns, self.config.longest_ns, out,
                self._tallies,
            )  # fmt: skip
            done.append(out[:n])
            if at < packets.size:
                done.append(self._make_room())
        done.append(self._sweep(everything=False))
        return self._to_flows(np.concatenate(done))

    def expire(self, now_ns: int) -> pl.DataFrame:
        """FLOWS that are over because time has passed without packets."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._to_flows(self._sweep(everything=False))

    def finish(self) -> pl.DataFrame:
        """FLOWS still open when the packets end."""
        return self._to_flows(self._sweep(everything=True))

    def _sweep(self, *, everything: bool) -> Table:
        out = np.empty(self._used, COMPLETE)
        n = flow_table.sweep(self._table, self._now_ns, self.config.gap_ns, everything, out, self._tallies)
        return out[:n]

    def _make_room(self) -> Table:
        """Forget what is idle; grow the table, or at its limit write out everything and start afresh."""
        closed = self._sweep(everything=False)
        size = self._table.size
        alive = int(((self._table["open"] == 1) | (self._table["last_ns"] > self._now_ns - _FORGET_NS)).sum())
        if alive * 4 > size and size < _LARGEST:
            size *= 4
        elif alive * 4 > size:
            self.counts.dropped["open bursts cut by a full table"] += int((self._table["open"] == 1).sum())
            closed = np.concatenate([closed, self._sweep(everything=True)])
            self._table, self._used = np.zeros(size, ENTRY), 0
            return closed
        fresh = np.zeros(size, ENTRY)
        self._used = flow_table.rehash(self._table, fresh, self._now_ns - _FORGET_NS)
        self._table = fresh
        return closed

    def _to_flows(self, done: Table) -> pl.DataFrame:
        self._report()
        if not done.size:
            return pl.DataFrame(schema=PACKET_FLOWS)
        frame = pl.DataFrame(
            {
                "start_ns": done["start_ns"],
                "end_ns": done["end_ns"],
                "src": write_addresses(_plain(done, "src_high"), _plain(done, "src_low")),
                "dst": write_addresses(_plain(done, "dst_high"), _plain(done, "dst_low")),
                "bytes": done["bytes"],
                "src_port": done["src_port"],
                "dst_port": done["dst_port"],
                "qp": done["qp"],
                "packets": done["packets"],
            }
        )
        self.counts.flows += frame.height
        return frame.with_columns(pl.col("qp").replace(-1, None)).cast(dict(PACKET_FLOWS)).sort("end_ns")  # type: ignore[arg-type]

    def _report(self) -> None:
        """Move the compiled code's tallies into the source's counts."""
        for place, name in _EVENTS.items():
            if self._tallies[place]:
                self.counts.events[name] += int(self._tallies[place])
        for place, name in _MALFORMED.items():
            if self._tallies[place]:
                self.counts.malformed[name] += int(self._tallies[place])
        self._tallies[:] = 0


def _plain(table: Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.ascontiguousarray(table[name])
