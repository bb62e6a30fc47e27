"""A flow collector: export datagrams in, FLOWS out, bounded whatever arrives."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from prism.collect import ipfix, netflow
from prism.collect.counts import SourceCounts
from prism.collect.export_session import Announced, ExportSession
from prism.collect.record_sets import EXPORTED, DataSet, decode_sets
from prism.collect.sflow import COUNTERS, SflowReader, is_sflow

MAX_SESSIONS = 2_048
_IDLE_NS = 60 * 10**9  # A stream silent for this long may be forgotten for a new one.
_MAX_PENDING_BYTES = 64 << 20
_MOST_COUNTER_BATCHES = 256  # kept for who asks for them

Reader = Callable[[bytes, Callable[[int], ExportSession | None]], list[DataSet]]
_READERS: dict[int, Reader] = {
    ipfix.VERSION: ipfix.read_ipfix,
    netflow.V9: netflow.read_netflow_v9,
    netflow.V5: netflow.read_netflow_v5,
}

Sender = tuple[str, int]


@dataclass(slots=True)
class Collector:
    """Takes IPFIX, NetFlow 9 and 5 and sFlow 5 from any number of exporters; `flush` decodes what has gathered."""

    counts: SourceCounts = field(default_factory=SourceCounts)
    _sessions: dict[tuple[Sender, int, int], ExportSession] = field(default_factory=dict)
    _announced: dict[tuple[str, int, int], Announced] = field(default_factory=dict)  # by address, version, domain
    _pending: dict[int, list[DataSet]] = field(default_factory=dict)  # by the identity of their template
    _pending_bytes: int = 0
    _samples: list[tuple[bytes, int]] = field(default_factory=list)  # sFlow datagrams and when they arrived
    _counters: list[pl.DataFrame] = field(default_factory=list)
    _sflow: SflowReader | None = None
    _look_for_idle_at_ns: int = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of records not yet decoded."""
        return self._pending_bytes

    @property
    def num_exporters(self) -> int:
        """Streams being followed."""
        return len(self._sessions)

    def feed(self, datagram: bytes, sender: Sender, now_ns: int) -> None:
        """Take one datagram; what is wrong with it is counted."""
        self.counts.received += 1
        self.counts.received_bytes += len(datagram)
        if is_sflow(datagram):
            self._keep_sflow(datagram, now_ns)
            return
        version = struct.unpack_from("!H", datagram)[0] if len(datagram) >= 2 else -1
        reader = _READERS.get(version)
        if reader is None:
            self.counts.malformed["version not supported"] += 1
            return
        try:
            ready = reader(datagram, lambda domain: self._open_session(sender, version, domain, now_ns))
        except ValueError as error:
            self.counts.malformed[str(error)] += 1
            return
        for one in ready:
            self._keep(one)

    def flush(self) -> pl.DataFrame:
        """FLOWS of every data set taken since the last call."""
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        frames = [decode_sets(sets, self.counts.dropped, self.counts.events) for sets in pending.values()]
        if self._samples:
            frames.append(self._read_sflow())
        flows = pl.concat(frames, how="diagonal") if frames else pl.DataFrame(schema=EXPORTED)
        self.counts.flows += flows.height
        return flows

    def give_up_waiting(self) -> None:
        """Count the data sets that still wait for their template: the source is at its end."""
        for session in self._sessions.values():
            session.give_up_waiting()

    def save(self) -> list[dict[str, Any]]:
        """What exporters have announced, as a document; without it data waits for minutes after a restart."""
        return [
            {"sender": list(sender), "version": version, "domain": domain, **session.save()}
            for (sender, version, domain), session in list(self._sessions.items())
        ]

    def restore(self, saved: list[dict[str, Any]]) -> None:
        """Take back what `save` wrote; entries that do not hold together are left out."""
        for entry in saved[:MAX_SESSIONS]:
            try:
                sender: Sender = (str(entry["sender"][0]), int(entry["sender"][1]))
                version, domain = int(entry["version"]), int(entry["domain"])
                session = self._make_session(sender, version, domain)
                session.restore(entry)
                self._sessions[sender, version, domain] = session
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                self.counts.events["saved exporters that could not be read"] += 1

    def take_counters(self) -> pl.DataFrame:
        """Counters of ports that have come since the last call."""
        taken, self._counters = self._counters, []
        return pl.concat(taken) if taken else pl.DataFrame(schema=COUNTERS)

    def _keep_sflow(self, datagram: bytes, now_ns: int) -> None:
        if self._pending_bytes + len(datagram) > _MAX_PENDING_BYTES:
            self.counts.dropped["datagrams beyond the memory limit"] += 1
            return
        self._pending_bytes += len(datagram)
        self._samples.append((datagram, now_ns))

    def _read_sflow(self) -> pl.DataFrame:
        taken, self._samples = self._samples, []
        self._sflow = self._sflow or SflowReader(self.counts)
        flows, counters = self._sflow.read([d for d, _ in taken], [t for _, t in taken])
        self._counters = [*self._counters, counters][-_MOST_COUNTER_BATCHES:]
        return flows

    def _keep(self, one: DataSet) -> None:
        if self._pending_bytes + len(one.payload) > _MAX_PENDING_BYTES:
            self.counts.dropped["data sets beyond the memory limit"] += 1
            return
        self._pending_bytes += len(one.payload)
        self._pending.setdefault(id(one.template), []).append(one)

    def _open_session(self, sender: Sender, version: int, domain: int, now_ns: int) -> ExportSession | None:
        key = (sender, version, domain)
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS and not self._forget_idle(now_ns):
                self.counts.dropped["messages of exporters beyond the limit"] += 1
                return None
            session = self._sessions[key] = self._make_session(sender, version, domain)
        session.last_seen_ns = now_ns
        return session

    def _make_session(self, sender: Sender, version: int, domain: int) -> ExportSession:
        """A stream; it knows what the sender announced from other ports, as some change theirs with every message."""
        shared = self._announced.setdefault((sender[0], version, domain), Announced())
        return ExportSession(exporter=sender[0], counts=self.counts, shared=shared)

    def _forget_idle(self, now_ns: int) -> bool:
        """Make room; streams in use stay, so that a flood of made-up senders cannot push them out."""
        if now_ns < self._look_for_idle_at_ns:
            return False
        key = min(self._sessions, key=lambda k: self._sessions[k].last_seen_ns)
        idle = now_ns - self._sessions[key].last_seen_ns
        if idle < _IDLE_NS:
            self._look_for_idle_at_ns = now_ns + min(_IDLE_NS - idle, 10**9)
            return False
        del self._sessions[key]
        (address, _), version, domain = key
        if not any((k[0][0], *k[1:]) == (address, version, domain) for k in self._sessions):
            del self._announced[address, version, domain]
        self.counts.events["exporters forgotten"] += 1
        return True
