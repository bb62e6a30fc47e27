"""Run a training script as a member of `emulate_turns`: on its own core, a few steps at a time.

usage: emulate_rank.py GATE NAME WARMUP_STEPS STEPS_PER_TURN TIMES_FILE SCRIPT ARGS...
When every step ended (on the clock that all processes share), and the processor time of its thread and process since
the step before, go to TIMES_FILE.RANK.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from emulate_turns import Dismissed, Gate, pin


class StepTimer:
    """Notes the end of each step and its processor time, and goes to the gate after every few."""

    def __init__(self, gate: Gate, warmup: int, per_turn: int, path: Path, *, emulated: bool) -> None:
        self._emulated = emulated
        self._gate, self._warmup, self._per_turn, self._path = gate, warmup, per_turn, path
        self._first: Any = None
        self._began = (0.0, 0.0, 0.0)
        self.steps: list[tuple[float, float, float]] = []

    def after_step(self, optimizer: Any, *unused: Any) -> None:
        """Called by torch after every optimizer step."""
        self._first = self._first or optimizer
        if optimizer is not self._first:
            return
        now = _read_clocks()
        self.steps.append((now[0], now[1] - self._began[1], now[2] - self._began[2]))
        turn, left = divmod(len(self.steps) - self._warmup, self._per_turn)
        if turn >= 0 and left == 0:
            self._path.write_text(json.dumps(self.steps))
            if turn == 0:
                pin()
            try:
                self._gate.wait()
            except Dismissed:
                if not self._emulated:
                    os._exit(0)  # a real rank would wait for its peers on the way out
                raise
        self._began = _read_clocks()


def _read_clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


def main() -> None:
    """Become the script."""
    address, name, warmup, per_turn, times = sys.argv[1:6]
    emulated = "emulated" in name
    path = Path(f"{times}.{os.environ['RANK']}")
    timer = StepTimer(Gate(address, name), int(warmup), int(per_turn), path, emulated=emulated)
    register_optimizer_step_post_hook(timer.after_step)
    sys.argv = sys.argv[6:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
