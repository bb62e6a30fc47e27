"""Counters of switch ports as sFlow sends them: how loaded each port is, and what it could not pass on."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

_MOST_PORTS = 65_536
_WRAP = 2**32  # errors and discards are 32 bits wide


@dataclass(slots=True, kw_only=True)
class PortStatus:
    """One port: its load between its last two counter samples, and what went wrong since the watch began."""

    exporter: str
    port: int
    load: float | None = None  # share of its speed, out; None where only one sample has come
    faults: int = 0
    time_ns: int = 0
    octets: int = 0
    raw_faults: int = 0


@dataclass(slots=True)
class PortCounters:
    """Follows the counters of every port."""

    _ports: dict[tuple[str, int], PortStatus] = field(default_factory=dict)

    def take(self, counters: pl.DataFrame) -> None:
        """Take counter samples, in the order they came."""
        for row in counters.iter_rows(named=True):
            key = (row["exporter"], row["port"])
            faults = sum(row[c] for c in ("in_errors", "out_errors", "in_discards", "out_discards"))
            known = self._ports.get(key)
            if known is None:
                if len(self._ports) < _MOST_PORTS:
                    self._ports[key] = PortStatus(
                        exporter=key[0],
                        port=key[1],
                        time_ns=row["time_ns"],
                        octets=row["out_octets"],
                        raw_faults=faults,
                    )
                continue
            seconds = (row["time_ns"] - known.time_ns) / 1e9
            passed = row["out_octets"] - known.octets
            if seconds > 0 and passed >= 0 and row["speed"] > 0:
                known.load = passed * 8 / seconds / row["speed"]
            known.faults += (faults - known.raw_faults) % _WRAP
            known.time_ns, known.octets, known.raw_faults = row["time_ns"], row["out_octets"], faults

    def status(self) -> tuple[PortStatus, ...]:
        """Every port, by exporter and number."""
        return tuple(self._ports[key] for key in sorted(self._ports))
