"""sFlow version 5 (sflow.org/sflow_version_5.txt): datagrams walked by compiled code, sampled headers dissected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.collect.address_text import write_addresses
from prism.collect.counts import SourceCounts
from prism.collect.packets import ETHERNET, INDEX, IPV4, IPV6, PACKET, PLAIN, ROCE, Bytes, Packets, dissect
from prism.collect.sampled_packets import SAMPLED, to_flows
from prism.kernel import njit

COUNTERS = pl.Schema(
    {
        "time_ns": pl.Int64, "exporter": pl.String, "port": pl.Int64, "speed": pl.Int64,
        "in_octets": pl.Int64, "in_discards": pl.Int64, "in_errors": pl.Int64,
        "out_octets": pl.Int64, "out_discards": pl.Int64, "out_errors": pl.Int64,
    }
)  # fmt: skip
"""What counter samples say of a switch's ports; totals since the port was last cleared."""

_SAMPLE = np.dtype(
    [("datagram", "i8"), ("rate", "i8"), ("pool", "i8"), ("drops", "i8"), ("source", "i8"), ("seq", "i8")]
)
_COUNTER = np.dtype([("datagram", "i8"), *((name, "i8") for name in list(COUNTERS)[2:])])
_MOST_RECORDS = 256  # in one sample; agents write a handful
_MAX_SOURCES = 65_536
_FLOW, _COUNTERS, _WIDE_FLOW, _WIDE_COUNTERS = 1, 2, 3, 4  # formats of samples
_LEAST_DATAGRAM = 28


def is_sflow(datagram: bytes) -> bool:
    """Whether a datagram says that it is sFlow version 5."""
    return len(datagram) >= _LEAST_DATAGRAM and datagram[:7] == b"\0\0\0\5\0\0\0" and datagram[7] in (1, 2)


