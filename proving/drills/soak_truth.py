"""What the harness itself saw of a run, by its own clock: the truth that goodput is compared with."""

from __future__ import annotations

import itertools
import threading
import time

from proving.drills.plain_stage import PlainStage


class Sampler(threading.Thread):
    """The truth that goodput is held against: when this program itself saw each step of each attempt."""

    def __init__(self, stage: PlainStage) -> None:
        super().__init__(daemon=True)
        self.stage = stage
        self.seen: dict[int, dict[int, float]] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        """Look ten times a second."""
        while not self.ended.wait(0.1):
            attempt = len(list((self.stage.run_dir / "attempts").glob("*")))
            steps = self.seen.setdefault(attempt, {})
            now = time.time()
            for report in self.stage.reports(attempt):
                if report["kind"] == "step":
                    steps.setdefault(int(report["step"]), now)

    def lost_s(self) -> float:
        """Work done again, and the time from the last step of an attempt to the first of the next."""
        made = [steps for _, steps in sorted(self.seen.items()) if steps]
        total = 0.0
        for before, after in itertools.pairwise(made):
            last_s, kept = max(before.values()), min(after) - 1
            total += min(after.values()) - last_s
            if kept < max(before):
                total += last_s - before.get(kept, min(before.values()))
        return total
