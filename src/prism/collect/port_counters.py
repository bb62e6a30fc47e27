"""Counters of switch ports as sFlow sends them: how loaded each port is, and what it could not pass on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from prism.records.ports import PortLoad

_MOST_PORTS = 65_536
_WRAP = 2**32  # errors and discards are 32 bits wide


@dataclass(slots=True, kw_only=True)
class _Port:
    """The last counters of a port, and what was made of all of them."""

    last: dict[str, Any]
    start_ns: int
    load: float | None = None
    peak: float | None = None
    errors: int = 0
    discards: int = 0

    def take(self, row: dict[str, Any]) -> None:
        seconds = (row["time_ns"] - self.last["time_ns"]) / 1e9
        sent, received = (row[c] - self.last[c] for c in ("out_octets", "in_octets"))
        # A port that was cleared counts from zero again: what lies between is not known.
        if seconds > 0 and min(sent, received) >= 0 and row["speed"] > 0:
            self.load = sent * 8 / seconds / row["speed"]
            self.peak = max(self.peak or 0.0, self.load, received * 8 / seconds / row["speed"])
        if min(sent, received) >= 0:
            self.errors += sum((row[c] - self.last[c]) % _WRAP for c in ("in_errors", "out_errors"))
            self.discards += sum((row[c] - self.last[c]) % _WRAP for c in ("in_discards", "out_discards"))
        self.last = row


@dataclass(slots=True)
class PortCounters:
    """Follows the counters of every port."""

    _ports: dict[tuple[str, int], _Port] = field(default_factory=dict)

    def take(self, counters: pl.DataFrame) -> None:
        """Take counter samples, in the order they came."""
        for row in counters.iter_rows(named=True):
            key = (row["exporter"], row["port"])
            known = self._ports.get(key)
            if known is not None:
                known.take(row)
            elif len(self._ports) < _MOST_PORTS:
                self._ports[key] = _Port(last=row, start_ns=row["time_ns"])

    def status(self) -> tuple[PortLoad, ...]:
        """Every port, by exporter and number."""
        return tuple(
            PortLoad(
                exporter=exporter,
                port=number,
                load=port.load,
                peak=port.peak,
                errors=port.errors,
                discards=port.discards,
                start_ns=port.start_ns,
                end_ns=port.last["time_ns"],
            )
            for (exporter, number), port in sorted(self._ports.items())
        )


def measure_ports(counters: pl.DataFrame) -> tuple[PortLoad, ...]:
    """Every port of a table of counter samples."""
    ports = PortCounters()
    if counters.height:
        ports.take(counters.sort("time_ns", maintain_order=True))
    return ports.status()