@dataclass(slots=True)
class SflowReader:
    """Datagrams of any number of agents in, sampled packets as FLOWS and counters of ports out."""

    counts: SourceCounts
    _drops: dict[tuple[str, int], int] = field(default_factory=dict)  # by agent and port: samples it could not send
    _next: dict[tuple[str, int], int] = field(default_factory=dict)  # sequence number of the next sample

    def read(self, datagrams: list[bytes], times_ns: list[int]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Sampled packets, and counters; a datagram that breaks off gives what stands before the break."""
        if not datagrams:
            return pl.DataFrame(schema=SAMPLED), pl.DataFrame(schema=COUNTERS)
        data = np.frombuffer(b"".join(datagrams), np.uint8)
        ends = np.cumsum([len(d) for d in datagrams])
        most = data.size // 32 + 1  # The smallest sample takes 32 bytes.
        samples, index = np.zeros(most, _SAMPLE), np.zeros(most, INDEX)
        counters = np.zeros(data.size // 88 + 1, _COUNTER)
        tallies = np.zeros(4, np.int64)
        n, k = walk_datagrams(data, ends, samples, index, counters, tallies)
        self._count(tallies)
        times = np.array(times_ns, np.int64)
        agents = _name_agents(datagrams)
        packets = np.zeros(n, PACKET)
        index["time_ns"][:n] = times[samples["datagram"][:n]]
        dissect(data, index[:n], packets)
        self._follow(samples[:n], agents)
        return self._to_flows(samples[:n], packets, agents), _to_counters(counters[:k], times, agents)

    def _count(self, tallies: NDArray[np.int64]) -> None:
        for number, what in enumerate(("sFlow datagrams that break off", "sFlow samples without a packet header")):
            if tallies[number]:
                self.counts.malformed[what] += int(tallies[number])
        if tallies[2]:
            self.counts.events["sFlow records of other kinds"] += int(tallies[2])

    def _follow(self, samples: NDArray[np.void], agents: pl.Series) -> None:
        """Samples that agents say they dropped, and those that numbers show were lost on the way."""
        named = pl.DataFrame(
            {"agent": agents.gather(samples["datagram"]), **{c: samples[c] for c in ("source", "seq", "drops")}}
        )
        seen = named.group_by("agent", "source").agg(
            pl.col("seq").min().alias("low"), pl.col("seq").max().alias("high"), pl.len(), pl.col("drops").max()
        )
        for agent, source, low, high, num, drops in seen.iter_rows():
            key = (agent, source)
            if key not in self._next and len(self._next) >= _MAX_SOURCES:
                continue
            due = self._next.get(key, low)
            if 0 <= low - due < 1 << 20 and high - due + 1 - num > 0:
                self.counts.lost += high - due + 1 - num
            self._next[key] = high + 1
            before = self._drops.get(key, drops)
            if drops > before:
                self.counts.dropped["samples that agents could not send"] += drops - before
            self._drops[key] = drops

    def _to_flows(self, samples: NDArray[np.void], packets: Packets, agents: pl.Series) -> pl.DataFrame:
        useful = ((packets["kind"] == PLAIN) | (packets["kind"] == ROCE)) & (packets["payload"] > 0)
        self.counts.events["sampled packets without payload or not IP"] += int((~useful).sum())
        kept, origin = packets[useful], samples[useful]
        return to_flows(kept, origin["rate"], agents.gather(origin["datagram"]))


def _name_agents(datagrams: list[bytes]) -> pl.Series:
    """The address that each datagram's agent goes by."""
    high, low = np.zeros(len(datagrams), np.uint64), np.zeros(len(datagrams), np.uint64)
    for number, one in enumerate(datagrams):
        if one[7] == 2:
            high[number], low[number] = int.from_bytes(one[8:16], "big"), int.from_bytes(one[16:24], "big")
        else:
            low[number] = 0xFFFF_0000_0000 | int.from_bytes(one[8:12], "big")
    return write_addresses(high, low)


def _to_counters(counters: NDArray[np.void], times: NDArray[np.int64], agents: pl.Series) -> pl.DataFrame:
    where = counters["datagram"]
    columns = {name: counters[name] for name in list(COUNTERS)[2:]}
    return pl.DataFrame({"time_ns": times[where], "exporter": agents.gather(where), **columns}, schema=COUNTERS)


@njit(cache=True, nogil=True)
def _u32(data: Bytes, at: int) -> Any:
    return (
        (np.int64(data[at]) << 24)
        | (np.int64(data[at + 1]) << 16)
        | (np.int64(data[at + 2]) << 8)
        | np.int64(data[at + 3])
    )


@njit(cache=True, nogil=True)
def _u63(data: Bytes, at: int) -> Any:
    return ((_u32(data, at) & 0x7FFF_FFFF) << 32) | _u32(data, at + 4)


@njit(cache=True, nogil=True)
def _read_header(data: Bytes, at: int, end: int, entry: Any) -> bool:
    """A sampled header, or the bare addresses that some agents send instead; False where neither fits."""
    protocol = _u32(data, at)
    captured = _u32(data, at + 12)
    if at + 16 + captured > end:
        return False
    link = -1
    if protocol == 1:
        link = ETHERNET
    elif protocol == 11:
        link = IPV4
    elif protocol == 12:
        link = IPV6
    if link < 0:
        return False
    entry.offset = at + 16
    entry.captured = captured
    # What was stripped (a frame checksum) is no part of the packet.
    entry.length = max(captured, _u32(data, at + 4) - _u32(data, at + 8))
    entry.link = link
    return True


@njit(cache=True, nogil=True)
def _find_record(data: Bytes, at: int, end: int, num: int, wanted: int, least: int) -> tuple[int, int, int]:
    """Where the body of the first record of a kind lies, its length, and how many others stand before it; -1: none."""
    passed = 0
    while passed < min(num, _MOST_RECORDS) and at + 8 <= end:
        tag, length = _u32(data, at), _u32(data, at + 4)
        body = at + 8
        if body + length > end:
            break
        if tag == wanted and length >= least:
            return body, length, passed
        passed += 1
        at = body + (length + 3) // 4 * 4
    return -1, 0, passed


@njit(cache=True, nogil=True)
def _walk_flow(data: Bytes, at: int, end: int, is_wide: bool, sample: Any, entry: Any, tallies: Any) -> bool:
    """One flow sample; True where it holds a packet header."""
    fixed = 44 if is_wide else 32
    if at + fixed > end:
        return False
    sample.seq = _u32(data, at)
    sample.source = _u32(data, at + 8) if is_wide else _u32(data, at + 4) & 0xFFFFFF
    base = at + (12 if is_wide else 8)
    sample.rate = _u32(data, base)
    sample.pool = _u32(data, base + 4)
    sample.drops = _u32(data, base + 8)
    body, length, passed = _find_record(data, at + fixed, end, _u32(data, at + fixed - 4), 1, 16)
    tallies[2] += passed
    return body >= 0 and bool(_read_header(data, body, body + length, entry))


@njit(cache=True, nogil=True)
def _walk_counters(data: Bytes, at: int, end: int, is_wide: bool, out: Any) -> bool:
    """One counter sample; True where it holds the counters of an interface."""
    fixed = 16 if is_wide else 12
    if at + fixed > end:
        return False
    body, _, _ = _find_record(data, at + fixed, end, _u32(data, at + fixed - 4), 1, 88)
    if body < 0:
        return False
    out.port = _u32(data, body)
    out.speed = _u63(data, body + 8)
    out.in_octets = _u63(data, body + 24)
    out.in_discards = _u32(data, body + 44)
    out.in_errors = _u32(data, body + 48)
    out.out_octets = _u63(data, body + 56)
    out.out_discards = _u32(data, body + 76)
    out.out_errors = _u32(data, body + 80)
    return True


@njit(cache=True, nogil=True)
def walk_datagrams(
    data: Bytes, ends: NDArray[np.int64], samples: Any, index: Packets, counters: Any, tallies: NDArray[np.int64]
) -> tuple[int, int]:
    """Fill `samples` and `index` with sampled headers and `counters` with ports; returns how many of each."""
    n = k = 0
    begin = 0
    for number in range(ends.size):
        at, end = begin, ends[number]
        begin = end
        at += 24 if data[at + 7] == 1 else 36  # past an agent address of 4 or 16 bytes, to the samples' number
        if at + 4 > end:
            tallies[0] += 1
            continue
        num = _u32(data, at)
        at += 4
        for _ in range(num):
            if at + 8 > end:
                tallies[0] += 1
                break
            tag, length = _u32(data, at), _u32(data, at + 4)
            body = at + 8
            if body + length > end:
                tallies[0] += 1
                break
            if tag in (_FLOW, _WIDE_FLOW):
                if n < samples.size and _walk_flow(
                    data, body, body + length, tag == _WIDE_FLOW, samples[n], index[n], tallies
                ):
                    samples[n].datagram = number
                    n += 1
                else:
                    tallies[1] += 1
            elif (
                tag in (_COUNTERS, _WIDE_COUNTERS)
                and k < counters.size
                and _walk_counters(data, body, body + length, tag == _WIDE_COUNTERS, counters[k])
            ):
                counters[k].datagram = number
                k += 1
            at = body + length
    return n, k
