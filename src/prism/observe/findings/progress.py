"""Progress of a job: steps that are longer than its usual ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.windows import Floats, find_window, spread_of
from prism.records.findings import Finding

_SLOW_STEP = 0.08
_STANDS = 2.0  # usual steps of silence that are no part of a step
_WORTH = levels.SHARE_HALF  # usual steps that a slow stretch must cost


def find_slow_steps(case: Case, stops: Sequence[Finding] = ()) -> list[Finding]:
    """A run of steps well above the job's usual length; `stops` are told already, and silences are no part of steps."""
    lengths = case.length_s
    if len(lengths) < 5:
        return []
    silent = find_silences(case)
    lengths = _leave_miscounts_out(
        case, _leave_stops_out(case, lengths, [(s.start_ns, s.end_ns) for s in stops] + silent)
    )
    usual = float(np.quantile(lengths, 0.3, method="lower"))
    noise = spread_of(lengths[lengths <= np.median(lengths)]) / usual
    excess = lengths / usual - 1
    window = find_window(excess, max(_SLOW_STEP, 6 * noise))
    if window is None or window.length > 0.85 * len(lengths):
        return []
    inside = lengths[window.first : window.last + 1]
    lost = float((inside - usual).sum())
    if lost < (usual if window.length < levels.MIN_TWO else _WORTH * usual):
        return []
    evidence = (
        f"{len(inside)} steps of {np.mean(inside):.3f} s on average, up to {inside.max():.3f} s; usually {usual:.3f} s"
    )
    sure = min(1 - float(np.exp(-window.mean / levels.SHARE_SMALL)), levels.SHARE_NEARLY_ALL)
    who = culprit("job", case.job.id)
    return [case.finding("slow_step", who, window.first, window.last, lost_s=lost, score=sure, evidence=evidence)]


def find_silences(case: Case) -> list[tuple[int, int]]:
    """When the whole job is silent for longer than two usual steps: it evaluates, saves or stands."""
    if case.messages.is_empty():
        return []
    usual = float(np.median(case.length_s)) * 1e9
    start, reach = (case.messages[c].to_numpy()[case.by_start] for c in ("start_ns", "end_ns"))
    reach = np.maximum.accumulate(reach)[:-1]
    long = np.flatnonzero(start[1:] - reach > _STANDS * usual)
    return list(zip(reach[long].tolist(), start[1:][long].tolist(), strict=True))


def _leave_stops_out(case: Case, lengths: Floats, stops: Sequence[tuple[int, int]]) -> Floats:
    """Step lengths without the time for which the job stood still; where stops overlap it counts once."""
    start, end = (case.steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    stood = np.zeros(len(lengths))
    until = 0
    for begin, over in sorted(stops):
        stood += (np.minimum(end, over) - np.maximum(start, max(begin, until))).clip(0) / 1e9
        until = max(until, over)
    return np.maximum(lengths - stood, 0.0)


def _leave_miscounts_out(case: Case, lengths: Floats) -> Floats:
    """Step lengths; those of steps with more messages than usual are reduced in proportion.

    A step that is longer because a boundary was missed holds the messages of the next one, too.
    """
    step = case.messages["step"].to_numpy()
    counts = np.bincount(step[step >= 0], minlength=len(lengths))
    more = counts / max(float(np.median(counts)), 1.0)
    return np.where(more > 1 + levels.SHARE_SMALL, lengths / np.maximum(more, 1.0), lengths)
