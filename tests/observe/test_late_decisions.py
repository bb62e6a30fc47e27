"""Who is late, piece by piece and by hand: candidates, what they gain, how sure it is, and what is told."""

from __future__ import annotations

import numpy as np
import pytest

from prism.observe.findings.scoring import PER_STEP, _gain_rows, score_delays
from prism.observe.findings.windows import Window
from prism.observe.parallelism.stages import StageMap

STEPS = 10
WINDOW = Window(2, 7, 0.2, 1.0)
SLOW = [1.0] * 2 + [1.2] * 6 + [1.0] * 2  # steps of the window
PAIRS = ("h0", "h0", "h1", "h1")
TWO_STAGES = StageMap(stage={0: 0, 1: 0, 2: 1, 3: 1}, chains=((0, 2), (1, 3)), confidence=1.0)


# -- which steps are slow, and whether a cause explains them


# -- candidates


# -- what is told


# -- another host each time


# -- the whole, from residuals that are given


# -- the scorer


def test_rows_gain_by_how_much_nearer_they_are_to_their_middle_than_to_zero() -> None:
    values = np.array([[1.0, np.nan, -1.0], [3.0, 2.0, -2.0], [2.0, 4.0, 5.0]])
    gain, late = _gain_rows(values, np.array([0, 1, 2]))
    assert late.tolist() == [2.0, 2.0, 0.0]
    assert gain.tolist() == [(1 - 1) + (3 - 1) + (2 - 0), (2 - 0) + (4 - 2), 0.0]
    assert _gain_rows(values, np.array([], np.int64))[0].tolist() == [0.0] * 3


def test_delays_of_a_place_are_judged_inside_its_window() -> None:
    delays = np.zeros((3, 6))
    delays[:2, 2:5] = 0.3
    inside, wider = (score_delays(delays, [0, 1], Window(2, last, 0.3, 1.0), 1.0) for last in (4, 5))
    assert wider == pytest.approx(inside - PER_STEP)
