"""Results as they come: written down, sent on, and an alarm for every score that got worse beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prism.evaluate.evaluation import Evaluation
from prism.evaluate.push import Outbox, Push
from prism.evaluate.results import write_results


class Publisher:
    """One per evaluation; reports each regression once."""

    def __init__(self, folder: Path, pushes: Sequence[Push], say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._outbox = Outbox(pushes, folder, say)
        self._told: set[tuple[str, str, str]] = set()

    def publish(self, now: Evaluation) -> None:
        """Write files, sound alarms, send what is new."""
        board = write_results(now, self._folder)
        for r in board.regressions:
            if (r.checkpoint, r.dataset, r.metric) not in self._told:
                self._told.add((r.checkpoint, r.dataset, r.metric))
                self._say(
                    f"regression: {r.dataset} {r.metric} is {r.value:.4g} at step {r.step}, {r.before_value:.4g} at "
                    f"step {r.before_step}: {r.sigmas:.1f} standard errors worse"
                )
        self._outbox.send(board.scores, board.regressions)

    def close(self) -> None:
        """Send what waits."""
        self._outbox.close()
