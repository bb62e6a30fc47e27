"""PORTS: counters of a switch's port, as evidence beside flows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_BUSY = 0.9  # share of a port's speed that leaves no room for bursts


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLoad:
    """One port over the time that its counters cover; loads are shares of its speed, None where one sample came."""

    exporter: str
    port: int | str
    load: float | None  # out, between the last two samples
    peak: float | None  # the largest between two samples, in or out
    errors: int  # packets that could not be read or sent
    discards: int  # packets for which there was no room
    start_ns: int
    end_ns: int
    pauses: int = 0  # pause frames, in or out: one side had no room and the other waited

    @property
    def is_troubled(self) -> bool:
        """Whether it lost packets, had no room left, or was paused."""
        return bool(self.errors or self.discards or self.pauses) or (self.peak or 0.0) >= _BUSY

    def describe(self) -> str:
        """The counters in words, with units."""
        said = [] if self.peak is None else [f"up to {100 * self.peak:.0f} % of its speed in use"]
        counted = ((self.errors, "errors"), (self.discards, "discards"), (self.pauses, "pause frames"))
        said += [f"{num:,} {what}" for num, what in counted if num]
        return f"switch {self.exporter} port {self.port}: {', '.join(said) or 'no errors'} (its own counters)"

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        return asdict(self)
