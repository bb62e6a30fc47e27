"""Uneven load: replicas that differ, each step another way."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.cost import price_uneven_work
from prism.observe.findings.response_times import Answers
from prism.observe.findings.windows import Floats, Window, find_window
from prism.observe.findings.work_table import WorkTable
from prism.observe.traffic.medians import find_median
from prism.records.findings import Finding

_SCATTER = levels.FEW  # spread of work between replicas that is more than noise
_ONE_WORKER = levels.HUNDREDTH  # ranks of a host whose work differs by less act as one
_LESS = 0.05  # a change of work worth counting
_OFTEN = levels.FEW  # share of steps and workers
_MANY = levels.MAJORITY  # share of the workers that are late at one time or another
_PARTLY = 0.85  # of the steps: unevenness that began, as answers are compared with the past
_CALM = levels.SOME  # spread in calm steps, as a share of that in others
_SAME_TOP = 0.7  # share of steps in which the same replica is slowest, above which it is to blame itself


def find_load_imbalance(case: Case, table: WorkTable) -> list[Finding]:
    """Replicas differ a lot, and another one is the slowest in each step: the work is uneven, not the ranks."""
    best: Finding | None = None
    for values in table.phases.values():
        for s in range(table.num_stages):
            rows = np.flatnonzero(table.stage == s)
            block = _workers(table.host[rows], values[rows])
            # Tensor-parallel ranks work as one; where they do not seem to, the times are not good enough to judge.
            expected = max(len(rows) // (case.layout.tp.value or 1), 1)
            found = _judge(case, table, block) if 2 <= block.shape[0] <= 2 * expected else None
            if found is not None and (best is None or found.score > best.score):
                best = found
    return [best] if best is not None else []


def find_uneven_answers(case: Case, answers: Answers, table: WorkTable) -> list[Finding]:
    """The same, told by how late each worker answers in each step; others' waiting does not blur that."""
    seen = ~np.isnan(answers.out).all(axis=1)
    hosts = np.array([case.host(int(e)) for e in answers.endpoints[seen]], dtype=str)
    block = _workers(hosts, np.maximum(1 + answers.out[seen], _LESS))
    if block.shape[0] < 2:
        return []
    # Some get less to do than before, not only more.
    with np.errstate(invalid="ignore"):
        less, more = np.nanmean(block < 1 - _LESS), np.nanmean(block > 1 + _LESS)
    late_once = np.nanmax(block, axis=1) > 1 + _SCATTER
    if min(less, more) < _OFTEN or late_once.mean() < _MANY or not _began(block):
        return []
    found = _judge(case, table, block, most=_PARTLY * case.steps.height)
    return [found] if found is not None else []


def _began(block: Floats) -> bool:
    """Whether workers differ far more in some steps than in others: what differs all along is not told by answers."""
    block = block[:, ~np.isnan(block).all(axis=0)]
    known = np.sort(np.nanmax(np.abs(block / np.nanmedian(block, axis=0) - 1), axis=0))
    quarter = max(1, len(known) // 4)
    return len(known) >= 4 and bool(np.median(known[:quarter]) < _CALM * np.median(known[-quarter:]))


def _judge(case: Case, table: WorkTable, block: Floats, most: float = np.inf) -> Finding | None:
    known: NDArray[np.bool_] = np.asarray(~np.isnan(block).any(axis=0))
    if known.sum() < 4:
        return None
    usual = np.median(block, axis=0)
    relative = block / usual
    scatter = np.where(known, relative.max(axis=0) - 1, np.nan)
    window = find_window(scatter, _SCATTER)
    if window is None or not 3 <= window.length <= most or window.share < 0.6:
        return None
    inside = relative[:, window.first : window.last + 1][:, known[window.first : window.last + 1]]
    if inside.shape[1] < 3:
        return None
    top = np.bincount(inside.argmax(axis=0), minlength=inside.shape[0]).max() / inside.shape[1]
    # What stays with a rank is the rank's; what moves from step to step is the work's.
    moving = float(np.median(np.abs(np.diff(inside, axis=1))))
    middle = np.median(inside, axis=1)
    lasting = float(np.ptp(middle)) if inside.shape[0] > 2 else float(abs(middle[0] - middle[1]))
    num_moving = float((np.abs(np.diff(inside, axis=1)) > 0.3 * _SCATTER).mean())
    if (
        (top >= _SAME_TOP and inside.shape[0] > 2)
        or moving < 0.5 * lasting / np.sqrt(inside.shape[1])
        or num_moving < 0.4
    ):
        return None
    if inside.shape[0] == 2 and not 0.2 < (inside.argmax(axis=0) == 0).mean() < 0.8:
        return None
    slower = case.slower_by(window.first, window.last)
    if slower is not None and slower < 0.01:
        return None
    mean = float(np.median(inside.max(axis=0)) - 1)
    window = Window(window.first, window.last, mean, window.share)
    cost = price_uneven_work(case, table, inside, window)
    evidence = (
        f"the slowest of {inside.shape[0]} replicas works {100 * mean:.0f} % longer than the middle one, and it is a "
        f"different one in most steps (the same one in at most {100 * top:.0f} %); "
        f"{cost.words}"
    )
    score = min(0.9 * (1 - np.exp(-window.length / 4)), cost.margin)
    return case.finding("load_imbalance", culprit("job", case.job.id), window.first, window.last, lost_s=cost.lost_s,
                        score=score, evidence=evidence)  # fmt: skip


def _workers(hosts: NDArray[np.str_], values: Floats) -> Floats:
    """Work by worker: endpoints of one host that always take the same time count once."""
    place = np.unique(hosts, return_inverse=True)[1].astype(np.int64)
    workers: Floats = values[_tell_apart(place, values)]
    return workers


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _tell_apart(place: NDArray[np.int64], values: Floats) -> NDArray[np.bool_]:
    """Rows that differ from every row of the same place before them that does so too."""
    kept = np.ones(len(values), np.bool_)
    apart = np.empty(values.shape[1])
    for i in range(len(values)):
        for k in range(i):
            if not kept[k] or place[k] != place[i]:
                continue
            known = 0
            for step in range(values.shape[1]):
                apart[known] = abs(values[k, step] / values[i, step] - 1)
                known += not np.isnan(apart[known])
            if known and find_median(apart[:known]) < _ONE_WORKER:
                kept[i] = False
                break
    return kept
