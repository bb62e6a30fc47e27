"""Arguments that do not fit the group fail as with a real backend, and name the line of the call."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prism.emulate.inside.plan import RunPlan
from prism.emulate.inside.process_group import VirtualGroup
from prism.emulate.inside.session import open_session

_OPTIONS: Any = SimpleNamespace(rootRank=0, asyncOp=False)
_SHORT = [torch.zeros(2)] * 3


@pytest.fixture
def group() -> VirtualGroup:
    plan = RunPlan(rank=0, world_size=4, gpus_per_node=8, output="")
    return VirtualGroup(open_session(plan), 0, range(4), "0", "gloo", timedelta(seconds=9))


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.scatter([torch.zeros(2)], [_SHORT], _OPTIONS),
        lambda group: group.gather([_SHORT], [torch.zeros(2)], _OPTIONS),
        lambda group: group.allgather([_SHORT], [torch.zeros(2)]),
        lambda group: group.alltoall(_SHORT, _SHORT),
        lambda group: group.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 1, 1], []),
    ],
)
def test_a_list_needs_one_tensor_per_member(group: VirtualGroup, call: Callable[[VirtualGroup], object]) -> None:
    with pytest.raises(ValueError, match=r"incorrect list size 3, should be 4.*test_arguments.py:\d+"):
        call(group)


@pytest.mark.parametrize(
    ("splits", "message"), [([1, 1, 1, 1], "doesn't match total"), ([], "does not divide equally")]
)
def test_the_parts_of_an_all_to_all_are_all_rows(group: VirtualGroup, splits: list[int], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        group.all_to_all_single(torch.zeros(4), torch.zeros(6), [], splits)


def test_a_gathered_buffer_has_room_for_every_member(group: VirtualGroup) -> None:
    with pytest.raises(ValueError, match="has 6 elements, should be 4 times the 2"):
        group.all_gather_single(torch.zeros(6), torch.zeros(2))
    with pytest.raises(ValueError, match="has 7 elements, should be 4 times the 2"):
        group.reduce_scatter_single(torch.zeros(2), torch.zeros(7))
