"""Progress of a job: unusually long steps, pauses that grow, a drift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.windows import Floats, find_window, spread_of
from prism.records.findings import Finding

_SLOW_STEP = 0.08
_WORTH = levels.SHARE_HALF  # usual steps that a slow stretch must cost
_DRIFT = levels.SHARE_NEGLIGIBLE  # growth over the whole observation
_GROWN = levels.SHARE_MINOR  # pauses that became this much longer


def find_slow_steps(case: Case, stops: Sequence[Finding] = ()) -> list[Finding]:
    """A run of steps well above the job's usual length, or a slow rise of all of them; `stops` are told already."""
    lengths = case.length_s
    if len(lengths) < 5:
        return []
    lengths = _leave_miscounts_out(case, _leave_stops_out(case, lengths, stops))
    usual = float(np.quantile(lengths, 0.3, method="lower"))
    noise = spread_of(lengths[lengths <= np.median(lengths)]) / usual
    excess = lengths / usual - 1
    window = find_window(excess, max(_SLOW_STEP, 6 * noise))
    if window is None or window.length > 0.85 * len(lengths):
        return find_drift(case)
    inside = lengths[window.first : window.last + 1]
    lost = float((inside - usual).sum())
    if lost < (usual if window.length < levels.MIN_TWO else _WORTH * usual):
        return find_drift(case)
    evidence = (
        f"{len(inside)} steps of {np.mean(inside):.3f} s on average, up to {inside.max():.3f} s; usually {usual:.3f} s"
    )
    sure = min(1 - float(np.exp(-window.mean / levels.SHARE_SMALL)), levels.SHARE_NEARLY_ALL)
    who = culprit("job", case.job.id)
    return [case.finding("slow_step", who, window.first, window.last, lost_s=lost, score=sure, evidence=evidence)]


def _leave_stops_out(case: Case, lengths: Floats, stops: Sequence[Finding]) -> Floats:
    """Step lengths without the time for which the job stood still."""
    start, end = (case.steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    for stop in stops:
        lengths = lengths - (np.minimum(end, stop.end_ns) - np.maximum(start, stop.start_ns)).clip(0) / 1e9
    return lengths


def _leave_miscounts_out(case: Case, lengths: Floats) -> Floats:
    """Step lengths; those of steps with more messages than usual are reduced in proportion.

    A step that is longer because a boundary was missed holds the messages of the next one, too.
    """
    step = case.messages["step"].to_numpy()
    counts = np.bincount(step[step >= 0], minlength=len(lengths))
    more = counts / max(float(np.median(counts)), 1.0)
    return np.where(more > 1 + levels.SHARE_SMALL, lengths / np.maximum(more, 1.0), lengths)


def find_drift(case: Case) -> list[Finding]:
    """Steps that gradually get longer: a line through them rises well above the noise."""
    lengths = case.length_s
    if len(lengths) < 20:
        return []
    at = np.arange(len(lengths)) / (len(lengths) - 1)
    rise = _median_slope(at, lengths)
    usual = float(np.median(lengths))
    left = spread_of(lengths - rise * at)
    quarters = [float(np.median(part)) for part in np.array_split(lengths, 4)]
    gradual = bool((np.diff(quarters) > 0.1 * rise).all())  # A jump up, or up and down again, is not a drift.
    if rise < _DRIFT * usual or rise < 6 * left / np.sqrt(len(lengths) / 12) or not gradual:
        return []
    evidence = f"steps grew from {usual - rise / 2:.3f} s to {usual + rise / 2:.3f} s ({100 * rise / usual:.1f} %)"
    return [
        case.finding("drift", culprit("job", case.job.id), 0, len(lengths) - 1, lost_s=0.5 * rise * len(lengths),
                     score=0.5, evidence=evidence)
    ]  # fmt: skip


def _median_slope(at: Floats, values: Floats) -> float:
    """The median slope between steps half the observation apart: no single step affects it."""
    half = len(at) // 2
    return float(np.median((values[half:] - values[: len(values) - half]) / (at[half:] - at[: len(at) - half])))


def find_longer_pauses(case: Case) -> list[Finding]:
    """Pauses after steps (checkpoints, evaluation) that became longer than the job's earlier ones."""
    at = np.flatnonzero(case.pause_s[:-1] > 0)  # The end of the last pause was not observed.
    if len(at) < 4:
        return []
    pauses = case.pause_s[at]
    usual = float(np.quantile(pauses, 0.25, method="lower"))
    window = find_window(pauses / usual - 1, _GROWN)
    if window is None or window.length < 2 or window.share < 0.75 or window.length > 0.8 * len(at) or not window.first:
        return []
    slow = pauses[window.first : window.last + 1]
    evidence = f"{len(slow)} pauses after steps of {slow.mean():.2f} s on average; before {usual:.2f} s"
    return [
        case.finding("slow_step", culprit("job", case.job.id), int(at[window.first]), int(at[window.last]),
                     lost_s=float((slow - usual).sum()), score=0.6, evidence=evidence)
    ]  # fmt: skip
