"""The only scorer: how much more likely a cause makes the calls of a job than no cause does.

Under a cause the rows that it affects are late by one amount in a step, and all others are not. Residuals scatter about
that with a Laplace distribution, whose scale is estimated from the job. The gain of a cause in a step is how much more
likely it makes the residuals, in nats, less the cost of a step with a cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints, is_pipeline
from prism.observe.findings.residuals import Residuals, measure_scale
from prism.observe.findings.windows import Window
from prism.observe.traffic.medians import select_nth, take_median
from prism.observe.traffic.numbering import group_by_number

PER_STEP = levels.SIGMAS_UNLIKELY  # nats that a step with a cause must gain, because its window is chosen too
_TWO, _FAR = levels.MIN_TWO, levels.RATIO_FAR


@dataclass(frozen=True, slots=True)
class Candidate:
    """Endpoints that would be late, and the stage if they are all of one."""

    members: frozenset[int]
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Members that are late from one step to another, by a share of a step or of their work, and what that gains."""

    members: frozenset[int]
    window: Window
    gain: float
    of_wait: float  # what of it waits gain: both ends of the hop that arrives last do, and all of a pipeline that waits
    late_s: float
    stage: int | None = None
    seen: bool = True  # whether any residual covers its members
    steps: frozenset[int] = frozenset()  # of the window in which it gains

    def lead(self, rival: Cause | None) -> float:
        """Its lead over a rival, as a share of what the two do not gain in common."""
        if rival is None or rival.gain <= 0:
            return 1.0
        alone = self.gain - min(self.of_wait, rival.of_wait)
        return (self.gain - rival.gain) / max(alone, PER_STEP * self.window.length)


@dataclass(frozen=True, slots=True)
class Scores:
    """Of each candidate in each step: what it gains, how late it is in seconds, and as a share of a step or of work."""

    candidates: Sequence[Candidate]
    gain: Floats
    of_wait: Floats
    late_s: Floats
    share: Floats
    elsewhere: Floats  # what it gains in steps that are not longer, which count for uneven load alone
    unseen: frozenset[int] = frozenset()  # endpoints without a residual
    tables: Sequence[Residuals] = ()  # that they were scored by
    slow: NDArray[np.bool_] | None = None  # by step whether it counts: an intermittent cause is late in no other

    def settle(self, at: int, window: Window) -> Cause:
        """One candidate over a window of steps."""
        inside = slice(window.first, window.last + 1)
        gain, of_wait = sum_steps(self.gain[at, inside]), sum_steps(self.of_wait[at, inside])
        counts = np.ones(window.length, np.bool_) if self.slow is None else self.slow[inside]
        counts = counts if counts.any() else ~counts
        late_s, share = (float(np.median(table[at, inside][counts])) for table in (self.late_s, self.share))
        own = self.candidates[at]
        seen = not own.members <= self.unseen
        steps = frozenset((window.first + np.flatnonzero(self.gain[at, inside] > 0)).tolist())
        return Cause(own.members, replace(window, mean=share), gain, of_wait, late_s, own.stage, seen, steps)

    def find_window(self, at: int) -> Window:
        """The window of steps in which a candidate gains most."""
        total = np.concatenate([[0.0], np.cumsum(self.gain[at])])
        last = int(np.argmax(total[1:] - np.minimum.accumulate(total)[:-1]))
        first = int(np.argmin(total[: last + 1]))
        return Window(first, last, share=float((self.gain[at, first : last + 1] > 0).mean()))

    def score_between(self, one: Cause, other: Cause) -> float:
        """What the hops between two causes gain in the window of the first: they are late if either of the two is."""
        gain = 0.0
        for table in self.tables:
            ends = list(zip(table.sender.tolist(), table.receiver.tolist(), strict=True))
            rows = [i for i, (s, r) in enumerate(ends) if (s in one.members and r in other.members)
                    or (s in other.members and r in one.members)]  # fmt: skip
            if rows and not table.of_hosts:
                own, _ = _gain_rows(table.late_s, np.array(rows, np.int64))
                gain += float(own[one.window.first : one.window.last + 1].sum()) / table.scale_s
        return gain - PER_STEP * one.window.length

    def find_best(
        self, window: Window | None, least: float, fits: Callable[[Cause], bool] = lambda _: True
    ) -> Cause | None:
        """The one that gains most of those that fit and are late by a share of `least`.

        It is scored in a stretch of steps or in its own best one. Of candidates that gain alike it is the smallest. A
        few steps may be long for other reasons, such as the start of a program or a pause: they name nobody.
        """
        windows = [window or self.find_window(at) for at in range(len(self.candidates))]
        gain = [sum_steps(self.gain[at, w.first : w.last + 1]) for at, w in enumerate(windows)]
        for at in sorted(range(len(gain)), key=lambda i: (-gain[i], len(self.candidates[i].members))):
            if gain[at] <= 0:
                return None
            cause = self.settle(at, windows[at])
            if cause.window.mean >= least and cause.window.length >= levels.MIN_TWO and fits(cause):
                return cause
        return None

    def take_middle_step(self) -> Scores:
        """The same with the gain of the median step in every step: a lasting cause gains in most of them."""
        middle = {name: getattr(self, name) for name in ("gain", "of_wait")}
        middle = {name: np.median(t, axis=1, keepdims=True) + np.zeros_like(t) for name, t in middle.items()}
        return replace(self, **middle)

    def take(self, rows: Sequence[int]) -> Scores:
        """Some of the candidates."""
        tables = ("gain", "of_wait", "late_s", "share", "elsewhere")
        part = {name: getattr(self, name)[rows] for name in tables}
        return replace(self, candidates=[self.candidates[i] for i in rows], **part)


