"""Latecomers: whom the collectives of slow steps wait for, always the same worker or another one each time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from prism.observe import levels
from prism.observe.findings.arrivals import measure_arrivals
from prism.observe.findings.case import Case, Floats, Ints, culprit
from prism.observe.findings.cost import settle
from prism.observe.findings.windows import Window, spread_of
from prism.records.findings import Culprit, Finding, FindingKind

_SLOW = levels.LITTLE  # of a usual step: a step longer by more is a slow one
_EXPLAINS = levels.SOME  # of what a slow step is longer by that its last comer is late
_MOST = levels.MAJORITY  # of the slow steps
_AS_LATE = levels.MAJORITY  # of how late the last comer is: those are late with it
_SEEN = levels.HALF  # share of the time lost in steps that an endpoint is seen in
_ALWAYS = 0.85  # share of the slow steps that the same worker is last in, where it is to blame
_MANY = 6  # steps
_BY_TURNS = levels.MAJORITY  # the same, up to which it is another one each time in a pipeline
_FELT = 0.05  # of a usual step: uneven work that costs less is usual
_GOES_ON = levels.HALF  # share of the steps from the first slow one to the last
_EVERY = levels.LEAST  # steps between slow ones that may be meant
_ALSO = 0.2  # of how late the last one is: those are late on their own account
_PARTLY = levels.SOME  # share of those who are late that are so by less than the last, where all have uneven work


@dataclass(frozen=True)
class Slow:
    """The slow steps that a last comer explains, and how late each worker comes in them."""

    steps: Ints
    longer_s: Floats  # what each is longer by
    workers: list[list[int]]  # endpoints of each
    late_s: Floats  # workers by these steps
    window: Window

    @property
    def top_s(self) -> Floats:
        """How late the last one comes."""
        return np.asarray(np.nanmax(self.late_s, axis=0))

    @property
    def shares(self) -> Floats:
        """By worker: the share of the time lost that it comes last in, or nearly so, where it is seen at all."""
        seen = ~np.isnan(self.late_s) @ self.longer_s
        last = np.nan_to_num(self.late_s) >= _AS_LATE * self.top_s
        return np.where(seen > _SEEN * self.longer_s.sum(), last @ self.longer_s / np.maximum(seen, 1e-12), 0.0)

    @property
    def next_share(self) -> float:
        """How late the next comes, as a share of how late those come who are late in most of the steps."""
        others = np.nan_to_num(self.late_s[self.shares < (_BY_TURNS if self.shares.max() >= _BY_TURNS else np.inf)])
        return (
            float(others.max(axis=0) / np.maximum(self.top_s, 1e-12) @ self.longer_s / self.longer_s.sum())
            if len(others)
            else 0.0
        )

    def find_always(self, most_next: float) -> list[int]:
        """The endpoints that come last in nearly all of the steps; none where the next comes later than a share."""
        if self.shares.max() < _ALWAYS or self.next_share >= most_next:
            return []
        return sorted(e for i in np.flatnonzero(self.shares >= _ALWAYS) for e in self.workers[i])


def find_late_ranks(case: Case) -> list[Finding]:
    """The worker that all wait for in the slow steps, or the job where it is another one each time."""
    if case.steps.height < 4:
        return []
    slow = _explain_slow_steps(case)
    if slow is None:
        return []
    # In many steps uneven work does not make the same one the last by chance, whoever else is late.
    looks = [(s, _ALSO) for s in (slow, _by_host(case, slow))] + [(slow, np.inf)] * (len(slow.steps) >= _MANY)
    members = next((found for look, most in looks if (found := look.find_always(most))), [])
    if members:
        return _blame_worker(case, slow, members)
    # In a pipeline others may be late through one of them, by nearly as much.
    alone = len(set(case.stages.stage.values())) < 2 or slow.shares.max() <= _BY_TURNS
    by_turns = alone or slow.next_share >= _ALSO
    # Machines hiccup now and then; uneven work goes on.
    goes_on = len(slow.steps) >= _GOES_ON * slow.window.length
    return [_blame_load(case, slow)] if by_turns and goes_on and slow.window.mean >= _FELT else []


def _explain_slow_steps(case: Case) -> Slow | None:
    usual = float(np.quantile(case.length_s, 0.3, method="lower"))
    noise = spread_of(case.length_s[case.length_s <= np.median(case.length_s)])
    longer = case.length_s - usual
    slow = np.flatnonzero(longer > max(_SLOW * usual, 4 * noise))
    if len(slow) < 2 or len(slow) > 0.9 * case.steps.height or _is_regular(slow):
        return None
    arrivals = measure_arrivals(case)
    late = arrivals.late_s[:, slow]
    stage = np.array([case.stages.stage.get(int(e), -1) for e in arrivals.endpoints], np.int64)
    latest = stage[np.nan_to_num(late).sum(axis=1).argmax()]
    late = np.where((stage == latest)[:, None], late, np.nan)
    seen = np.nan_to_num(late).max(axis=0, initial=0.0) >= np.maximum(_EXPLAINS * longer[slow], 0.5 * _SLOW * usual)
    if seen.sum() < max(2, _MOST * len(slow)):
        return None
    steps = slow[seen]
    window = Window(int(steps[0]), int(steps[-1]), float(np.median(longer[steps]) / usual), float(seen.mean()))
    return Slow(steps, longer[steps], [[int(e)] for e in arrivals.endpoints], late[:, seen], window)


def _by_host(case: Case, slow: Slow) -> Slow:
    """The same by host: how late most of its endpoints come."""
    hosts = np.array([case.host(w[0]) for w in slow.workers], dtype=str)
    names = np.unique(hosts)
    late = np.stack([_find_usual(slow.late_s[hosts == h]) for h in names])
    workers = [[slow.workers[i][0] for i in np.flatnonzero(hosts == h)] for h in names]
    return replace(slow, workers=workers, late_s=np.where(np.isnan(late).all(axis=0), 0.0, late))


def _find_usual(late_s: Floats) -> Floats:
    """The median of those that are seen in each step; nan where none is."""
    ordered = np.sort(late_s, axis=0)  # What is not seen comes last.
    seen = (~np.isnan(late_s)).sum(axis=0)
    middle = (np.maximum(seen - 1, 0) // 2, np.minimum(seen // 2, len(late_s) - 1))
    low, high = (np.take_along_axis(ordered, at[None, :], axis=0)[0] for at in middle)
    return np.asarray(0.5 * (low + high))


def _is_regular(steps: Ints) -> bool:
    """Whether steps come every few steps: what is slow every so often (checkpoints, evaluation) is meant to be."""
    apart = np.diff(steps)
    return bool((apart == apart[0]).all() and apart[0] >= _EVERY)


def _blame_worker(case: Case, slow: Slow, members: list[int]) -> list[Finding]:
    """The worker that is late in the slow steps; no one where others may have kept it, in a pipeline or elsewhere."""
    if len({case.host(e) for e in members}) > 1 or len(set(case.stages.stage.values())) > 1:
        return []
    cost = settle(case, slow.window, None)
    evidence = (
        f"comes {1000 * float(np.median(slow.top_s)):.1f} ms late to the collectives of a step in {len(slow.steps)} of "
        f"{case.steps.height} steps, and all others wait for it; {cost.words}"
    )
    return [_tell(case, slow, "slow_compute", case.name_worker(members), cost.lost_s, evidence)]


def _blame_load(case: Case, slow: Slow) -> Finding:
    """The job: one worker after the other is late."""
    cost = settle(case, slow.window, None)
    last = len(np.unique(np.nan_to_num(slow.late_s).argmax(axis=0)))
    late = slow.late_s >= _ALSO * slow.top_s
    partly = late & (slow.late_s < (1 - _ALSO) * slow.top_s)
    uneven = partly.sum() > _PARTLY * late.sum()
    what = "others come between" if uneven else "all others come as ever"
    evidence = (
        f"the last to come to the collectives changes: {last} different ones in {len(slow.steps)} slow steps, by "
        f"{1000 * float(np.median(slow.top_s)):.1f} ms; {what}; {cost.words}"
    )
    kind: FindingKind = "load_imbalance" if uneven else "slow_step"
    return _tell(case, slow, kind, culprit("job", case.job.id), cost.lost_s, evidence)


def _tell(case: Case, slow: Slow, kind: FindingKind, who: Culprit, lost_s: float, evidence: str) -> Finding:
    score = 0.99 * (1 - np.exp(-len(slow.steps)))
    return case.finding(
        kind, who, slow.window.first, slow.window.last, lost_s=lost_s, score=float(score), evidence=evidence
    )
