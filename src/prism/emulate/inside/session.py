"""The state of one emulated process that its groups share."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

from prism.emulate.inside.clocks import Clock, StreamClock, ThreadClock
from prism.emulate.inside.exchange import Exchange
from prism.emulate.inside.pacing import HostPacer, Pacer, StreamPacer, read_schedule
from prism.emulate.inside.plan import RunPlan
from prism.emulate.inside.recorder import Recorder


class UnsupportedError(RuntimeError):
    """The program communicates in a way that Prism cannot see or stand in for."""


@dataclass(slots=True)
class Session:
    """Who this process is, its clock, its log, and its line to the other live ranks."""

    plan: RunPlan
    clock: Clock
    recorder: Recorder
    exchange: Exchange | None
    pacer: Pacer | None = None
    pid: int = field(default_factory=os.getpid)
    step: int = 0
    open_batch: int = -1
    in_step: bool = False
    touched: set[int] = field(default_factory=set)
    messages: Counter[str] = field(default_factory=Counter)

    def touch(self, rank: int) -> None:
        """Tell the launcher once that this rank exchanges messages with `rank`."""
        if self.plan.discover and self.exchange is not None and rank not in self.touched:
            self.touched.add(rank)
            self.exchange.touch(rank)

    def join(self, meeting: str, needed: int) -> None:
        """Wait for the others of a call, as a real rank would, so that cores and memory are shared as in a real run."""
        if self.in_step and self.exchange is not None:
            self.in_step = self.exchange.join(meeting, needed)

    def number(self, channel: str) -> int:
        """How many messages went through a channel before this one."""
        self.messages[channel] += 1
        return self.messages[channel] - 1

    def stands_for(self, rank: int) -> int:
        """The live rank whose values are taken for those of `rank`."""
        return self.plan.twins[rank] if self.plan.twins else self.plan.rank


def open_session(plan: RunPlan) -> Session:
    """A session on the device this process has."""
    clock: Clock = StreamClock() if torch.cuda.is_available() else ThreadClock()
    exchange = Exchange(plan) if plan.address else None
    session = Session(plan=plan, clock=clock, recorder=Recorder(clock), exchange=exchange, in_step=plan.in_step)
    if plan.schedule:
        session.pacer = StreamPacer(read_schedule(Path(plan.schedule)))
    elif plan.paced and exchange is not None:
        session.pacer = HostPacer(exchange)
    return session
