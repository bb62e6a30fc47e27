"""Live mode: every communication ends when the virtual peers would have ended it.

The schedule holds a rule per op of an iteration: the peers arrive `gap` after the end of an earlier op of this rank
(their last common point), and the transfer takes `duration` from the moment all have arrived. So a live rank that is
late delays its peers, and one that is early waits for them.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

_SPIN_NS = 150_000  # time.sleep overshoots by up to this much, so the rest is spun
_SLOTS = 1 << 16
_LAUNCH_OFFSET_NS = 2_800  # what a spin kernel takes beyond what it was asked, measured on an H200

_HOLD_SOURCE = """
extern "C" __global__ void hold(long long* ends, long long slot, long long after, long long lane,
                                long long gap, long long duration) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  long long ready = (long long)now;
  if (after >= 0 && ends[after] + gap > ready) ready = ends[after] + gap;
  if (lane >= 0 && ends[lane] > ready) ready = ends[lane];
  long long due = ready + duration;
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


class Pacer(Protocol):
    """Holds ops back."""

    def issue(self, rule: Rule, op: int, lane: int) -> None:
        """Called when the op is issued, on the stream it runs on."""
        ...

    def finish(self, op: int) -> None:
        """Called where the program waits for the op."""
        ...

    def due_ns(self, op: int) -> int:
        """When the op ends, on the host's clock; 0 where the host cannot know."""
        ...


class HostPacer:
    """CPU: the wait takes as long as it takes."""

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._lane_due: defaultdict[int, int] = defaultdict(int)

    def issue(self, rule: Rule, op: int, lane: int) -> None:
        """Find when the op will end; nothing blocks here."""
        ready = max(time.perf_counter_ns(), self._lane_due[lane])
        if rule.back and op - rule.back in self._due:
            ready = max(ready, self._due[op - rule.back] + rule.gap_ns)
        self._due[op] = self._lane_due[lane] = ready + rule.duration_ns

    def finish(self, op: int) -> None:
        """Sleep until the op ends."""
        sleep_until(self._due.get(op, 0))

    def due_ns(self, op: int) -> int:
        """When the op ends."""
        return self._due.get(op, 0)


class StreamPacer:
    """CUDA: one thread spins on the stream until the op's end, worked out on the device: the host never waits."""

    def __init__(self) -> None:
        self._ends: Any = None
        self._kernel: Any = None
        self._last_of_lane: dict[int, int] = {}

    def issue(self, rule: Rule, op: int, lane: int) -> None:
        """Put the hold on the current stream."""
        if self._kernel is None:
            self._kernel = torch.cuda._compile_kernel(_HOLD_SOURCE, "hold")
            self._ends = torch.zeros(_SLOTS, dtype=torch.int64, device="cuda")
        after = (op - rule.back) % _SLOTS if rule.back else -1
        before = self._last_of_lane.get(lane, -1)
        self._last_of_lane[lane] = op % _SLOTS
        duration = max(0, rule.duration_ns - _LAUNCH_OFFSET_NS)
        arguments = (self._ends, op % _SLOTS, after, before, rule.gap_ns, duration)
        self._kernel(grid=(1, 1, 1), block=(1, 1, 1), args=arguments, stream=torch.cuda.current_stream())

    def finish(self, op: int) -> None:
        """The stream waits, not the host."""

    def due_ns(self, op: int) -> int:
        """Only the device knows."""
        return 0


@dataclass(slots=True)
class Schedule:
    """The rules of one iteration, replayed in every one; ops that differ from it pass unheld and are counted."""

    rules: list[Rule]
    position: int = 0
    diverged: int = 0
    running: bool = False

    def start_step(self) -> None:
        """A new iteration begins; the start-up before the first one is not held."""
        self.position = 0
        self.running = True

    def next_rule(self, kind: str, size: int) -> Rule | None:
        """The rule of the next op of this iteration."""
        if not self.running or self.position >= len(self.rules):
            self.diverged += int(self.running)
            return None
        rule = self.rules[self.position]
        self.position += 1
        if rule.kind != kind or rule.bytes != size:
            self.diverged += 1
            return None
        return rule


def read_schedule(path: Path) -> Schedule:
    """Read the rules that the launcher wrote."""
    return Schedule([Rule(**rule) for rule in json.loads(path.read_text())["rules"]])


def make_pacer() -> Pacer:
    """The pacer of the device this process has."""
    return StreamPacer() if torch.cuda.is_available() else HostPacer()


def sleep_until(due_ns: int) -> None:
    """Return at `due_ns` of perf_counter, to a few microseconds."""
    left = due_ns - time.perf_counter_ns()
    if left > _SPIN_NS:
        time.sleep((left - _SPIN_NS) / 1e9)
    while time.perf_counter_ns() < due_ns:
        pass
