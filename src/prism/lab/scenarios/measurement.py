"""How the flows are measured, with all its errors."""

from __future__ import annotations

from dataclasses import dataclass

from prism.records.settings import Checked, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Checked):
    """An exporter's settings and errors; the defaults record every message with exact times."""

    byte_jitter: float = number(3e-4, 0, 0.5)  # headers and retransmissions, as a share of the bytes
    idle_timeout_ms: float = number(0.0, 0, 1e6)  # messages of a connection closer than this are one record; 0: never
    active_timeout_ms: float = number(0.0, 0, 1e7)  # records longer than this are cut; 0: never
    lost: float = number(0.0, 0, 1)  # share of records that never arrive
    sampling_rate: int = number(1, 1, 1_000_000)  # one packet in this many is seen
    packet_bytes: int = number(4096, 64, 65_536)
    clock_offset_ms: float = number(0.0, 0, 1e6)  # standard deviation over exporters
    clock_drift_ppm: float = number(0.0, 0, 1000)  # standard deviation over exporters
    resolution_ms: float = number(0.0, 0, 10_000)  # times are cut to multiples of this
    shared_addresses: bool = False  # the NICs of neighbouring rails appear under one address
    renamed: bool = False  # addresses are replaced, as by NAT; the truth holds both names
    with_path: bool = True
    with_ports: bool = True
    with_packets: bool = False
    with_exporter: bool = False
