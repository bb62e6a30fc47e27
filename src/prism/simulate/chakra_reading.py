"""Read MLCommons Chakra execution traces, one file per rank, as a graph that can be solved and asked what-if.

Kernels of a rank run on the stream of what they wait for; communication that waits for nothing has a stream per group.
Times that a trace does not hold are asked of the cost model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prism.errors import BadFileError
from prism.simulate.builder import GraphBuilder, ProgramBuilder
from prism.simulate.chakra import COLLECTIVE_TYPES
from prism.simulate.graph import Graph

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_COMPUTE, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7  # NodeType; memory and metadata nodes take no time
_KINDS = {number: kind for kind, number in COLLECTIVE_TYPES.items()}
_FIRST_LANE = 1000  # of communication, clear of the kernels' streams
Value = int | bytes


@dataclass(slots=True)
class _Node:
    number: int = 0
    name: str = ""
    kind: int = 0
    duration_ns: int = 0
    waits: list[int] = field(default_factory=list)
    attributes: dict[str, Value] = field(default_factory=dict)

    def whole(self, name: str, default: int = 0) -> int:
        """A number among the attributes."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default


def read_chakra(folder: Path, gpus_per_host: int = 8) -> Graph:
    """The graph of a folder of `NAME.RANK.et`, with `comm_groups.json` where groups are not the whole world."""
    files = {int(path.suffixes[-2][1:]): path for path in folder.glob("*.et") if _names_a_rank(path)}
    if not files or sorted(files) != list(range(len(files))):
        raise BadFileError(f"{folder}: expected NAME.0.et, NAME.1.et and so on, one trace per rank and none missing")
    world = len(files)
    groups = _read_groups(folder / "comm_groups.json", world)
    builder = GraphBuilder(files[0].name.split(".")[0])
    used: set[str] = set()
    for rank in range(world):
        _Writer(builder.program(), rank, groups, str(files[rank]), used).write(list(_read_nodes(files[rank])))
    ranks = list(range(world))
    builder.ranks(ranks, ranks, [r // gpus_per_host for r in ranks], [r % gpus_per_host for r in ranks])
    for name in sorted(used):
        builder.group(f"group-{name}", list(groups[name]))
    return builder.build()


def _names_a_rank(path: Path) -> bool:
    return len(path.suffixes) > 1 and path.suffixes[-2][1:].isdecimal()


def _read_groups(path: Path, world: int) -> dict[str, tuple[int, ...]]:
    """Members by group; "" is the world."""
    found: dict[str, tuple[int, ...]] = {"": tuple(range(world))}
    if not path.is_file():
        return found
    try:
        document = json.loads(path.read_text())
        for name, ranks in document.items():
            members = tuple(int(rank) for rank in ranks)
            if not members or not all(0 <= rank < world for rank in members):
                raise ValueError(f"group '{name}' has ranks that have no trace")
            found[str(name)] = members
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadFileError(f"{path}: not a mapping of groups to ranks ({error})") from None
    return found


@dataclass(slots=True)
class _Writer:
    """Writes the program of one rank."""

    program: ProgramBuilder
    rank: int
    groups: Mapping[str, tuple[int, ...]]
    where: str
    used: set[str]
    tails: dict[int, int] = field(default_factory=dict)  # by stream its last node
    streams: dict[int, int] = field(default_factory=dict)  # by node
    events: dict[int, int] = field(default_factory=dict)

    def write(self, nodes: list[_Node]) -> None:
        """Every node after those that it waits for."""
        self.program.step = 0
        needed = {wait for node in nodes for wait in node.waits}
        for node in nodes:
            late = next((wait for wait in node.waits if wait not in self.streams), None)
            if late is not None:
                raise BadFileError(f"{self.where}: node {node.number} waits for {late}, which does not come before it")
            stream = self._choose(node)
            for wait in node.waits:
                if self.streams[wait] != stream:
                    self.program.wait(self.events[wait], stream=stream)
            self._emit(node, stream)
            self.streams[node.number] = stream
            self.tails[stream] = node.number
            if node.number in needed:
                self.events[node.number] = self.program.record(stream=stream)

    def _choose(self, node: _Node) -> int:
        behind = next((self.streams[w] for w in node.waits if self.tails[self.streams[w]] == w), None)
        if behind is not None:
            return behind
        if node.kind not in (_SEND, _RECV, _COLLECTIVE):
            return 0
        lane = _FIRST_LANE + list(self.groups).index(self._group(node))
        while lane in self.tails:  # what it would follow there is not among those that it waits for
            lane += len(self.groups)
        return lane

    def _group(self, node: _Node) -> str:
        name = node.attributes.get("pg_name", b"")
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        if text not in self.groups:
            raise BadFileError(f"{self.where}: node {node.number} is of group '{text}', which comm_groups.json lacks")
        return text

    def _emit(self, node: _Node, stream: int) -> None:
        if node.kind not in (_SEND, _RECV, _COLLECTIVE):
            put = self.program.host if node.whole("is_cpu_op") else self.program.compute
            put(node.name or "node", node.duration_ns, stream=stream)
            return
        group, size = self._group(node), node.whole("comm_size")
        self.used.add(group)
        timed = node.duration_ns or None
        if node.kind == _COLLECTIVE:
            kind = _KINDS.get(node.whole("comm_type", -1))
            if kind is None:
                raise BadFileError(f"{self.where}: node {node.number} has no known comm_type")
            self.program.collective(kind, f"group-{group}", size, stream=stream, name=node.name, duration_ns=timed)
            return
        other = node.whole("comm_dst" if node.kind == _SEND else "comm_src", -1)
        if other not in self.groups[group]:
            raise BadFileError(f"{self.where}: node {node.number} names rank {other}, which is not in its group")
        pass_on = self.program.send if node.kind == _SEND else self.program.recv
        peer = self.groups[group].index(other)
        pass_on(f"group-{group}", size, peer=peer, stream=stream, name=node.name, duration_ns=timed)


def _read_nodes(path: Path) -> Iterator[_Node]:
    """The messages of a file, each after its length; the first is about the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFileError(f"{path}: {error.strerror}") from None
    at, first = 0, True
    try:
        while at < len(data):
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError("it ends in the middle of a node")
            if not first:
                yield _read_node(data[at : at + size])
            first = False
            at += size
    except (ValueError, IndexError) as error:
        raise BadFileError(f"{path}: not a Chakra trace ({error or 'it is cut short'}); write it again") from None


def _read_node(data: bytes) -> _Node:
    node = _Node()
    for number, value in _read_fields(data):
        if number == 1 and isinstance(value, int):
            node.number = value
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode(errors="replace")
        elif number == 3 and isinstance(value, int):
            node.kind = value
        elif number in (4, 5):
            node.waits += [value] if isinstance(value, int) else list(_read_packed(value))
        elif number == 7 and isinstance(value, int):
            node.duration_ns = node.duration_ns or 1000 * value
        elif number == 10 and isinstance(value, bytes):
            _read_attribute(value, node)
    node.duration_ns = node.whole("duration_ns", node.duration_ns)
    return node


def _read_attribute(data: bytes, node: _Node) -> None:
    name, found = "", None
    for number, value in _read_fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode(errors="replace")
        elif number > 2:
            found = value
    if found is not None:
        node.attributes[name] = found


def _read_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        if wire == _DELIMITED:
            size, at = _read_varint(data, at)
        elif not size:
            raise ValueError(f"field of unknown type {wire}")
        if at + size > len(data):
            raise ValueError("a field is longer than its node")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
