"""Which of the candidates is said to be late, from gains that are given by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prism.observe.findings import causes
from prism.observe.findings.causes import Cause, Scored

STEPS = 12


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Four hosts of one rank each; a finding is the members and the steps of its cause."""
    monkeypatch.setattr(causes, "_tell", lambda case, cause, causes, margin: _say(cause))
    names = [f"node-{i}" for i in range(4)]
    return SimpleNamespace(hosts=names, own_by_host={name: {i} for i, name in enumerate(names)})


def _say(cause: Cause) -> tuple[list[int], int, int]:
    return sorted(cause.members), cause.window.first, cause.window.last


def _gains(late: int, first: int, last: int, gain: float = 50.0) -> list[Scored]:
    """One rank gains in some steps, nobody else does."""
    out = []
    for rank in range(4):
        own = np.full(STEPS, -3.0)
        own[first : last + 1] = gain if rank == late else -3.0
        amounts = np.where(own > 0, 0.2, 0.0)
        out.append(Scored(frozenset([rank]), own, np.zeros(STEPS), amounts, amounts))
    return out


def _longer(first: int, last: int) -> Any:
    longer = np.zeros(STEPS)
    longer[first : last + 1] = 0.2
    return longer


def test_the_one_that_explains_the_slow_steps_is_late(case: Any) -> None:
    assert causes._choose(case, _gains(2, 4, 8), None, _longer(4, 8)) == [([2], 4, 8)]


def test_two_long_steps_at_the_start_of_a_program_are_no_cause(case: Any) -> None:
    assert causes._choose(case, _gains(2, 0, 1), None, _longer(0, 1)) == []


def test_who_is_late_while_other_steps_are_slow_explains_nothing(case: Any) -> None:
    assert causes._choose(case, _gains(2, 0, 3), None, _longer(6, 10)) == []


def test_two_that_gain_alike_are_named_together(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "_tell_two", lambda case, one, other, margin: [sorted(one.members | other.members)])
    alike = [_gains(1, 4, 8)[1], _gains(2, 4, 8)[2], _gains(1, 4, 8)[3]]
    assert causes._choose(case, alike, None, _longer(4, 8)) == [[1, 2]]
