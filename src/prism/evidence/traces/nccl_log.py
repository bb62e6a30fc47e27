"""NCCL's own log (NCCL_DEBUG=INFO): where each rank runs, and the rings, trees and transports that NCCL chose."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prism.records.compression import is_compressed, unpack

_LINE = re.compile(rb"(\S{1,253}):(\d{1,10}):(\d{1,10}) \[(\d{1,3})\] NCCL INFO ([^\n]{1,20000})")
_COMM = re.compile(
    r"(?:ncclCommInit\w{0,30} )?comm 0x[0-9a-f]{1,16} rank (\d{1,7}) n[Rr]anks (\d{1,7})"
    r".{0,80}?cudaDev (\d{1,3}).{0,40}?busId ([0-9a-f]{1,12})"
)
_EDGE = re.compile(
    r"Channel (\d{1,3})(?:/\d{1,3})? : (\d{1,7})\[\w{1,12}\] -> (\d{1,7})\[\w{1,12}\]( \[receive\])?"
    r".{0,10}? via (\S{1,60})"
)
_TREE = re.compile(r"\[(\d{1,3})\] ((?:-?\d{1,7}/){2}-?\d{1,7})->(\d{1,7})->(-?\d{1,7})")
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRank:
    """Where a rank of a communicator runs."""

    rank: int
    host: str
    device: int
    bus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A rank's place in a tree."""

    parent: int | None
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCommunicator:
    """One communicator, as its members' lines tell."""

    size: int
    ranks: tuple[NcclRank, ...]
    rings: tuple[tuple[int, ...], ...]  # per channel, the order of ranks; empty where the log does not close the ring
    trees: tuple[dict[int, TreeNode], ...]
    transports: dict[str, int]  # how many ring edges go over each


@dataclass(slots=True)
class _Lines:
    """What one thread of one process wrote about the communicator that it is making."""

    edges: dict[int, tuple[int, int, str]] = field(default_factory=dict)  # channel: first edge that it sends on
    trees: dict[int, TreeNode] = field(default_factory=dict)
    tree_rank: int | None = None


@dataclass(slots=True)
class _Made:
    members: dict[int, NcclRank] = field(default_factory=dict)
    lines: dict[int, _Lines] = field(default_factory=dict)


def read_nccl_logs(paths: Iterable[Path]) -> list[NcclCommunicator]:
    """Communicators of all logs together, largest first.

    A communicator has no name that all its members write before NCCL 2.19, so members of the same size are put together
    until a rank comes a second time.
    """
    open_lines: dict[tuple[str, str, str], _Lines] = defaultdict(_Lines)
    by_size: dict[int, list[_Made]] = defaultdict(list)
    for path in paths:
        for match in _LINE.finditer(_read(path)):
            host, pid, thread, _, raw = match.groups()
            text = raw.decode("utf-8", "replace")
            key = (host.decode("utf-8", "replace"), pid.decode(), thread.decode())
            if told := _COMM.search(text):
                _close(by_size[int(told.group(2))], key[0], told, open_lines.pop(key, _Lines()))
            elif "Channel" in text or "Trees" in text:
                _read_line(open_lines[key], text)
    made = [_finish(size, one) for size, all_ in by_size.items() for one in all_]
    return sorted(made, key=lambda c: -c.size)


def map_hosts(communicators: Iterable[NcclCommunicator]) -> dict[int, str]:
    """Host of every global rank: from the largest communicator, whose ranks are the job's."""
    largest = max(communicators, key=lambda c: (c.size, len(c.ranks)), default=None)
    return {r.rank: r.host for r in largest.ranks} if largest else {}


def _read(path: Path) -> bytes:
    with path.open("rb") as handle:
        packed = is_compressed(handle.read(8))
        handle.seek(0)
        return unpack(path, _MOST_BYTES) if packed else handle.read(_MOST_BYTES)


def _read_line(lines: _Lines, text: str) -> None:
    if edge := _EDGE.search(text):
        channel, source, target, receives, over = edge.groups()
        if not receives:
            lines.edges.setdefault(int(channel), (int(source), int(target), over))
        return
    if text.startswith("Trees"):
        for channel, below, rank, above in _TREE.findall(text):
            lines.tree_rank = int(rank)
            children = tuple(int(c) for c in below.split("/") if c != "-1")
            lines.trees[int(channel)] = TreeNode(parent=None if above == "-1" else int(above), children=children)


def _close(made: list[_Made], host: str, told: re.Match[str], lines: _Lines) -> None:
    rank = int(told.group(1))
    place = next((m for m in made if rank not in m.members), None)
    if place is None:
        made.append(place := _Made())
    place.members[rank] = NcclRank(rank=rank, host=host, device=int(told.group(3)), bus=told.group(4))
    place.lines[rank] = lines


def _finish(size: int, made: _Made) -> NcclCommunicator:
    channels = sorted({c for lines in made.lines.values() for c in lines.edges})
    rings: list[tuple[int, ...]] = []
    transports: dict[str, int] = defaultdict(int)
    for channel in channels:
        after = {r: lines.edges[channel] for r, lines in made.lines.items() if channel in lines.edges}
        rings.append(_follow({e[0]: e[1] for e in after.values()}, size))
        for _, _, over in after.values():
            transports[over] += 1
    deep = sorted({c for lines in made.lines.values() for c in lines.trees})
    trees = tuple({r: own.trees[c] for r, own in sorted(made.lines.items()) if c in own.trees} for c in deep)
    ranks = tuple(made.members[r] for r in sorted(made.members))
    return NcclCommunicator(size=size, ranks=ranks, rings=tuple(rings), trees=trees, transports=dict(transports))


def _follow(after: dict[int, int], size: int) -> tuple[int, ...]:
    """The ring from rank 0 on; empty where it does not close over all ranks."""
    ring, at = [0], after.get(0)
    while at is not None and at != 0 and len(ring) <= size:
        ring.append(at)
        at = after.get(at)
    return tuple(ring) if at == 0 and len(ring) == size else ()
