"""Addresses from bytes on the wire to text, each distinct one written once."""

from __future__ import annotations

import ipaddress

import numpy as np
import polars as pl
from numpy.typing import NDArray

Words = NDArray[np.uint64]

MAPPED = np.uint64(0xFFFF_0000_0000)
"""Low half of an IPv6 address that stands for an IPv4 one; the high half is zero."""


def write_addresses(high: Words, low: Words) -> pl.Series:
    """Addresses given as two 64-bit halves, IPv4 ones mapped into IPv6, as text."""
    halves = pl.DataFrame({"high": high, "low": low})
    distinct = halves.unique()
    text = [_to_text(h, lo) for h, lo in distinct.iter_rows()]
    named = distinct.with_columns(pl.Series("text", text, dtype=pl.String))
    return halves.join(named, on=["high", "low"], how="left", maintain_order="left")["text"]


def write_macs(address: Words) -> pl.Series:
    """MAC addresses as text, for records that have no others."""
    distinct, place = np.unique(address, return_inverse=True)
    text = [":".join(f"{int(one):012x}"[i : i + 2] for i in range(0, 12, 2)) for one in distinct]
    return pl.Series(text, dtype=pl.String).gather(place)


def map_ipv4(address: NDArray[np.uint64]) -> Words:
    """The low halves of IPv4 addresses."""
    return address | MAPPED


def _to_text(high: int, low: int) -> str:
    if high == 0 and low >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(low & 0xFFFF_FFFF))
    return str(ipaddress.IPv6Address((high << 64) | low))
