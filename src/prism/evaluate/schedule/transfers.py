"""Which node fetches which checkpoint next, and from where, so that a narrow link is not fought over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.evaluate.schedule.actions import LoadCheckpoint
from prism.evaluate.schedule.trials import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPolicy:
    """How many may read from one place at once."""

    storage_readers: int = 0  # nodes that read from storage at once, 0: all
    pass_on: bool = False  # nodes fetch from a node that holds the model, rather than from storage
    peer_readers: int = 1  # nodes that fetch from one node at once


@dataclass(slots=True, kw_only=True)
class Memory:
    """The checkpoints of one node's shared memory."""

    node: Node
    loaded: dict[str, int] = field(default_factory=dict)  # with their bytes
    loading: dict[str, str | None] = field(default_factory=dict)  # with the node they come from
    began_s: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def has_room(self, num_bytes: int, sizes: Mapping[str, int]) -> bool:
        """Whether another checkpoint fits beside what is there or on its way."""
        if not self.node.memory_bytes:
            return True
        taken = sum(self.loaded.values()) + sum(sizes[checkpoint] for checkpoint in self.loading)
        return taken == 0 or taken + num_bytes <= self.node.memory_bytes


def choose_transfers(
    wants: Sequence[tuple[str, str]],
    memories: Mapping[str, Memory],
    sizes: Mapping[str, int],
    policy: TransferPolicy,
) -> list[LoadCheckpoint]:
    """The transfers to begin now, of the (node, checkpoint) pairs in `wants`, most urgent first."""
    reading: dict[str | None, int] = {}
    for memory in memories.values():
        for source in memory.loading.values():
            reading[source] = reading.get(source, 0) + 1
    chosen: list[LoadCheckpoint] = []
    busy = {node for node, memory in memories.items() if memory.loading}  # one at a time into each node
    for node, checkpoint in wants:
        memory = memories[node]
        if node in busy or checkpoint in memory.loaded or not memory.has_room(sizes[checkpoint], sizes):
            continue
        source = _find_peer(node, checkpoint, memories, reading, policy)
        if source is None:
            # Waiting for a peer beats a second reader on a link that the first one fills.
            limit = policy.storage_readers
            if limit and reading.get(None, 0) >= limit:
                continue
        reading[source] = reading.get(source, 0) + 1
        busy.add(node)
        chosen.append(LoadCheckpoint(node=node, checkpoint=checkpoint, source=source))
    return chosen


def _find_peer(
    node: str,
    checkpoint: str,
    memories: Mapping[str, Memory],
    reading: Mapping[str | None, int],
    policy: TransferPolicy,
) -> str | None:
    """A node that holds the checkpoint and can serve it; none after a failed load, which goes back to storage."""
    if not policy.pass_on or memories[node].failures.get(checkpoint):
        return None
    holders = [
        peer
        for peer, memory in memories.items()
        if peer != node and checkpoint in memory.loaded and reading.get(peer, 0) < policy.peer_readers
    ]
    return min(holders, key=lambda peer: reading.get(peer, 0), default=None)
