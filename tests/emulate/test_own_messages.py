"""Messages that a rank sends to itself, as V-shaped pipeline schedules of older torch versions do."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from prism.emulate.inside.clocks import ThreadClock
from prism.emulate.inside.exchange import Exchange
from prism.emulate.inside.plan import RunPlan
from prism.emulate.inside.process_group import VirtualGroup
from prism.emulate.inside.recorder import Recorder
from prism.emulate.inside.session import Session


class _Mail(Exchange):
    """An exchange of one rank, which must not wait for itself."""

    def __init__(self) -> None:
        self.posts: dict[tuple[str, int], bytes] = {}

    def post(self, channel: str, number: int, payload: bytes) -> None:
        self.posts[channel, number] = payload

    def get(self, channel: str, number: int, owner: int, where: str, *, needed: bool = True) -> bytes:
        return self.posts[channel, number]


def _group(backend: str) -> VirtualGroup:
    clock = ThreadClock()
    plan = RunPlan(rank=1, world_size=4, gpus_per_node=8, output="", live_ranks=(1,))
    session = Session(plan=plan, clock=clock, recorder=Recorder(clock), exchange=_Mail())
    return VirtualGroup(session, 1, range(4), "0", backend, timedelta(seconds=9))


def test_nccl_copies_what_a_rank_sends_to_itself() -> None:
    group, out = _group("nccl"), torch.zeros(2)
    for value in (3.0, 4.0):
        group.send([torch.full((2,), value)], 1).wait()
        group.recv([out], 1).wait()
        assert out.tolist() == [value, value]


def test_gloo_refuses_it_as_the_real_one_does() -> None:
    with pytest.raises(RuntimeError, match="no connection from a rank to itself"):
        _group("gloo").send([torch.zeros(2)], 1)
