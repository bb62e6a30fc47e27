"""What an evaluation writes down while it runs: finished phases, one per line, and where it stands."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prism.evaluate.run.engines.engine import Outcome
from prism.evaluate.run.node_states import Duty
from prism.evaluate.run.outcomes import Findings
from prism.evaluate.schedule.standing import Progress
from prism.machine.files import write_durably

_PHASES = ("load", "infer", "score")


class RunLog:
    """`trials.jsonl` and `progress.json` of a run's folder."""

    def __init__(
        self,
        folder: Path,
        steps: Mapping[str, int | None],
        num_datasets: int,
        *,
        say: Callable[[str], None] = lambda text: None,
        show: Callable[[dict[str, Any]], None] = lambda document: None,
    ) -> None:
        self._folder = folder
        self.steps = dict(steps)
        self._num_datasets = num_datasets
        self.say = say
        self._show = show

    @property
    def num_results(self) -> int:
        """Results that the run should give: every checkpoint on every dataset."""
        return len(self.steps) * self._num_datasets

    def write_phase(self, duty: Duty, outcome: Outcome) -> None:
        """One line for a load, an inference or a score that ended."""
        if duty.kind not in _PHASES:
            return
        checkpoint = duty.part.checkpoint if duty.part else duty.checkpoint
        line = {
            "trial": str(duty.part) if duty.part else None,
            "checkpoint": checkpoint,
            "step": self.steps.get(checkpoint),
            "dataset": duty.part.dataset if duty.part else None,
            "node": duty.node,
            "worker": duty.worker,
            "phase": duty.kind,
            "start_ns": duty.start_ns,
            "end_ns": time.time_ns(),
            "state": "done" if outcome.failure is None else "failed",
            "attempt": duty.attempt,
            "text": outcome.text,
        }
        with (self._folder / "trials.jsonl").open("a") as handle:
            handle.write(json.dumps(line) + "\n")
        if outcome.failure is not None:
            self.say(f"{line['trial'] or checkpoint}: {duty.kind} failed: {outcome.text}")

    def write_plan(self, progress: Progress, lower_bound_s: float) -> None:
        """Report the planned end, and the earliest end that any plan could have.

        The bound includes work that a plan of inferences leaves out, such as the last scores, so the planned end is
        never reported as earlier than the bound.
        """
        planned_s = max(progress.time_left_s, lower_bound_s)
        gpus = f" with {count(progress.gpus, 'GPU')}" if progress.gpus else ""
        self.say(
            f"{count(len(self.steps), 'checkpoint')} x {count(self._num_datasets, 'dataset')} on "
            f"{count(progress.workers, 'worker')}{gpus}: "
            f"planned to end in {planned_s:.0f} s, at best in {lower_bound_s:.0f} s"
        )

    def write_progress(self, progress: Progress, found: Findings, state: str = "running") -> None:
        """Replace `progress.json`, and show it."""
        document = {"schema": "prism.evaluation-progress/1", "state": state, **asdict(progress)}
        left = document["time_left_s"]
        document |= {
            "time_left_s": left if math.isfinite(left) else None,
            "trials": {
                "done": progress.trials_done,
                "running": progress.trials_running,
                "waiting": max(0, self.num_results - len(found.metrics) - found.num_lost),
                "failed": len(found.problems),
            },
            "results": len(found.metrics),
            "results_wanted": self.num_results,
            "updated_ns": time.time_ns(),
        }
        write_durably(self._folder / "progress.json", json.dumps(document) + "\n")
        self._show(document)


def count(number: int, word: str) -> str:
    """A number of things, in words: 1 trial, 2 trials."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
