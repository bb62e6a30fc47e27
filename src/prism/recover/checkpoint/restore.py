"""Which state to start from: the newest good one, in memory if it is still there, proven if it is on storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful

from prism.recover.catalog import Catalog, Entry, find_damage
from prism.recover.checkpoint.arena import load_slot
from prism.recover.checkpoint.memory import Memory
from prism.recover.checkpoint.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where training continues."""

    step: int
    source: Literal["memory", "storage"]
    seconds: float


def restore_newest(
    catalog: Catalog,
    memory: Memory,
    ranks: Ranks,
    state: dict[str, Any],
    up_to_step: int | None,
    tell_broken: Callable[[int, str], None],
) -> Restored | None:
    """Load the newest good state at or before a step; later ones are given up. Every rank calls this."""
    start = time.monotonic()
    staged = _common_steps(memory, ranks, up_to_step)
    entries: list[Entry] = ranks.from_first(catalog.good(up_to_step=up_to_step) if ranks.rank == 0 else [])
    for entry in (*entries, None):
        if staged and (entry is None or max(staged) >= entry.step):
            step = max(staged)
            if _all_loaded(ranks, lambda step=step: _load_memory(memory, ranks, step, state)):  # type: ignore[misc]
                return _settle(catalog, memory, ranks, Restored(step=step, source="memory", seconds=_since(start)))
            staged = set()
        if entry is not None and _prove(entry, catalog, ranks, tell_broken):
            load(state, checkpoint_id=str(entry.path), process_group=ranks.control)
            found = Restored(step=entry.step, source="storage", seconds=_since(start))
            return _settle(catalog, memory, ranks, found)
    _give_up_after(catalog, memory, ranks, -1)
    return None


def _common_steps(memory: Memory, ranks: Ranks, up_to_step: int | None) -> set[int]:
    """Steps that every rank still holds in memory."""
    own = {step for step in memory.whole(ranks.world_size) if up_to_step is None or step <= up_to_step}
    return set.intersection(*ranks.gather(own))


def _prove(entry: Entry, catalog: Catalog, ranks: Ranks, tell_broken: Callable[[int, str], None]) -> bool:
    """Checksum a checkpoint, each rank its share of the files; a damaged one is set aside."""
    share = range(ranks.rank, len(entry.manifest.files), ranks.world_size)
    damage = next((d for d in ranks.gather(find_damage(entry, files=share)) if d is not None), None)
    if damage is None:
        return True
    if ranks.rank == 0:
        catalog.set_aside(entry.path, "broken")
        tell_broken(entry.step, damage)
    ranks.barrier()
    return False


def _load_memory(memory: Memory, ranks: Ranks, step: int, state: dict[str, Any]) -> None:
    slot, header = memory.whole(ranks.world_size)[step]
    template = {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}
    filled = load_slot(slot, header, template)
    for name, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(filled[name])
        else:
            state[name] = filled[name]


def _all_loaded(ranks: Ranks, attempt: Callable[[], None]) -> bool:
    """Whether every rank could load; a program that changed since falls back to storage."""
    try:
        attempt()
        loaded = True
    except (KeyError, OSError, RuntimeError):
        loaded = False
    return all(ranks.gather(loaded))


def _settle(catalog: Catalog, memory: Memory, ranks: Ranks, restored: Restored) -> Restored:
    _give_up_after(catalog, memory, ranks, restored.step)
    return restored


def _give_up_after(catalog: Catalog, memory: Memory, ranks: Ranks, step: int) -> None:
    """What was saved later belongs to a future that will not be: it must not be found by the next restore."""
    memory.forget_after(step)
    if ranks.rank == 0:
        catalog.discard_after(step)
    ranks.barrier()


def _since(start: float) -> float:
    return time.monotonic() - start
