"""Which rank writes which part of a state: torch's own plan of a save, agreed once and kept while nothing changes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from prism.recover.checkpoint.layout import Layout, Staging
from prism.recover.checkpoint.ranks import Ranks
from prism.recover.checkpoint.safe_values import unpickle_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlan:
    """This rank's share of a save; rank 0 also has the metadata of the whole."""

    share: SavePlan
    metadata: Metadata | None

    def to_bytes(self) -> bytes:
        """For the writer process."""
        return pickle.dumps((self.share, self.metadata))

    @classmethod
    def from_bytes(cls, data: bytes) -> SharePlan:
        """Read back, building nothing but torch's own classes of plans."""
        share, metadata = unpickle_metadata(data)
        return cls(share=share, metadata=metadata)


def plan_save(state: Mapping[str, Any], ranks: Ranks) -> SharePlan:
    """Agree who writes what; every rank calls this with its own part of the state."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), None, ranks.rank == 0)
    local = planner.create_local_plan()
    gathered = ranks.gather_on_first(local)
    metadata: Metadata | None = None

    def divide() -> list[SavePlan]:
        nonlocal metadata
        plans, metadata = planner.create_global_plan(gathered)
        # The names by which torch's file writer and reader know the ranks' files.
        return [replace(plan, storage_data=_StoragePrefix(f"__{rank}_")) for rank, plan in enumerate(plans)]

    share = ranks.scatter_from_first(divide)
    return SharePlan(share=planner.finish_plan(share), metadata=metadata)


def same_shape(one: Staging | None, other: Staging) -> bool:
    """Whether a plan made for one state is valid for the other."""
    return (
        one is not None
        and one.layout.tensors == other.layout.tensors
        and one.layout.values.keys() == other.layout.values.keys()
        and one.sharding == other.sharding
    )


class StagedPlanner(SavePlanner):
    """Gives torch's file writer the parts of a staged state."""

    def __init__(self, layout: Layout, tensors: Mapping[str, torch.Tensor], data: memoryview) -> None:
        self._layout = layout
        self._tensors = tensors
        self._data = data

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """The bytes of one part."""
        name = write_item.index.fqn
        if write_item.type == WriteItemType.BYTE_IO:
            place = self._layout.values[name]
            return io.BytesIO(self._data[place.offset : place.offset + place.num_bytes])
        return self._tensors[name]

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        """The plan exists already."""

    def create_local_plan(self) -> SavePlan:
        """The plan exists already."""
        raise NotImplementedError

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The plan exists already."""
        raise NotImplementedError

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The plan exists already."""
        return new_plan
