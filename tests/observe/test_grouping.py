"""Which pairs of endpoints tie a job together."""

from __future__ import annotations

import numpy as np
import pytest

from prism.observe.jobs.grouping import _is_handed_back

MB = 1e6


def ties(*pairs: tuple[int, int, int, float]) -> list[bool]:
    """For pairs given as source, destination, number of messages and bytes."""
    src, dst, num, load = (np.array(column) for column in zip(*pairs, strict=True))
    found = _is_handed_back(src, dst, num.astype(np.float64), load.astype(np.float64))
    return [bool(tie) for tie in found]


def test_what_stages_of_a_pipeline_hand_on_comes_back() -> None:
    """The capture ends between the last micro-batch and its gradient."""
    assert ties((0, 4, 24, 200 * MB), (4, 0, 23, 192 * MB), (0, 1, 1_394, 3e11)) == [True, True, False]


@pytest.mark.parametrize(
    "back",
    [(5, 0, 24, 200 * MB), (4, 0, 24, 24e3), (4, 0, 2, 200 * MB)],
    ids=["to another", "acknowledged", "copied"],
)
def test_what_does_not_come_back_alike_ties_nothing(back: tuple[int, int, int, float]) -> None:
    assert ties((0, 4, 24, 200 * MB), back) == [False, False]


def test_pings_tie_nothing_though_they_come_back() -> None:
    assert ties((0, 4, 24, 24 * 64.0), (4, 0, 24, 24 * 64.0)) == [False, False]


def test_no_pairs_are_no_ties() -> None:
    nothing = np.zeros(0, np.int64)
    assert _is_handed_back(nothing, nothing, np.zeros(0), np.zeros(0)).tolist() == []
