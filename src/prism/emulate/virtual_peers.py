"""The peers of live CPU ranks: they run ahead in the solver, which needs the times of the live ranks' calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from prism.emulate.inside.plan import FaultPlan
from prism.emulate.slow_peers import slow_down
from prism.emulate.stitch import Stitched
from prism.emulate.writers import MESSAGES, Seat
from prism.errors import GraphError
from prism.simulate.graph import repeat_graph
from prism.simulate.solving.online import OnlineSolver
from prism.simulate.solving.pricing import CostModel

NOT_HELD = -1
"""The ticket of a call that the captured program did not have."""


class VirtualPeers:
    """Says when each call of a live rank ends. Times are the host's perf_counter, one for all its processes."""

    def __init__(
        self, stitched: Stitched, costs: CostModel, live: Sequence[int], *, num_steps: int,
        faults: Sequence[FaultPlan] = (), eager_bytes: int = -1, timeout_s: float = 60.0,
    ) -> None:  # fmt: skip
        times = -(-num_steps // stitched.num_iterations)
        graph = slow_down(repeat_graph(stitched.graph, times), faults)
        self._solver = OnlineSolver(graph, costs, live, eager_bytes=eager_bytes)
        self._seats = {rank: _seat_of(stitched, rank) for rank in live}
        self._families = stitched.families
        self._timeout_s = timeout_s
        self._change = threading.Condition()
        self._begun: set[int] = set()
        self._zero_ns = 0

    def answer(self, rank: int, verb: str, values: Sequence[Any]) -> int | None:
        """What a live rank asks through the exchange."""
        if verb == "begin":
            return self.begin(rank)
        return self.issue(rank, *values) if verb == "issue" else self.due_ns(*values)

    def begin(self, rank: int) -> int:
        """A live rank ends its first step; the virtual ranks start when all live ones have. Returns that moment."""
        with self._change:
            self._begun.add(rank)
            if len(self._begun) == len(self._seats):
                self._zero_ns = time.perf_counter_ns()
                self._change.notify_all()
            self._change.wait_for(lambda: self._zero_ns > 0, self._timeout_s)
            return self._zero_ns

    def issue(self, rank: int, kind: str, group: str, peer: int, now_ns: int) -> int:
        """A live rank reaches a call; returns the ticket with which to ask for its end."""
        seat = self._seats[rank]
        other = seat.other_side(group, peer) if kind in MESSAGES else {}
        with self._change:
            try:
                slot = self._families.by_name[group].slot
                ticket = self._solver.arrive(rank, kind, slot, max(now_ns - self._zero_ns, 0), **other)
            except (GraphError, KeyError):
                return NOT_HELD
            self._change.notify_all()
            return ticket

    def due_ns(self, ticket: int) -> int | None:
        """When a call ends; waits where that depends on another live rank, None if that one never reaches it."""
        with self._change:
            self._change.wait_for(lambda: self._solver.end_of(ticket) is not None, self._timeout_s)
            end = self._solver.end_of(ticket)
            if end is None:
                self._timeout_s = 0.0  # that rank has ended; no rank waits for it again
        return None if end is None else end + self._zero_ns


def _seat_of(stitched: Stitched, rank: int) -> Seat:
    return Seat(rank, stitched.families, stitched.classes.by_peer[stitched.classes.of_rank[rank]])
