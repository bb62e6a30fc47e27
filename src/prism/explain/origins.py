"""Recover rank, host and time from the prefixes that launchers and loggers put before a line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MAX_PREFIXES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where one line came from, and what is left of it."""

    text: str
    rank: int | None = None
    host: str | None = None
    time_ns: int | None = None


_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|(?=[a-z._-]*\d)[a-z][a-z0-9._-]*)"
# Tried in turn at the start of a line, each at most once; named groups say what they carry.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) (?:(?:stdout|stderr) [FP] )?",
        r"\[(?:default|local_rank|trainer)(?P<local>\d+)\]:? ?",  # torchrun --tee
        r"\[[Rr]ank[ _-]?(?P<rank>\d+)(?:/\d+)?\]:? ?(?=\S|$|\s)",  # torch
        r"\[\d+,(?P<mpirank>\d+)\]<std(?:out|err)>:? ?",  # Open MPI
        r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ",  # kubectl logs --prefix
        r"\((?:[\w.:-]+ )?pid=\d+(?:, ip=(?P<ip>[\d.]+))?\) ?",  # Ray
        r"\s{0,4}(?P<task>\d{1,5}): ",  # srun --label
        r"(?P<month>(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d) "
        r"(?P<syshost>[\w.-]+) (?=[\w./-]+(?:\[\d+\])?:)",
        r"[\w.-]+\s+\| (?=\s*\S)",  # docker compose
        r"\[[EWIF] [\w./-]+:\d+\] ?",
        r"kernel: (?:\[ *\d+\.\d+\] )?",
        r"\[ *\d+\.\d{6}\] ",  # dmesg
        r"(?P<nccl>[\w.-]+):\d+:\d+ \[(?P<gpu>-?\d+)\] ",
        r"(?P<launch>" + _HOST + r"): (?=[\[(\dA-Z ])",  # pdsh, DeepSpeed
        r"\[?(?P<stamp>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?(?: ?[-|:,]? ?)",
        r"\[?[EWIF](?P<glog>\d{3,4} \d\d:\d\d:\d\d\.\d+)(?: +\d+)? [\w./-]+:\d+\] ?",
        r"(?P<us>\d\d/\d\d/\d{4} \d\d:\d\d:\d\d) - ",
    )
)
_LEVEL = re.compile(
    r"(?:\[?(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL)\]?(?:\s+|:\s*|\s*[|-]\s*))"
    r"(?:\[?[\w./-]+\.(?:py|cpp|cc)(?::\d+(?::\w+)?)?\]?:? ?)?"
)
_INLINE_RANK = re.compile(r"(?:\b[Gg]lobal[_ ])?\b[Rr]ank(?:[ =:]{1,3}|\s*:\s+)(\d{1,6})\b")


@lru_cache(maxsize=4096)
def parse_line(raw: str) -> Origin:
    """Strip colours and known prefixes from a line; what they said is kept beside its text."""
    text = _CONTROL.sub(" ", ANSI.sub("", raw)) if "\x1b" in raw or _CONTROL.search(raw) else raw
    rank: int | None = None
    host: str | None = None
    time_ns: int | None = None
    for _ in range(_MAX_PREFIXES):
        match = next((m for p in _PREFIXES if (m := p.match(text))), None)
        if match is None or match.end() == 0:
            break
        said = {k: v for k, v in match.groupdict().items() if v is not None}
        number = said.get("rank") or said.get("mpirank") or said.get("task") or said.get("local")
        rank = int(number) if number is not None and rank is None else rank
        host = (
            host or said.get("nccl") or said.get("syshost") or said.get("launch") or said.get("ip") or said.get("pod")
        )
        time_ns = time_ns if time_ns is not None else _time_of(said)
        text = text[match.end() :]
    return Origin(text=text, rank=rank, host=host, time_ns=time_ns)


def strip_level(text: str) -> str:
    """A message without the level and source file that its logger put before it."""
    match = _LEVEL.match(text)
    return text[match.end() :] if match else text


def named_rank(text: str) -> int | None:
    """The rank that a message names in its own words."""
    match = _INLINE_RANK.search(text)
    return int(match.group(1)) if match else None


def _time_of(said: dict[str, str]) -> int | None:
    for key, layout in (("iso", None), ("stamp", None), ("us", "%m/%d/%Y %H:%M:%S"), ("month", "%b %d %H:%M:%S"),
                        ("glog", "%m%d %H:%M:%S.%f")):  # fmt: skip
        if key in said:
            return _to_ns(said[key], layout)
    return None


def _to_ns(stamp: str, layout: str | None) -> int | None:
    """Nanoseconds since 1970; a stamp without a year is placed in 2000, a leap year, which keeps the order."""
    try:
        if layout is None:
            moment = datetime.fromisoformat(stamp.replace("/", "-").replace(",", ".").replace("Z", "+00:00")[:32])
        elif layout.startswith("%m%d"):
            date, clock = stamp.split(" ", 1)
            moment = datetime.strptime(f"2000{date.zfill(4)} {clock[:15]}", "%Y%m%d %H:%M:%S.%f")
        elif "%Y" in layout:
            moment = datetime.strptime(stamp, layout)
        else:
            moment = datetime.strptime(f"2000 {' '.join(stamp.split())}", f"%Y {layout}")
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1000
