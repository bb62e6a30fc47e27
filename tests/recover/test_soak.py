"""The soak's own judgement of what a fault did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proving.drills import hf_soak
from proving.drills.soak_faults import Fault, Harm
from proving.drills.soak_ledger import Tally
from proving.drills.stage import DrillError


class Run:
    """A run that makes one step each time it is looked at, and is over after some."""

    def __init__(self, *, outcome: str, last: int) -> None:
        self.outcome, self.last, self.step = outcome, last, 0

    def state(self) -> Any:
        self.step = min(self.step + 1, self.last)
        over = self.step == self.last
        return SimpleNamespace(attempt=1, over=over, outcome=self.outcome if over else "", outcome_text="the text")

    def reports(self, attempt: int) -> list[dict[str, Any]]:
        return [{"kind": "step", "step": self.step}]

    def wait_for(self, what: str, condition: Any) -> None:
        for _ in range(100):
            if condition():
                return
        raise DrillError(f"waited for {what}")


def disturb(monkeypatch: pytest.MonkeyPatch, name: str, **run: Any) -> Tally:
    monkeypatch.setattr(hf_soak, "harm", lambda stage, fault, tally: Harm(kept=5))
    tally = Tally(program="prism", seed=0)
    stage: Any = Run(**run)
    hf_soak._disturb(stage, tally, Fault(name=name, ahead=6), steps=90)
    return tally


@pytest.mark.parametrize("last", [10, 90])
def test_a_loader_that_was_not_needed_any_more_costs_nothing(monkeypatch: pytest.MonkeyPatch, last: int):
    (note,) = disturb(monkeypatch, "kill a loader", outcome="done", last=last).notes
    assert (note.kept, note.restored, note.lost_checkpoint) == (5, 5, False)


def test_a_run_that_is_given_up_is_a_wrong_stop_and_a_fault_without_effect_is_not_survived(
    monkeypatch: pytest.MonkeyPatch,
):
    with pytest.raises(DrillError, match="a wrong stop: the text"):
        disturb(monkeypatch, "kill a loader", outcome="failed", last=10)
    with pytest.raises(DrillError, match="waited for recovery"):
        disturb(monkeypatch, "kill a rank", outcome="done", last=90)
