"""The state of one emulated process that its groups share."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
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
    exchange: Exchange | None = None
    pacer: Pacer | None = None
    pid: int = field(default_factory=os.getpid)
    step: int = 0
    open_batch: int = -1
    in_step: bool = False
    routed: bool = False  # counts of an all-to-all were made up, and sizes that follow from them are not the program's
    messages: Counter[str] = field(default_factory=Counter)
    note_scratch: Callable[[int], None] = lambda size: (
        None
    )  # called with the bytes that a backend allocates for one call

    def become(self, plan: RunPlan) -> None:
        """Turn into this rank; what was noted before belongs to no rank."""
        self.plan = plan
        self.clock = _make_clock(plan)
        self.recorder = Recorder(self.clock)
        self.exchange = Exchange(plan) if plan.address else None
        self.pid = os.getpid()
        self.in_step = plan.in_step
        if plan.schedule:
            self.pacer = StreamPacer(read_schedule(Path(plan.schedule)))
        elif plan.paced and self.exchange is not None:
            self.pacer = HostPacer(self.exchange)

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
    clock = _make_clock(plan)
    session = Session(plan=plan, clock=clock, recorder=Recorder(clock))
    session.become(plan)
    return session


def _make_clock(plan: RunPlan) -> Clock:
    return StreamClock() if torch.cuda.is_available() else ThreadClock(counts_sleep=plan.timed)
