"""Copies of staged states on another host, so that a lost host costs no more than a lost process.

After every save each rank sends its staged bytes to a rank of another host, in the background, over a group that
carries nothing else. A copy lies there as the slots of the rank itself do, in a folder `peer-*` of the same run. A rank
that finds its own memory empty gets its state back from there.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from prism.machine.files import make_private_folder
from prism.recover.checkpoint.memory import Memory
from prism.recover.checkpoint.ranks import Ranks
from prism.recover.checkpoint.slots import Slot, SlotHeader
from prism.recover.checkpoint.threads import TorchThread

Key = tuple[int, int]  # step and token
_NUM_COPIES = 2  # one complete copy stays while the next is received
_TIMEOUT = datetime.timedelta(seconds=300)
_log = logging.getLogger("prism.recover")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A copy that is sent back to its rank."""

    rank: int
    holder: int
    key: Key


class PeerCopies:
    """This rank's copies on another host, and another rank's copies here. All ranks create theirs at the same time."""

    def __init__(self, ranks: Ranks, memory: Memory, host: str) -> None:
        hosts = ranks.gather(host)
        self.distance = find_distance(hosts)
        self._ranks, self._memory = ranks, memory
        self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT) if self.distance else None
        self._thread: TorchThread | None = None
        self._turn = 0
        self.trouble = "" if self.distance else f"all ranks are on {hosts[0]} or no even shift parts them by host"

    def send(self, slot: Slot, header: SlotHeader) -> None:
        """Begin to copy a slot that was just filled; `wait` before the slot is used again."""
        if self._group is None or self.trouble:
            return
        self._turn = (self._turn + 1) % _NUM_COPIES
        self._thread = TorchThread("prism-peers", self._exchange, slot, header)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the copy in progress."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _exchange(self, slot: Slot, header: SlotHeader) -> None:
        try:
            source = (self._ranks.rank - self.distance) % self._ranks.world_size
            target = (self._ranks.rank + self.distance) % self._ranks.world_size
            folder = peer_folder(self._memory.run_folder, source)
            make_private_folder(folder)
            copy = Slot(folder, self._turn)
            copy.clear()
            sender = TorchThread("prism-peers-send", self._send_quietly, slot, header, target)
            sender.start()
            _receive(copy, source, self._group)
            sender.join()
        except (RuntimeError, OSError, ValueError) as error:
            self._give_up(error)

    def _send_quietly(self, slot: Slot, header: SlotHeader, target: int) -> None:
        try:
            _send(slot, header, target, self._group)
        except (RuntimeError, OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self.trouble:
            self.trouble = f"{type(error).__name__}: {str(error)[:200]}"
            _log.warning("no more copies of staged states on other hosts: %s", self.trouble)


def find_distance(hosts: Sequence[str]) -> int:
    """The smallest shift of ranks that puts every rank's copy on another host; 0 if there is none."""
    count = len(hosts)
    for shift in range(1, count):
        if all(hosts[rank] != hosts[(rank + shift) % count] for rank in range(count)):
            return shift
    return 0


def fetch_lost(ranks: Ranks, memory: Memory) -> int | None:
    """Send ranks that lost their memory the newest state; returns its step, None if nothing was missing."""
    own = set(memory.whole(ranks.world_size))
    copies = {rank: set(found) for rank, found in _find_copies(memory, ranks.world_size)}
    plan = plan_fetches(ranks.gather((own, copies)))
    for fetch in plan:
        if ranks.rank == fetch.holder:
            slot, header = dict(_find_copies(memory, ranks.world_size))[fetch.rank][fetch.key]
            _send(slot, header, fetch.rank, ranks.control)
        elif ranks.rank == fetch.rank:
            memory.hold()
            _receive(min(memory.slots[: memory.num_slots], key=lambda one: one.step), fetch.holder, ranks.control)
    return plan[0].key[0] if plan else None


def plan_fetches(told: Sequence[tuple[set[Key], dict[int, set[Key]]]]) -> list[Fetch]:
    """The transfers after which all ranks have the newest complete state; empty if all have it."""
    every = set().union(*(own for own, _ in told), *(keys for _, copies in told for keys in copies.values()))
    for key in sorted(every, reverse=True):
        missing = [rank for rank, (own, _) in enumerate(told) if key not in own]
        holders = {
            rank: next((one for one, (_, copies) in enumerate(told) if key in copies.get(rank, ())), None)
            for rank in missing
        }
        found = [Fetch(rank=rank, holder=one, key=key) for rank, one in holders.items() if one is not None]
        if len(found) == len(missing):
            return found
    return []


def peer_folder(run_folder: Path, rank: int) -> Path:
    """The folder of the copies of a rank on another host."""
    return run_folder / f"peer-{rank:05d}"


def _find_copies(memory: Memory, world_size: int) -> Iterator[tuple[int, dict[Key, tuple[Slot, SlotHeader]]]]:
    for folder in sorted(memory.run_folder.glob("peer-*")):
        with contextlib.suppress(ValueError, OSError):
            rank = int(folder.name.removeprefix("peer-"))
            found = {}
            for slot in (Slot(folder, number) for number in range(_NUM_COPIES)):
                header = slot.header()
                fits = header is not None and header.world_size == world_size
                if header is not None and fits and header.folder_id == memory.folder_id:
                    found[header.step, header.token] = (slot, header)
            yield rank, found


def _send(slot: Slot, header: SlotHeader, target: int, group: dist.ProcessGroup | None) -> None:
    text = torch.frombuffer(bytearray(header.to_json().encode()), dtype=torch.uint8)
    memory = slot.map_bytes()
    size = header.layout.num_bytes
    for part in (torch.tensor([len(text), size]), text, torch.frombuffer(memory, dtype=torch.uint8, count=size)):
        dist.send(part, target, group=group)


def _receive(slot: Slot, source: int, group: dist.ProcessGroup | None) -> None:
    """Receive a slot from another rank. It counts once its header is written, after all bytes."""
    sizes = torch.zeros(2, dtype=torch.int64)
    dist.recv(sizes, source, group=group)
    text = torch.empty(int(sizes[0]), dtype=torch.uint8)
    dist.recv(text, source, group=group)
    slot.clear()
    memory = slot.reserve(int(sizes[1]), pin=False)
    dist.recv(torch.frombuffer(memory, dtype=torch.uint8, count=int(sizes[1])), source, group=group)
    slot.declare(SlotHeader.from_json(bytes(text.tolist())))
    slot.release()
