"""Live mode: every communication ends when the virtual peers would have ended it.

On CPU the rank asks the virtual peers, which run in the solver. On CUDA only the device knows
when a stream gets there, so it decides by a rule per op: the peers arrive `gap` after the end of an earlier op of this
rank (their last common point), and the transfer takes `duration` from the moment all have arrived. Either way a live
rank that is late delays its peers, and one that is early waits for them.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the command reads this file too, and it needs no torch
    from prism.emulate.inside.exchange import Exchange

_SPIN_NS = 150_000  # time.sleep overshoots by up to this much, so the rest is spun
_SLOTS = 1 << 16
_LAUNCH_OFFSET_NS = 2_800  # what a spin kernel takes beyond what it was asked, measured on an H200

_HOLD_SOURCE = """
extern "C" __global__ void hold(long long* ends, int slot, int after, int lane, double gap, double duration) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  long long ready = (long long)now;
  if (after >= 0 && ends[after] + (long long)gap > ready) ready = ends[after] + (long long)gap;
  if (lane >= 0 && ends[lane] > ready) ready = ends[lane];
  long long due = ready + (long long)duration;
  while ((long long)now < due) { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); }
  ends[slot] = due;
}
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """When the peers of one op arrive, and how long the transfer takes from then."""

    kind: str
    bytes: int
    back: int  # how many ops earlier the common point lies; 0 for none
    gap_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class PacedCall:
    """One communication, as far as its peers care."""

    kind: str
    bytes: int
    group: str
    peer: int


class Pacer(Protocol):
    """Holds ops back."""

    blocks_host: bool

    @property
    def diverged(self) -> int:
        """Calls that the captured program did not have; they are not held."""
        ...

    def start_step(self, step: int) -> None:
        """A new iteration begins; the start-up before the first one is not held."""
        ...

    def issue(self, call: PacedCall, op: int) -> None:
        """Called when the op is issued, on the stream it runs on."""
        ...

    def hold(self, call: PacedCall, op: int, duration_ns: int) -> None:
        """Hold an op for so long, whatever the peers do."""
        ...

    def finish(self, op: int) -> None:
        """Called where the program waits for the op."""
        ...


class HostPacer:
    """CPU: the wait takes until the virtual peers say it is over."""

    blocks_host = True

    def __init__(self, exchange: Exchange) -> None:
        self.diverged = 0
        self._exchange = exchange
        self._running = False
        self._tickets: dict[int, int] = {}
        self._due: dict[int, int] = {}

    def start_step(self, step: int) -> None:
        """The virtual ranks start when all live ones have ended their first step."""
        if not self._running:
            self._exchange.ask("begin")
            self._running = True

    def issue(self, call: PacedCall, op: int) -> None:
        """Tell the peers that this rank has reached a call; this does not block."""
        if not self._running:
            return
        ticket = self._exchange.ask("issue", call.kind, call.group, call.peer, time.perf_counter_ns())
        if ticket < 0:
            self.diverged += 1
        else:
            self._tickets[op] = ticket

    def hold(self, call: PacedCall, op: int, duration_ns: int) -> None:
        """Until then."""
        self._due[op] = time.perf_counter_ns() + duration_ns

    def finish(self, op: int) -> None:
        """Sleep until the op ends."""
        ticket = self._tickets.pop(op, None)
        due = self._exchange.ask("due", ticket) if ticket is not None else None
        sleep_until(max(due or 0, self._due.pop(op, 0)))


class StreamPacer:
    """CUDA: one thread spins on the stream until the op's end, worked out on the device: the host never waits."""

    blocks_host = False

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._ends: Any = None
        self._kernel: Any = None
        self._last_of_lane: dict[str, int] = {}

    @property
    def diverged(self) -> int:
        """Calls that the captured program did not have."""
        return self._schedule.diverged

    def start_step(self, step: int) -> None:
        """The rules of this step apply."""
        self._schedule.start_step(step)

    def issue(self, call: PacedCall, op: int) -> None:
        """Put the hold on the current stream."""
        rule = self._schedule.next_rule(call.kind, call.bytes)
        if rule is not None:
            self.put(rule, op, call.group)

    def hold(self, call: PacedCall, op: int, duration_ns: int) -> None:
        """Put a hold of this length on the current stream."""
        self.put(Rule(call.kind, call.bytes, 0, 0, duration_ns), op, call.group)

    def put(self, rule: Rule, op: int, lane: str) -> None:
        """Launch the kernel that waits."""
        import torch

        if self._kernel is None:
            self._kernel = torch.cuda._compile_kernel(_HOLD_SOURCE, "hold")
            self._ends = torch.zeros(_SLOTS, dtype=torch.int64, device="cuda")
        after = (op - rule.back) % _SLOTS if rule.back else -1
        before = self._last_of_lane.get(lane, -1)
        self._last_of_lane[lane] = op % _SLOTS
        duration = max(0, rule.duration_ns - _LAUNCH_OFFSET_NS)
        # torch passes whole numbers to a kernel as 32-bit ones, and nanoseconds need more: they go as doubles.
        arguments = (self._ends, op % _SLOTS, after, before, float(rule.gap_ns), float(duration))
        self._kernel(grid=(1, 1, 1), block=(1, 1, 1), args=arguments, stream=torch.cuda.current_stream())

    def finish(self, op: int) -> None:
        """The stream waits, not the host."""


@dataclass(slots=True)
class Schedule:
    """The rules of one iteration, replayed in every one; ops that differ from it pass unheld and are counted."""

    rules: list[Rule]
    slow_rules: list[Rule] = field(default_factory=list)  # those from step `slow_from` on, where a peer gets slow
    slow_from: int = 1 << 62
    step: int = 0
    position: int = 0
    diverged: int = 0
    running: bool = False

    def start_step(self, step: int) -> None:
        """A new iteration begins; the start-up before the first one is not held."""
        self.step = step
        self.position = 0
        self.running = True

    def next_rule(self, kind: str, size: int) -> Rule | None:
        """The rule of the next op of this iteration."""
        rules = self.slow_rules if self.step >= self.slow_from else self.rules
        if not self.running or self.position >= len(rules):
            self.diverged += int(self.running)
            return None
        rule = rules[self.position]
        self.position += 1
        if rule.kind != kind or rule.bytes != size:
            self.diverged += 1
            return None
        return rule


def read_schedule(path: Path) -> Schedule:
    """Read the rules that the launcher wrote."""
    document = json.loads(path.read_text())
    rules, slow_rules = ([Rule(**rule) for rule in document.get(name, ())] for name in ("rules", "slow_rules"))
    return Schedule(rules, slow_rules, document.get("slow_from", 1 << 62))


def sleep_until(due_ns: int) -> None:
    """Return at `due_ns` of perf_counter, to a few microseconds."""
    left = due_ns - time.perf_counter_ns()
    if left > _SPIN_NS:
        time.sleep((left - _SPIN_NS) / 1e9)
    while time.perf_counter_ns() < due_ns:
        pass