def score(
    case: Case, candidates: Sequence[Candidate], tables: Sequence[Residuals], host: Ints, longer: Floats | None
) -> Scores:
    """What every candidate gains in each step over all residuals; with `longer`, in slow steps alone."""
    shape = len(candidates), case.steps.height
    step_s = float(np.median(case.length_s))
    gain, of_wait, late_s, share = (np.zeros(shape) for _ in range(4))
    slow = np.ones(case.steps.height, np.bool_) if longer is None else longer > 0
    # A pipeline passes on only new delays: stages that always start late do so by design.
    in_stages = longer is not None and is_pipeline(case)
    hosts = [{int(host[e]) for e in c.members} for c in candidates]
    for table in tables:
        touched = [h if len(h) == 1 else () for h in hosts] if table.of_hosts else [c.members for c in candidates]
        # A hop begins with its sender, or once both ends are ready. A lasting delay does not show which.
        own, late = _gain(table, [sorted(t) for t in touched], either_end=longer is not None)
        if in_stages and not table.per_work:
            own = _share_waits(candidates, own)
        gain += own
        if table.of_hosts or (in_stages and not table.per_work):
            of_wait = of_wait + own
        shows = ((own - PER_STEP)[:, slow].sum(axis=1) > 0)[:, None]  # A smaller gain gives no reliable amount.
        share = np.where(shows, np.maximum(share, late if table.per_work else late / step_s), share)
        late_s = late_s if table.per_work else np.where(shows, np.maximum(late_s, late), late_s)
    late_s = late_s if longer is None else np.minimum(late_s, longer)
    told = {int(e) for t in tables if not t.of_hosts for e in (*t.sender[_shown(t)], *t.receiver[_shown(t)])}
    unseen = frozenset(e for c in candidates for e in c.members) - told
    inside, waited = np.where(slow, gain, 0.0) - PER_STEP, np.where(slow, of_wait, 0.0)
    return Scores(candidates, inside, waited, late_s, share, np.where(slow, 0.0, gain), unseen, tables, slow)


def _share_waits(candidates: Sequence[Candidate], gain: Floats) -> Floats:
    """Gains of waits; for a stage those of its best part, because all its ranks wait alike, for one or for all."""
    shared = gain.copy()
    for i, whole in enumerate(candidates):
        parts = [k for k, c in enumerate(candidates) if whole.stage is not None and c.members < whole.members]
        if parts:
            shared[i] = gain[parts][gain[parts].sum(axis=1).argmax()]
    return shared


@numba.njit(cache=True, nogil=True)
def sum_steps(gain: Floats) -> float:
    """The sum over steps, with the highest reduced to the next one and none far above the median.

    One long pause, or a few outliers among many steps with hardly any gain, say nothing about the others.
    """
    if len(gain) < _TWO:
        return float(gain.sum())
    above = gain[gain > 0]
    most = _FAR * take_median(above) if len(above) else 0.0
    return float(np.minimum(gain, max(min(np.sort(gain)[-2], most), 0.0)).sum())


def _shown(table: Residuals) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(table.late_s).all(axis=1), np.bool_)


def _gain(table: Residuals, touched: Sequence[Sequence[int]], *, either_end: bool) -> tuple[Floats, Floats]:
    """By candidate and step how much likelier its rows are if all are late by one amount than if none is; that amount.

    `touched` are the ends that each candidate makes late.
    """
    begin = np.concatenate([[0], np.cumsum([len(t) for t in touched])]).astype(np.int64)
    members = np.array([e for t in touched for e in t], np.int64)
    ends = table.sender, table.receiver
    count = 1 + max(int(some.max(initial=0)) for some in (*ends, members))
    sent = group_by_number(table.sender, count)
    taken = group_by_number(np.where(table.receiver < 0, count, table.receiver), count + 1)
    gain, late = _gain_each(table.late_s, ends, sent, taken, members, begin, either_end)
    return gain / table.scale_s, late


def score_delays(delay_s: Floats, rows: Sequence[int], window: Window, step_s: float) -> float:
    """The gain of a component in a window of steps if the transfers of these rows take longer by one amount."""
    gain, _ = _gain_rows(delay_s, np.array(rows, np.int64))
    inside = gain[window.first : window.last + 1] / measure_scale(delay_s, step_s)
    return float((inside - PER_STEP).sum())


@numba.njit(cache=True, nogil=True)
def _gain_each(
    values: Floats, ends: tuple[Ints, Ints], sent: tuple[Ints, Ints], taken: tuple[Ints, Ints], members: Ints,
    begin: Ints, either_end: bool,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The gain of every candidate by step, times the scale: of hops that one of its ends is at, or that it sends."""
    count, steps = len(begin) - 1, values.shape[1]
    gain, late = np.zeros((count, steps)), np.zeros((count, steps))
    inside = np.zeros(len(taken[1]), np.bool_)
    rows = np.empty(len(values), np.int64)
    for c in range(count):
        own = members[begin[c] : begin[c + 1]]
        inside[own] = True
        found = 0
        for e in own:
            for row in sent[0][sent[1][e] : sent[1][e + 1]]:
                if ends[1][row] < 0 or not inside[ends[1][row]]:
                    rows[found] = row
                    found += 1
        sends = found
        for e in own:
            for row in taken[0][taken[1][e] : taken[1][e + 1]]:
                if not inside[ends[0][row]]:
                    rows[found] = row
                    found += 1
        inside[own] = False
        gain[c], late[c] = _gain_rows(values, rows[:found])
        if either_end and sends < found:
            gain_sent, late_sent = _gain_rows(values, rows[:sends])
            if gain_sent.sum() > gain[c].sum():
                gain[c], late[c] = gain_sent, late_sent
    return gain, late


@numba.njit(cache=True, nogil=True)
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
