"""PyTorch Flight Recorder dumps: which collective each rank entered and which of them never ended.

Both forms are read, the pickle and the JSON, of torch 2.4 to 2.13 and of any backend. Some backends leave parts out:
gloo writes no group members and marks finished calls as `retired`; NCCL may write unfinished calls only, so how far
a rank came is told by `pg_status` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from prism.errors import BadFileError
from prism.evidence.traces.plain_pickle import read_plain_pickle

_NUMBER_AT_END = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle|bin))?$")
_MESSAGE = re.compile(r"\b(send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")
_LARGEST_BYTES = 1 << 30
# In these, members may pass different sizes and still be right.
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "allgather_coalesced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective or message that a rank entered."""

    group: str
    seq: int  # number of the collective in its group; of a message, its number among the messages
    kind: str  # such as all_reduce, without the backend
    sizes: str  # input sizes and types, as text to compare
    created_ns: int
    pending: bool
    peer: int | None = None  # position in the group of the other end of a message
    line: str = ""  # where the program made the call, file:line
    retired: bool = False  # taken off the list of pending calls without word that it completed

    @property
    def signature(self) -> tuple[str, str]:
        """What members of one collective must have alike; in some kinds they may pass different sizes."""
        uneven = any(word in self.kind for word in _UNEVEN) and "reduce" not in self.kind
        return self.kind, "" if uneven and "all_gather" not in self.kind else self.sizes

    @property
    def is_message(self) -> bool:
        """Whether this is a send or a receive."""
        return self.kind in ("send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as one rank knows it."""

    name: str
    description: str
    ranks: tuple[int, ...]  # empty: not written down


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one rank recorded."""

    rank: int
    path: str
    calls: tuple[Call, ...]
    groups: Mapping[str, Group]
    enqueued: Mapping[str, int]  # the last collective that this rank entered, per group


def read_dumps(paths: Iterable[Path]) -> list[Dump]:
    """Dumps of all ranks, by rank; two files of one rank are an error, since they are of two jobs."""
    dumps: dict[int, Dump] = {}
    for path in paths:
        dump = read_dump(path)
        if dump.rank in dumps:
            raise BadFileError(f"{path}: rank {dump.rank} is also in {dumps[dump.rank].path}; give one folder per job")
        dumps[dump.rank] = dump
    return [dumps[rank] for rank in sorted(dumps)]


def read_dump(path: Path) -> Dump:
    """One rank's dump; the rank is the number that the file's name ends in."""
    number = _NUMBER_AT_END.search(path.name)
    if number is None:
        raise BadFileError(f"{path}: the name does not end in a rank's number; rename it, such as dump_17")
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadFileError(f"{path}: larger than 1 GiB; lower TORCH_FR_BUFFER_SIZE (TORCH_NCCL_TRACE_BUFFER_SIZE)")
        data = path.read_bytes()
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror})") from None
    if data.lstrip()[:1] == b"{":
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            raise BadFileError(f"{path}: not whole JSON; the process died while writing it, leave it out") from None
    else:
        document = read_plain_pickle(data, str(path))
    return parse_dump(document, rank=int(number.group(1)), where=str(path))


def parse_dump(document: Any, *, rank: int, where: str) -> Dump:
    """A dump from the values in it."""
    if not isinstance(document, Mapping) or not isinstance(document.get("entries", []), list):
        raise BadFileError(f"{where}: not a Flight Recorder dump: 'entries' is missing or no list")
    groups = _read_groups(document.get("pg_config"))
    status = _read_status(document.get("pg_status"))
    entries = [e for e in document.get("entries", []) if isinstance(e, Mapping)]
    names = _name_groups(entries, groups, status)
    completed = {names[i]: s[1] for i, s in status.items() if i in names}
    calls = tuple(_read_call(e, completed) for e in entries)
    enqueued = _find_enqueued(entries, calls, status, names)
    return Dump(rank=rank, path=where, calls=calls, groups=groups, enqueued=enqueued)


def _read_groups(config: Any) -> dict[str, Group]:
    found = {}
    for key, told in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(told, Mapping) or not str(key):
            continue
        text = told.get("ranks", "")
        ranks = tuple(int(r) for r in text if _is_whole(r)) if isinstance(text, list) else _read_ranks(str(text))
        found[str(key)] = Group(name=str(key), description=str(told.get("desc", "")), ranks=ranks)
    return found


@lru_cache(maxsize=4096)  # all members write the same list; in a large job reading it is most of the work
def _read_ranks(text: str) -> tuple[int, ...]:
    return tuple(int(r) for r in re.findall(r"\d{1,7}", text))


def _read_status(status: Any) -> dict[int, tuple[int, int]]:
    """Last enqueued and last completed number by the rank's own number of a group."""
    found = {}
    for key, told in status.items() if isinstance(status, Mapping) else ():
        if isinstance(told, Mapping) and _is_whole(key):
            last = [told.get(f"last_{what}_collective", -1) for what in ("enqueued", "completed")]
            found[int(key)] = (_whole(last[0], -1), _whole(last[1], -1))
    return found


def _name_groups(
    entries: list[Mapping[str, Any]], groups: Mapping[str, Group], status: Mapping[int, Any]
) -> dict[int, str]:
    """Names of groups by the rank's own numbers for them: from its calls, else from the order of both."""
    names = {}
    for entry in entries:
        if _is_whole(entry.get("pg_id")):
            names[int(entry["pg_id"])] = _group_name(entry)
    if len(groups) == len(status) and all(_is_whole(name) for name in groups):
        in_order = dict(zip(sorted(status), sorted(groups, key=int), strict=True))
        if all(in_order.get(i) == name for i, name in names.items()):
            return in_order
    return names


def _read_call(entry: Mapping[str, Any], completed: Mapping[str, int]) -> Call:
    group = _group_name(entry)
    name = str(entry.get("profiling_name", ""))
    kind = name.split(":", 1)[-1].strip()
    message = _MESSAGE.search(kind)
    number = _whole(entry.get("op_id"), _whole(entry.get("collective_seq_id"), 0))
    ended = (
        entry.get("state") == "completed"
        or entry.get("retired") is True
        or bool(entry.get("time_discovered_completed_ns"))
    )
    return Call(
        group=group,
        seq=_whole(entry.get("p2p_seq_id" if message else "collective_seq_id"), 0),
        kind=message.group(1) if message else kind,
        sizes=f"{entry.get('input_sizes')} {entry.get('input_dtypes')}",
        created_ns=_whole(entry.get("time_created_ns"), 0),
        pending=not ended and not number <= completed.get(group, -1),
        peer=int(message.group(3)) if message else None,
        line=_find_line(entry.get("frames")),
        retired=entry.get("retired") is True and entry.get("state") != "completed",
    )


def _find_enqueued(
    entries: list[Mapping[str, Any]],
    calls: tuple[Call, ...],
    status: Mapping[int, tuple[int, int]],
    names: Mapping[int, str],
) -> dict[str, int]:
    """How far this rank came in every group.

    `pg_status` counts all operations of a group in some backends and its collectives in others; it is used where every
    call at hand has the same number in both counts.
    """
    enqueued: dict[str, int] = {}
    for call in calls:
        if not call.is_message:
            enqueued[call.group] = max(enqueued.get(call.group, -1), call.seq)
    mixed = {_group_name(e) for e in entries if _whole(e.get("op_id"), 0) != _whole(e.get("collective_seq_id"), 0)}
    for number, (last, _) in status.items():
        group = names.get(number)
        if group is not None and group not in mixed and last >= 0:
            enqueued[group] = max(enqueued.get(group, -1), last)
    return enqueued


def _group_name(entry: Mapping[str, Any]) -> str:
    told = entry.get("process_group")
    return str(told[0]) if isinstance(told, list | tuple) and told else str(told or "0")


def _find_line(frames: Any) -> str:
    """The innermost line of the user's own program."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        if isinstance(frame, Mapping):
            file = str(frame.get("filename", ""))
            if file and "site-packages" not in file and "/torch/" not in file and not file.startswith("<"):
                return f"{file}:{_whole(frame.get('line'), 0)}"
    return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdecimal())


def _whole(value: Any, default: int) -> int:
    """A whole number however it is written; JSON dumps write some of them as text."""
    if isinstance(value, bool):
        return default
    if isinstance(value, int):
        return value
    try:
        return int(value)
    except (TypeError, ValueError):
        return default
