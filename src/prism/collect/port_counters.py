"""Counters of switch ports: how loaded each port is, what it could not pass on, and how often it was told to wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from prism.records.ports import PortLoad

_MOST_PORTS = 65_536
_WRAP = 2**32  # errors and discards of sFlow and of the interface MIB are 32 bits wide


@dataclass(slots=True, kw_only=True)
class _Port:
    """The last counters of a port, and what was made of all of them."""

    last: dict[str, Any]
    start_ns: int
    load: float | None = None
    peak: float | None = None
    errors: int = 0
    discards: int = 0
    pauses: int = 0

    def take(self, row: dict[str, Any]) -> None:
        seconds = (row["time_ns"] - self.last["time_ns"]) / 1e9
        sent, received = self._grown(row, "out_octets"), self._grown(row, "in_octets")
        moved = [octets for octets in (sent, received) if octets is not None]
        # A port that was cleared counts from zero again: what lies between is not known.
        if min(moved, default=0) >= 0:
            if seconds > 0 and moved and row["speed"] > 0:
                self.load = None if sent is None else sent * 8 / seconds / row["speed"]
                self.peak = max(self.peak or 0.0, max(moved) * 8 / seconds / row["speed"])
            self.errors += self._lost(row, "errors")
            self.discards += self._lost(row, "discards")
            self.pauses += self._lost(row, "pauses")
        self.last = row

    def _grown(self, row: dict[str, Any], name: str) -> int | None:
        now, before = row.get(name), self.last.get(name)
        return None if now is None or before is None else now - before

    def _lost(self, row: dict[str, Any], name: str) -> int:
        grown = (self._grown(row, f"{way}_{name}") for way in ("in", "out"))
        return sum(number % _WRAP for number in grown if number is not None)


@dataclass(slots=True)
class PortCounters:
    """Follows the counters of every port."""

    _ports: dict[tuple[str, int | str], _Port] = field(default_factory=dict)

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
                pauses=port.pauses,
                start_ns=port.start_ns,
                end_ns=port.last["time_ns"],
            )
            for (exporter, number), port in sorted(self._ports.items(), key=lambda item: (item[0][0], str(item[0][1])))
        )


def measure_ports(counters: pl.DataFrame) -> tuple[PortLoad, ...]:
    """Every port of a table of counter samples."""
    ports = PortCounters()
    if counters.height:
        ports.take(counters.sort("time_ns", maintain_order=True))
    return ports.status()
