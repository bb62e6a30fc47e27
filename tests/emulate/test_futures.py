"""What a future of an emulated call costs: the exchange of values is no work of the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from prism.emulate.inside.exchange import ExchangeError
from prism.emulate.inside.plan import RunPlan
from prism.emulate.inside.recorder import Entry, Recorder
from prism.emulate.inside.session import Session
from prism.emulate.inside.work import VirtualWork


@dataclass
class _Clock:
    """Counts milliseconds of work by hand."""

    now: int = 0
    marks: list[int] = field(default_factory=list)

    def mark(self, stream: Any = None) -> int:
        self.marks.append(self.now)
        return len(self.marks) - 1

    def stream(self, stream: Any = None) -> int:
        return 0

    def is_aside(self, stream: int) -> bool:
        return False

    def elapsed_ns(self, first: int, second: int) -> int:
        return self.marks[second] - self.marks[first]

    wall_ns = elapsed_ns


def test_values_that_a_future_fetches_are_not_counted_as_work() -> None:
    clock = _Clock()
    plan = RunPlan(rank=0, world_size=256, gpus_per_node=8, output="")
    session = Session(plan=plan, clock=clock, recorder=Recorder(clock))  # type: ignore[arg-type]
    begin = clock.mark()
    entry = Entry("all_reduce", 0, begin, begin, op=0)
    session.recorder.entries.append(entry)

    def settle() -> None:
        clock.now += 9_000_000  # 256 parts are added up

    VirtualWork(session, entry, [], sync=False, settle=settle).get_future()
    clock.now += 1_000_000  # the program's own work
    session.recorder.step()
    logged = session.recorder.close()
    assert sum(line["gap_ns"] for line in logged) == 1_000_000


def test_a_wait_that_never_ends_is_in_the_log_for_the_search_for_deadlocks() -> None:
    clock = _Clock()
    plan = RunPlan(rank=0, world_size=2, gpus_per_node=8, output="")
    session = Session(plan=plan, clock=clock, recorder=Recorder(clock))  # type: ignore[arg-type]
    entry = Entry("recv", 0, clock.mark(), clock.mark(), op=7)
    session.recorder.entries.append(entry)

    def settle() -> None:
        raise ExchangeError("rank 0 waits at train.py:1 for rank 1")

    with pytest.raises(ExchangeError):
        VirtualWork(session, entry, [], sync=False, settle=settle).wait()
    assert [(line.what, line.op) for line in session.recorder.entries] == [("recv", 7), ("wait", 7)]
