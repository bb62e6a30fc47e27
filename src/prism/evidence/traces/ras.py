"""NCCL RAS: its text and JSON answers, and who lags behind in them.

RAS (NCCL 2.24 on, JSON from 2.28.7 on) lists which ranks differ from most. Who is waited for are the ranks that have
launched the fewest operations, and those that do not answer; they are named here, however many they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prism.errors import BadFileError

_BLOCK = re.compile(r"^#\d+-\d+ \(([0-9a-f]{1,40})\) ?(.*)$")
_LAUNCHED = re.compile(r"^\s*(\d{1,7}) ranks? (?:have|has) launched up to operation (\d{1,18})")
_RANK = re.compile(
    r"^\s*Rank (\d{1,7}) (?:has launched up to operation (\d{1,18}) )?-- "
    r"GPU (\S{1,20}) managed by process (\d{1,10}) on node (\S{1,253})"
)
# NCCL 2.28.9 leaves out the comma after the GPU of a rank that does not answer.
_LOST_COMMA = re.compile(r'("nvml_dev": \d{1,7})(\s{1,100}"status")')
_MISSING = re.compile(r"^\s*The missing ranks?: ([\d, ]{1,100000})$")
_GONE = re.compile(r"^\s*Process (\d{1,10}) on node (\S{1,253}) managing GPUs? (\S{1,100})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RasMember:
    """One rank of a communicator as RAS sees it."""

    rank: int
    host: str = ""
    pid: int = 0
    gpu: str = ""
    launched: int | None = None  # operations of all kinds
    answers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RasCommunicator:
    """A communicator; the text form lists only some of its members."""

    name: str
    size: int | None
    members: tuple[RasMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Laggards:
    """Who the others wait for in one communicator."""

    communicator: str
    size: int | None
    members: tuple[RasMember, ...]
    behind: int | None  # operations behind the first; None: they do not answer


def parse_ras(text: str, where: str) -> list[RasCommunicator]:
    """Communicators of an answer in either form."""
    begin = text.find("{")
    if begin >= 0 and not text[:begin].strip().strip("OK").strip():
        try:
            return _parse_json(json.loads(_LOST_COMMA.sub(r"\1,\2", text[begin:])), where)
        except (ValueError, RecursionError):
            raise BadFileError(f"{where}: RAS output that is not whole JSON; query again") from None
    return _parse_text(text)


def _parse_json(document: Any, where: str) -> list[RasCommunicator]:
    found = document.get("communicators") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise BadFileError(f"{where}: JSON without 'communicators', so it is not from NCCL RAS")
    made = []
    for told in (c for c in found if isinstance(c, dict)):
        members = [_member(m, answers=True) for m in _dicts(told.get("ranks"))]
        members += [_member(m, answers=False) for m in _dicts(told.get("missing_ranks"))]
        size = told.get("size")
        made.append(
            RasCommunicator(
                name=str(told.get("hash", "")), size=size if isinstance(size, int) else None, members=tuple(members)
            )
        )
    return made


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _member(told: dict[str, Any], *, answers: bool) -> RasMember:
    counts = told.get("collective_counts")
    launched = sum(v for v in counts.values() if isinstance(v, int)) if isinstance(counts, dict) else None
    return RasMember(
        rank=told["rank"] if isinstance(told.get("rank"), int) else -1,
        host=str(told.get("host", "")),
        pid=told["pid"] if isinstance(told.get("pid"), int) else 0,
        gpu=str(told.get("nvml_dev", told.get("cuda_dev", ""))),
        launched=launched if answers else None,
        answers=answers,
    )


def _parse_text(text: str) -> list[RasCommunicator]:
    made: dict[str, list[RasMember]] = {}
    gone: list[RasMember] = []
    name, launched, incomplete = "", None, False
    for line in text.splitlines():
        if block := _BLOCK.match(line):
            name, launched, incomplete = block.group(1), None, block.group(2).strip() == "INCOMPLETE"
            made.setdefault(name, [])
        elif count := _LAUNCHED.match(line):
            launched = int(count.group(2))
            # RAS lists the smaller side; the others count although nothing else is said of them.
            made.setdefault(name, []).append(RasMember(rank=-1, launched=launched))
        elif member := _RANK.match(line):
            rank, own, gpu, pid, host = member.groups()
            told = RasMember(
                rank=int(rank),
                host=host,
                pid=int(pid),
                gpu=gpu,
                launched=None if incomplete else int(own) if own else launched,
                answers=not incomplete,
            )
            made.setdefault(name, []).append(told)
        elif lost := _GONE.match(line):
            gone.append(
                RasMember(rank=-1, host=lost.group(2), pid=int(lost.group(1)), gpu=lost.group(3), answers=False)
            )
        elif missing := _MISSING.match(line):
            ranks = [int(r) for r in re.findall(r"\d{1,7}", missing.group(1))]
            place = gone[0] if len(gone) == len(ranks) == 1 else RasMember(rank=-1, answers=False)
            made.setdefault(name, []).extend(
                RasMember(rank=r, host=place.host, pid=place.pid, gpu=place.gpu, answers=False) for r in ranks
            )
    return [RasCommunicator(name=n, size=None, members=tuple(m)) for n, m in made.items()]


def find_laggards(communicators: Sequence[RasCommunicator]) -> list[Laggards]:
    """Ranks that do not answer, else those that launched least."""
    found = []
    for told in communicators:
        silent = tuple(m for m in told.members if not m.answers)
        counted = [m for m in told.members if m.launched is not None]
        if silent:
            found.append(Laggards(communicator=told.name, size=told.size, members=silent, behind=None))
        elif counted:
            least, most = min(m.launched or 0 for m in counted), max(m.launched or 0 for m in counted)
            last = tuple(m for m in counted if m.launched == least and m.rank >= 0)
            if last and least < most:
                found.append(Laggards(communicator=told.name, size=told.size, members=last, behind=most - least))
    # A rank that does not answer explains others that are behind.
    return sorted(found, key=lambda x: (x.behind is not None, len(x.members)))
