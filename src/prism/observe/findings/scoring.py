"""How much more likely slow transfers are with a slow component than without one, in nats.

The transfers that it touches are slow by one amount in a step, and all others are not. What is left scatters with a
Laplace distribution, whose scale is estimated from the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.findings.case import Floats, Ints
from prism.observe.findings.windows import Window, quantile_rows, spread_of
from prism.observe.traffic.medians import select_nth

PER_STEP = levels.SIGMAS_UNLIKELY  # nats that a step with a cause must gain, because its window is chosen too
_QUICK = levels.SHARE_QUICK  # share of the steps, and of similar members, that are surely not late
_CLOSE = levels.TWO_PER_MILLE  # of a step, or of the work itself: what differs by less says nothing


def score_delays(delay_s: Floats, rows: Sequence[int], window: Window, step_s: float) -> float:
    """The gain of a component in a window of steps if the transfers of these rows take longer by one amount."""
    gain, _ = _gain_rows(delay_s, np.array(rows, np.int64))
    inside = gain[window.first : window.last + 1] / measure_scale(delay_s, step_s)
    return float((inside - PER_STEP).sum())


def measure_scale(late: Floats, unit: float) -> float:
    """How much residuals scatter by chance: from step to step, or between rows at all times; `unit` is a whole step."""
    # In each step one row is what the others are compared with: of two, every other value is zero.
    known = np.where(late == 0, np.nan, late) if len(late) == levels.MIN_TWO else late
    by_step = spread_of(np.diff(known, axis=1).ravel()) / float(np.sqrt(2))
    usual = quantile_rows(late, levels.SHARE_HALF, axis=1)
    by_row = float(quantile_rows(np.abs(usual - quantile_rows(usual, _QUICK, axis=0)), levels.SHARE_HALF, axis=0))
    return max(by_step, by_row, _CLOSE * unit)


@kernel
def _gain_rows(values: Floats, rows: Ints) -> tuple[Floats, Floats]:
    """By step how much nearer rows are to their middle value than to zero, and that value; none below zero."""
    gain, late = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    known = np.empty(len(rows))
    for s in range(values.shape[1]):
        count = 0
        for row in rows:
            if not np.isnan(values[row, s]):
                known[count] = values[row, s]
                count += 1
        if count:
            late[s] = max(select_nth(known[:count], (count - 1) // 2), 0.0)
            for i in range(count):
                gain[s] += abs(known[i]) - abs(known[i] - late[s])
    return gain, late
