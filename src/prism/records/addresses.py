"""Endpoint addresses: which texts are valid, and binary addresses as text."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

import polars as pl

# An endpoint may be an IP address, a MAC, an InfiniBand GID or LID, or a host name with an optional device or port.
_DOTTED = re.compile(r"^[0-9.]+$")
_IPV4 = r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$"
_NAME = re.compile(r"^[A-Za-z0-9_]([A-Za-z0-9_.:%/@-]*[A-Za-z0-9_])?$")
_MAC_OR_HEX = re.compile(r"^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2})+$")


def is_address(text: str) -> bool:
    """Whether `text` can name an endpoint."""
    if not text or len(text) > 255:
        return False
    if _DOTTED.match(text):
        return text.isdigit() or is_ip(text)  # A bare number is a LID or a rank.
    if ":" in text and not _MAC_OR_HEX.match(text) and re.fullmatch(r"[0-9A-Fa-f:.]+", text):
        return is_ip(text) or bool(re.fullmatch(r"[0-9.]+:\d+", text) and is_ip(text.rsplit(":", 1)[0]))
    return bool(_NAME.match(text))


def first_bad_address(addresses: pl.Series) -> str | None:
    """A text in `addresses` that cannot name an endpoint."""
    unusual = addresses.unique().drop_nulls()
    unusual = unusual.filter(~unusual.str.contains(_IPV4))
    return next((a for a in unusual if not is_address(a)), None)


def binary_to_text(address: bytes) -> str | None:
    """A 4- or 16-byte address in its usual notation; None for any other family.

    goflow2's ClickHouse table keeps IPv4 in the first four bytes of sixteen, the rest zero.
    """
    if len(address) == 4 or (len(address) == 16 and address[4:] == bytes(12) and address[:4] != bytes(4)):
        return str(ipaddress.IPv4Address(address[:4]))
    if len(address) != 16:
        return None
    v6 = ipaddress.IPv6Address(address)
    return str(v6.ipv4_mapped or v6)


def unify_addresses(frame: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """IPv6 addresses in one notation (RFC 5952), without brackets; IPv6-mapped IPv4 addresses become IPv4."""
    for column in columns:
        texts = frame[column].unique()
        plain = {text: _plain_ip(text) for text in texts.filter(texts.str.contains(":", literal=True))}
        changed = {text: ip for text, ip in plain.items() if ip != text}
        frame = frame.with_columns(pl.col(column).replace(changed)) if changed else frame
    return frame


def _plain_ip(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        ip = ipaddress.IPv6Address(bare)
    except ValueError:
        return text
    return str(ip.ipv4_mapped or ip)


def numbers_to_text(numbers: pl.Series) -> pl.Series:
    """IPv4 addresses that are kept as numbers, in their usual notation."""
    parts = [((numbers.cast(pl.Int64) // 256**power) % 256).cast(pl.String) for power in (3, 2, 1, 0)]
    return pl.select(pl.concat_str(parts, separator=".")).to_series()


def is_ip(text: str) -> bool:
    """Whether `text` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
