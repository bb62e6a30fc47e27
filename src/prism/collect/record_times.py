"""When a flow began and ended, out of the many ways in which exporters say it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism.collect.elements import Role

Words = NDArray[np.uint64]
Times = NDArray[np.int64]

NO_TIME = np.int64(-1)
_NTP_TO_UNIX_S = 2_208_988_800  # seconds from 1900 to 1970 (RFC 5905)
_TOP_BIT = np.uint64(1 << 63)
_LAST_NS = np.uint64(4_102_444_800 * 10**9)  # the year 2100: later times are damage, not dates
# Seconds, milliseconds and microseconds as roles end, in nanoseconds.
_UNITS = {"s": 10**9, "ms": 10**6}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportClock:
    """What the header of a record's message says of time, one value per record."""

    export_ns: Times
    uptime_ms: Times  # -1 where the header has none (IPFIX)
    boot_ns: Times  # -1 where unknown

    def count_unknown(self, columns: dict[Role, Words]) -> int:
        """Records whose times count from a start of the exporter that nothing tells."""
        if not columns.keys() & {"start_uptime", "end_uptime"} or "boot_ms" in columns or _is_absolute(columns):
            return 0
        return int((self.boot_ns < 0).sum())


def read_times(columns: dict[Role, Words], clock: ExportClock) -> tuple[Times, Times]:
    """Start and end of every record; the start is NO_TIME if it is unknown, the end if none was given."""
    start = _read_moment("start", columns, clock)
    end = _read_moment("end", columns, clock)
    lasted = _read_duration(columns)
    if start is None and end is None:
        return clock.export_ns.copy(), np.full(len(clock.export_ns), NO_TIME)
    if start is None and end is not None:
        start = end if lasted is None else np.where(end < 0, NO_TIME, np.maximum(end - lasted, 0))
    assert start is not None
    if end is None:
        end = np.full(len(start), NO_TIME) if lasted is None else np.where(start < 0, NO_TIME, start + lasted)
    return start, end


def _is_absolute(columns: dict[Role, Words]) -> bool:
    return any(role.startswith("start_") and role != "start_uptime" for role in columns)


def _read_duration(columns: dict[Role, Words]) -> Times | None:
    if "duration_us" in columns:
        return (columns["duration_us"] & np.uint64(0xFFFF_FFFF)).astype(np.int64) * 1_000
    if "duration_ms" in columns:
        return (columns["duration_ms"] & np.uint64(0xFFFF_FFFF)).astype(np.int64) * 1_000_000
    return None


def _read_moment(which: str, columns: dict[Role, Words], clock: ExportClock) -> Times | None:
    def has(name: str) -> Words | None:
        return columns.get(f"{which}_{name}")  # type: ignore[call-overload,no-any-return]

    if (value := has("ntp")) is not None:
        return _from_ntp(value, 1)
    if (value := has("ntp_us")) is not None:
        return _from_ntp(value, 1_000)
    if (value := has("ms")) is not None:
        return _scale(value, _UNITS["ms"])
    if (value := has("us")) is not None:
        return clock.export_ns - (value & np.uint64(0xFFFF_FFFF)).astype(np.int64) * 1_000
    if (value := has("uptime")) is not None:
        last = columns.get("end_uptime", value)
        return _from_uptime(value, clock, columns.get("boot_ms"), last)
    if (value := has("s")) is not None:
        return _scale(value, _UNITS["s"])
    return None


def _scale(value: Words, unit_ns: int) -> Times:
    sane = value <= _LAST_NS // np.uint64(unit_ns)
    return np.where(sane, np.where(sane, value, 0).astype(np.int64) * unit_ns, NO_TIME)


def _from_ntp(value: Words, unit_ns: int) -> Times:
    """NTP's 64 bits (RFC 7011, 6.1.9); some exporters send a plain count since 1970 instead, whose top bit is clear."""
    seconds = (value >> np.uint64(32)).astype(np.int64) - _NTP_TO_UNIX_S
    fraction = ((value & np.uint64(0xFFFF_FFFF)) * np.uint64(10**9)) >> np.uint64(32)
    is_ntp = (value & _TOP_BIT) != 0
    ntp = np.where(seconds >= 0, seconds * 10**9 + fraction.astype(np.int64), NO_TIME)
    return np.where(is_ntp, ntp, _scale(np.where(is_ntp, 0, value).astype(np.uint64), unit_ns))


def _from_uptime(value: Words, clock: ExportClock, boot_ms: Words | None, last: Words) -> Times:
    """Milliseconds since the exporter started, which wrap every 49.7 days."""
    boot = clock.boot_ns if boot_ms is None else _scale(boot_ms, _UNITS["ms"])
    if boot_ms is None:
        boot = np.where(boot < 0, _latest_boot(clock, last), boot)
    since = (value & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    # With the uptime of the message at hand, count back from it: the difference is right across a wrap.
    back = (since - clock.uptime_ms + 2**31) % 2**32 - 2**31
    since = np.where(clock.uptime_ms >= 0, clock.uptime_ms + back, since)
    return np.where(boot >= 0, boot + since * 1_000_000, NO_TIME)


def _latest_boot(clock: ExportClock, last: Words) -> Times:
    """The latest moment at which an exporter can have started: its newest flow ended when the message was sent."""
    ends = (last & np.uint64(0xFFFF_FFFF)).astype(np.int64) * 1_000_000
    moments, message = np.unique(clock.export_ns, return_inverse=True)
    newest = np.zeros(len(moments), np.int64)
    np.maximum.at(newest, message, ends)
    found: Times = clock.export_ns - newest[message]
    return found
