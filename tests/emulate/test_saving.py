"""Checkpoints of torch.distributed where not all ranks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint.default_planner as planner
from torch.distributed.checkpoint import DefaultSavePlanner, SavePlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from prism.emulate.inside.saving import plan_for_absent_ranks
from prism.emulate.inside.session import Session


def shard(row: int) -> SavePlan:
    """The plan of a rank that holds one row of four."""
    chunk = ChunkStorageMetadata(offsets=torch.Size([row, 0]), sizes=torch.Size([1, 2]))
    data = TensorWriteData(chunk=chunk, properties=TensorProperties(), size=torch.Size([4, 2]))
    index = MetadataIndex("weight", chunk.offsets)
    return SavePlan([WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data)], planner_data={})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Four ranks, of which 1 and 3 run; the others' plans are copies of theirs."""
    for name in ("dedup_save_plans", "_validate_global_plan"):
        monkeypatch.setattr(planner, name, getattr(planner, name))  # puts the originals back afterwards
    plan = SimpleNamespace(live_ranks=(1, 3), world_size=4)
    plan_for_absent_ranks(cast(Session, SimpleNamespace(plan=plan)))
    found, _ = DefaultSavePlanner().create_global_plan([shard(1), shard(1), shard(3), shard(3)])
    plan.live_ranks = (0, 1, 2, 3)
    return found


def test_shards_are_written_by_the_ranks_that_run(planned: list[SavePlan]) -> None:
    assert [len(plan.items) for plan in planned] == [0, 1, 0, 1]


def test_the_check_of_all_shards_stays_where_all_ranks_run(planned: list[SavePlan]) -> None:
    with pytest.raises(ValueError, match="invalid fill|validate global plan"):  # torch 2.13, torch 2.11
        DefaultSavePlanner().create_global_plan([shard(1), shard(1), shard(3), shard(3)])
