"""Finds and loads the newest good state: from memory if it is still there, otherwise from storage.

A restore changes and removes nothing, on storage or in memory: a script that only evaluates may call it.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.stateful import Stateful

from prism.errors import BadFileError
from prism.recover.catalog import Catalog, Entry, find_damage
from prism.recover.checkpoint.inspection import find_largest, judge_tensors
from prism.recover.checkpoint.memory import Memory
from prism.recover.checkpoint.nested import find_without_place
from prism.recover.checkpoint.ranks import Ranks
from prism.recover.checkpoint.safe_values import SafeLoadPlanner, SafeReader
from prism.recover.checkpoint.slots import Slot, SlotHeader, sum_bytes, view_bytes

_log = logging.getLogger("prism.recover")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where training continues."""

    step: int
    source: Literal["memory", "storage"]
    seconds: float


@dataclass(slots=True, kw_only=True)
class Restore:
    """One search for a state to start from, over all ranks."""

    catalog: Catalog
    memory: Memory
    ranks: Ranks
    trusted: tuple[type, ...] = ()
    use_memory: bool = True
    tell_broken: Callable[[int, str], None] = field(default=lambda step, why: None)
    broken: list[Entry] = field(default_factory=list)  # found damaged; the next save sets them aside

    def newest(self, state: dict[str, Any], up_to_step: int | None) -> Restored | None:
        """Load the newest good state at or before a step. Every rank calls this."""
        start = time.monotonic()
        entries, num_bad = self.ranks.on_first(lambda: self._candidates(up_to_step))
        staged: set[tuple[int, int]] = set()
        if self.use_memory:
            staged = self._staged_everywhere(up_to_step, storage_is_empty=not entries and up_to_step is None)
        for entry in (*entries, None):
            while staged and (entry is None or max(staged)[0] >= entry.step):
                key = max(staged)
                staged.discard(key)
                if self._load_memory(key, state):
                    return Restored(step=key[0], source="memory", seconds=time.monotonic() - start)
            if entry is not None and self._prove(entry):
                self._load_storage(entry, state)
                return Restored(step=entry.step, source="storage", seconds=time.monotonic() - start)
        if num_bad or self.broken:
            raise BadFileError(
                f"{self.catalog.folder}: {len(self.broken)} checkpoints are damaged, {num_bad} hold NaN or infinity, "
                "none is good: a person must look. To start afresh, name another folder or remove them"
            )
        return None

    def _candidates(self, up_to_step: int | None) -> tuple[list[Entry], int]:
        """Good checkpoints, newest first, and how many others there are."""
        within = [entry for entry in self.catalog.entries() if up_to_step is None or entry.step <= up_to_step]
        good = self.catalog.good(up_to_step=up_to_step)
        return good, len(within) - len(good)

    # -- memory

    def _staged_everywhere(self, up_to_step: int | None, *, storage_is_empty: bool) -> set[tuple[int, int]]:
        """Steps and tokens that every rank still holds, none of them known to be bad."""
        cuts = self.ranks.on_first(self.catalog.cuts)
        whole = self.memory.whole(self.ranks.world_size, cuts)
        proofs = {key: slot.proof(header) for key, (slot, header) in whole.items()}
        committed = any(proof is not None and proof.committed for proof in proofs.values())
        own = {
            key
            for key, (_, header) in whole.items()
            if (up_to_step is None or key[0] <= up_to_step) and _is_healthy(header, proofs[key])
        }
        gathered = self.ranks.gather((own, committed))
        if storage_is_empty and any(flag for _, flag in gathered):
            # Committed checkpoints were deleted, so a fresh start is wanted.
            return set()
        return set.intersection(*(steps for steps, _ in gathered))

    def _load_memory(self, key: tuple[int, int], state: dict[str, Any]) -> bool:
        """Whether every rank verified and loaded its slot. If the program has changed, storage is used instead."""
        found = self.memory.whole(self.ranks.world_size).get(key)
        sound = found is not None and _prove_slot(*found)
        if not all(self.ranks.gather(sound)):
            return False
        assert found is not None
        slot, header = found
        self._report_without_place((*header.layout.tensors, *header.layout.values), state)
        try:
            _put(state, slot.load(header, _template(state), self.trusted))
            loaded = True
        except (KeyError, OSError, RuntimeError, ValueError, BadFileError):
            loaded = False
        return all(self.ranks.gather(loaded))

    # -- storage

    def _prove(self, entry: Entry) -> bool:
        """Checksum a checkpoint, each rank its share of the files."""
        share = range(self.ranks.rank, len(entry.manifest.files), self.ranks.world_size)
        damage = next((d for d in self.ranks.gather(find_damage(entry, files=share)) if d is not None), None)
        if damage is None:
            return True
        self.broken.append(entry)
        if self.ranks.rank == 0:
            self.tell_broken(entry.step, damage)
        return False

    def _load_storage(self, entry: Entry, state: dict[str, Any]) -> None:
        reader = SafeReader(entry.path, frozenset(file.name for file in entry.manifest.files))
        metadata = reader.read_metadata()  # here, because torch would wrap its error
        self._report_without_place(metadata.state_dict_metadata, state)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that a single process is a single process
                load(
                    state,
                    storage_reader=reader,
                    planner=SafeLoadPlanner(self.trusted),
                    process_group=self.ranks.control,
                    no_dist=self.ranks.control is None,
                )
        except CheckpointException as error:
            causes = [cause[0] for cause in error.failures.values()]
            refused = next((cause for cause in causes if isinstance(cause, BadFileError)), None)
            if refused is not None:
                raise BadFileError(f"{entry.path}: {refused}") from None
            raise

    def _report_without_place(self, saved: Iterable[str], state: dict[str, Any]) -> None:
        left = find_without_place(saved, state)
        if left and self.ranks.rank == 0:
            _log.warning(
                "%d saved parts are not restored, because the state has no entry for them: %s%s. The dict of a fresh "
                "optimizer has no entries for its moments: pass the optimizer itself, or TrainState(model, optimizer)",
                len(left), ", ".join(left[:3]), ", ..." * (len(left) > 3),
            )  # fmt: skip


def _is_healthy(header: SlotHeader, proof: Any) -> bool:
    return bool((header.health if proof is None else proof.health).good)


def _prove_slot(slot: Slot, header: SlotHeader) -> bool:
    """Whether the staged bytes are those that the writer checked; without its checksums, check the tensors here."""
    try:
        memory = slot.map_bytes()
        if len(memory) < header.layout.num_bytes:
            return False
        proof = slot.proof(header)
        if proof is not None:
            return sum_bytes(memory, header.layout.num_bytes) == proof.sums
        largest = find_largest((name, view_bytes(memory, place)) for name, place in header.layout.tensors.items())
        return judge_tensors(header.health, largest, {}, header.tolerated).good
    except (OSError, ValueError):
        return False


def _template(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}


def _put(state: dict[str, Any], filled: dict[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(filled[name])
        else:
            state[name] = filled[name]
