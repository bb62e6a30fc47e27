"""Write captured entries as ops of a program: on CUDA's streams, or on the one core that a CPU rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism.emulate.capture import CapturedEntry
from prism.emulate.families import Families
from prism.simulate.builder import ProgramBuilder

MESSAGES = ("send", "recv")
OWN_LANES = 1000
"""Lanes of groups on CPU start here, clear of stream numbers."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The rank whose log is written, and the slots whose messages name a fixed position."""

    rank: int
    families: Families
    by_peer: frozenset[str] = frozenset()
    tagged: frozenset[tuple[str, int]] = frozenset()  # slots and tags that have a slot of their own
    uneven: frozenset[str] = frozenset()  # slots in which some rank sends unequal parts to the others

    def other_side(self, group: str, peer: int) -> dict[str, int]:
        """A message's peer: by position, or by its distance where ranks of the class have different ones."""
        family = self.families.by_name[group]
        if family.slot in self.by_peer:
            return {"peer": peer}
        return {"shift": (peer - family.position(self.rank)) % family.size}

    def slot(self, group: str, tag: int) -> str:
        """The slot of a message: messages of different tags do not wait for each other."""
        slot = self.families.by_name[group].slot
        return name_tag(slot, tag) if (slot, tag) in self.tagged else slot


def name_tag(slot: str, tag: int) -> str:
    """The slot of one tag's messages."""
    return f"{slot} tag {tag}"


class StreamWriter:
    """Ops where CUDA puts them: synchronous ones on the caller's stream, others on the group's own."""

    def __init__(self, program: ProgramBuilder, seat: Seat, lanes: dict[str, int]) -> None:
        self._program = program
        self._seat = seat
        self._lanes = lanes
        self._ends: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self._batch: list[CapturedEntry] = []
        self.emitted: list[int] = []  # numbers of the communication ops, in the order they were written

    def work(self, entry: CapturedEntry, duration_ns: int) -> None:
        """What ran on the entry's stream before it."""
        if self._batch and entry.batch != self._batch[0].batch:
            self._close_batch()
        if duration_ns > 0:
            name = "step" if entry.what == "step" else f"before {entry.what}"
            self._program.compute(name, duration_ns, stream=entry.stream, source=entry.source or None)

    def write(self, entry: CapturedEntry) -> None:
        """One entry."""
        program = self._program
        if entry.what == "wait":
            if entry.op in self._ends:
                program.wait(self._ends[entry.op], stream=entry.stream)
        elif entry.what == "record":
            self._events[entry.op] = program.record(stream=entry.stream)
        elif entry.what == "hold":
            if entry.op in self._events:
                program.wait(self._events[entry.op], stream=entry.stream)
        elif entry.is_communication and entry.batch >= 0:
            self._batch.append(entry)
        elif entry.is_communication:
            self._issue([entry])

    def close(self) -> None:
        """The end of an iteration: ops without a wait go on by themselves."""
        self._close_batch()

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._issue(batch)

    def _issue(self, entries: Sequence[CapturedEntry]) -> None:
        """Start ops that were issued together, on the stream of the first."""
        first = entries[0]
        lane = self.choose_lane(first)
        if lane != first.stream:
            self._program.join(waiter=lane, on=first.stream)
        if len(entries) == 1:
            self.emit(first, lane)
        else:
            with self._program.batch():
                for entry in entries:
                    self.emit(entry, lane)
        end = self._program.record(stream=lane)
        self._ends.update({entry.op: end for entry in entries})

    def choose_lane(self, entry: CapturedEntry) -> int:
        """The stream that an op runs on; on a CPU one for each group."""
        return entry.lane if entry.lane >= 0 else self._lanes[self._seat.families.by_name[entry.group].slot]

    def emit(self, entry: CapturedEntry, lane: int) -> None:
        """The op itself."""
        self.emitted.append(entry.op)
        slot = self._seat.families.by_name[entry.group].slot
        source = entry.source or None
        if entry.what in MESSAGES:
            put = self._program.send if entry.what == "send" else self._program.recv
            other = self._seat.other_side(entry.group, entry.peer)
            put(
                self._seat.slot(entry.group, entry.tag),
                entry.bytes,
                peer=other.get("peer"),
                shift=other.get("shift"),
                stream=lane,
                source=source,
            )
            return
        self._program.collective(
            entry.what,
            slot,
            entry.bytes,
            stream=lane,
            source=source,
            root=entry.peer if entry.peer >= 0 else None,
            sizes=entry.sizes or self._equal_parts(entry),
        )

    def _equal_parts(self, entry: CapturedEntry) -> list[int] | None:
        """What a rank sends to each, where others of its group send unequal parts."""
        family = self._seat.families.by_name[entry.group]
        if entry.what != "all_to_all" or family.slot not in self._seat.uneven:
            return None
        return [entry.bytes // family.size] * family.size


class SerialWriter(StreamWriter):
    """One core per rank: the core that computes also moves the bytes, so nothing overlaps.

    A collective costs where the program waits for it, a receive likewise. A send leaves at the call, and its sender
    goes on: most of a message's time is the receiver's waking up.
    """

    def __init__(self, program: ProgramBuilder, seat: Seat, lanes: dict[str, int]) -> None:
        super().__init__(program, seat, lanes)
        self._pending: dict[int, CapturedEntry] = {}

    def write(self, entry: CapturedEntry) -> None:
        """Put asynchronous ops off until they are waited for, in the order they were issued."""
        if entry.what == "wait":
            self._emit_until(entry.op)
        elif entry.what == "send":
            self._issue([entry])
        elif entry.is_communication:
            self._pending[entry.op] = entry
            if entry.lane >= 0:  # synchronous
                self._emit_until(entry.op)

    def close(self) -> None:
        """What was never waited for ends with the iteration."""
        for op in sorted(self._pending):
            self._emit_until(op)

    def _emit_until(self, op: int) -> None:
        """Ops of a group complete in the order they were issued."""
        if op not in self._pending:
            return
        group = self._pending[op].group
        for number in sorted(self._pending):
            if number <= op and self._pending[number].group == group:
                self.emit(self._pending.pop(number), 0)
