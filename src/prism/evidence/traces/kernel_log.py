"""GPU errors in kernel logs: Xid of a GPU's driver and SXid of an NVSwitch, with host, device and time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from prism.records.compression import is_compressed, unpack

Severity = Literal["hardware", "program", "aftermath", "harmless", "unknown"]

# Which Xid codes mean what: NVIDIA's Xid catalogue as gpud's table carries it (leptonai/gpud, Apache-2.0), by the
# action that it asks for at once. Reset or swap the GPU, or check its links: hardware.
_HARDWARE = {
    46,
    48,
    54,
    62,
    64,
    74,
    79,
    94,
    95,
    109,
    110,
    119,
    120,
    136,
    140,
    *range(142, 152),
    155,
    156,
    158,
    171,
    172,
}
_PROGRAM = {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), *range(75, 79), 80, *range(82, 87), 88, 89}
_PROGRAM |= {*range(96, 106), *range(126, 136), 139}
_AFTERMATH = {43, 45, 154}  # they follow another error or the end of a process
_HARMLESS = {37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
# SXid codes that gpud's table rates as warnings; all others end traffic over the switch.
_SWITCH_WARNINGS = {11012, 11021, 11022, 11023, 12021, 12023, 12030, 15008, 15011, 20001, 20009, 20012, 22013}
_SWITCH_WARNINGS |= {19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071, 24001, 24002, 24003, *range(10001, 10006)}
_WORDS = {
    13: "the program made an invalid access or instruction",
    31: "the program touched memory that is not mapped",
    43: "a channel stopped because of the program",
    45: "channels were cleaned up after another error",
    48: "uncorrectable memory error",
    63: "a memory row was remapped",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    92: "many correctable memory errors",
    94: "uncorrectable memory error, contained to one program",
    95: "uncorrectable memory error, not contained",
    109: "switching between programs timed out",
    119: "the GPU's own processor (GSP) does not answer",
    120: "the GPU's own processor (GSP) failed",
    140: "unrecovered memory error",
    145: "NVLink error",
    149: "NVLink error",
}
_EVENT = re.compile(rb"(S?Xid) \(PCI:([0-9A-Fa-f:.]{4,16})\): (\d{1,5})")
_SYSLOG = re.compile(r"^(?:<\d{1,3}>)?(?:\S{1,40}T\S{1,40}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (\S{1,253}) kernel:")
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_DMESG = re.compile(r"^\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]")
_MOST_BYTES = 256 << 20
_MOST_EVENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuError:
    """One error that a driver wrote to the kernel's log."""

    host: str
    device: str  # PCI address
    family: Literal["Xid", "SXid"]
    code: int
    severity: Severity
    at_ns: int | None  # None: the line's time has no year
    text: str


def rate_error(family: str, code: int) -> Severity:
    """Whether a code means broken hardware, a faulty program, the aftermath of another error, or nothing."""
    if family == "SXid":
        return "harmless" if code in _SWITCH_WARNINGS else "hardware"
    for known, severity in ((_HARDWARE, "hardware"), (_PROGRAM, "program"), (_AFTERMATH, "aftermath")):
        if code in known:
            return severity  # type: ignore[return-value]
    return "harmless" if code in _HARMLESS else "unknown"


def describe_error(error: GpuError) -> str:
    """One line for people."""
    words = _WORDS.get(error.code, "") if error.family == "Xid" else "NVSwitch error"
    return f"{error.family} {error.code} on {error.host} {error.device}" + (f": {words}" if words else "")


def read_gpu_errors(paths: Iterable[Path]) -> list[GpuError]:
    """Errors of all logs, in order; a line that names no host belongs to the one that its file is named after."""
    found: list[GpuError] = []
    for path in paths:
        if len(found) < _MOST_EVENTS:
            found += _read_file(path)
    return sorted(found, key=lambda e: (e.at_ns is None, e.at_ns or 0))


def _read_file(path: Path) -> list[GpuError]:
    with path.open("rb") as handle:
        packed = is_compressed(handle.read(8))
        handle.seek(0)
        data = unpack(path, _MOST_BYTES) if packed else handle.read(_MOST_BYTES)
    errors = []
    for match in _EVENT.finditer(data):
        begin = data.rfind(b"\n", max(match.start() - 400, 0), match.start()) + 1
        end = data.find(b"\n", match.end(), match.end() + 400)
        line = data[begin or max(match.start() - 400, 0) : end if end >= 0 else match.end() + 400].decode(
            "utf-8", "replace"
        )
        told = _SYSLOG.match(line)
        family, code = match.group(1).decode(), int(match.group(3))
        errors.append(
            GpuError(
                host=told.group(1) if told else _host_of_file(path),
                device=match.group(2).decode(),
                family=family,  # type: ignore[arg-type]
                code=code,
                severity=rate_error(family, code),
                at_ns=_read_time(line),
                text=line.strip()[:300],
            )
        )
        if len(errors) >= _MOST_EVENTS:
            break
    return errors


def _read_time(line: str) -> int | None:
    stamp = _ISO.search(line[:80])
    try:
        if stamp:
            when = datetime.fromisoformat(stamp.group(0).replace(",", "."))
        elif told := _DMESG.match(line):
            when = datetime.strptime(told.group(1), "%a %b %d %H:%M:%S %Y")  # in local time
        else:
            return None
        return int(when.timestamp()) * 1_000_000_000 + when.microsecond * 1000
    except (ValueError, OverflowError):
        return None


def _host_of_file(path: Path) -> str:
    name = re.sub(r"[-_.]?(?:dmesg|kern(?:el)?|messages|syslog|journal)[-_.]?", "", path.name.split(".")[0])
    return name or path.parent.name
