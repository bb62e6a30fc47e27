"""Who computes late: a rank against its replicas, a stage against the others, or whoever has the most work today."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.findings.case import Case, culprit
from prism.observe.findings.windows import Floats, find_window, spread_of
from prism.records.findings import Finding

_SLOWER = 0.05  # a rank this much slower than its replicas is worth a word
_UNEVEN = 0.12  # a stage this much heavier than the others
_SURE = 5.0  # standard errors
_SCATTER = 0.10  # spread of work between replicas that is more than noise


Table = dict[str, tuple[list[int], Floats]]
"""For each phase: the endpoints, and their work by step in seconds (nan where not seen)."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An endpoint that works longer than its like in the steps `first` to `last`."""

    endpoint: int
    first: int
    last: int
    mean: float
    sure: float


def find_compute(case: Case) -> list[Finding]:
    """Slow ranks, heavy stages and uneven load of a pipelined job."""
    if case.work.is_empty() or case.steps.height < 3:
        return []
    table = _tabulate(case)
    uneven = _find_load_imbalance(case, table)
    slow = [] if uneven else _find_slow_ranks(case, table)
    return slow + uneven + _find_heavy_stages(case, {e for f in slow for e in f.culprit.id.split(",")})


def _tabulate(case: Case) -> Table:
    tables = {}
    for (phase,), part in case.work.group_by("phase", maintain_order=True):
        members = sorted(part["endpoint"].unique().to_list())
        row = {e: i for i, e in enumerate(members)}
        values = np.full((len(members), case.steps.height), np.nan)
        rows = np.array([row[e] for e in part["endpoint"].to_list()])
        values[rows, part["step"].to_numpy()] = part["work_ns"].to_numpy() / 1e9
        tables[str(phase)] = (members, values)
    return tables


def _excess(case: Case, members: list[int], values: Floats) -> Floats:
    """How much longer each rank works than its replicas do in the same step, as a share; nan where it has none."""
    stage = np.array([case.stages.stage[e] for e in members])
    out = np.full_like(values, np.nan)
    for s in np.unique(stage):
        rows = np.nonzero(stage == s)[0]
        if len(rows) < 2:
            continue
        block = values[rows]
        known = ~np.isnan(block).all(axis=0)
        # Of two replicas the quicker is normal; of more, the middle one.
        usual = np.full(block.shape[1], np.nan)
        usual[known] = np.nanmin(block[:, known], axis=0) if len(rows) <= 3 else np.nanmedian(block[:, known], axis=0)
        out[rows] = block / usual - 1
    return out


def _find_slow_ranks(case: Case, table: Table) -> list[Finding]:
    per_rank: dict[int, list[Floats]] = {}
    noise = []
    for members, values in table.values():
        excess = _excess(case, members, values)
        noise.append(spread_of(excess))
        for e, row in zip(members, excess, strict=True):
            if not np.isnan(row).all():
                per_rank.setdefault(e, []).append(row)
    if not per_rank:
        return _find_change(case, table)
    usual_noise = max(float(np.median(noise)), 0.002)
    suspects: list[Suspect] = []
    for e, rows in per_rank.items():
        mean = _nanmean(np.array(rows))
        window = find_window(mean, _SLOWER)
        if window is None:
            continue
        length = window.last - window.first + 1
        sure = window.mean * np.sqrt(length) / usual_noise
        if length >= 2 and window.share >= 0.8 and window.mean >= _SLOWER + usual_noise and sure >= _SURE:
            suspects.append(Suspect(e, window.first, window.last, window.mean, float(sure)))
    return [_slow_finding(case, table, group) for group in _same_worker(case, _first_causes(case, suspects))]


def _first_causes(case: Case, suspects: list[Suspect]) -> list[Suspect]:
    """Of suspects in one pipeline at one time the worst: a slow rank keeps its neighbours' messages waiting too."""
    chain = {e: i for i, members in enumerate(case.stages.chains) for e in members}
    kept: list[Suspect] = []
    for suspect in sorted(suspects, key=lambda s: -s.mean * (s.last - s.first + 1)):
        same = [k for k in kept if chain.get(k.endpoint) == chain.get(suspect.endpoint)]
        if not any(min(k.last, suspect.last) >= max(k.first, suspect.first) for k in same):
            kept.append(suspect)
    return kept


def _same_worker(case: Case, suspects: list[Suspect]) -> list[list[Suspect]]:
    """Suspects of one host and overlapping windows are one worker: tensor-parallel ranks wait for each other."""
    groups: list[list[Suspect]] = []
    for suspect in sorted(suspects, key=lambda s: -s.mean):
        for group in groups:
            head = group[0]
            overlap = min(head.last, suspect.last) - max(head.first, suspect.first) + 1
            if case.host(head.endpoint) == case.host(suspect.endpoint) and overlap > 0.5 * (head.last - head.first + 1):
                group.append(suspect)
                break
        else:
            groups.append([suspect])
    return groups


def _slow_finding(case: Case, table: Table, group: list[Suspect]) -> Finding:
    head = group[0]
    stage = case.stages.stage[head.endpoint]
    seen = slice(head.first, head.last + 1)
    worst = max(
        (float(np.nanmedian(values[members.index(head.endpoint), seen])), phase)
        for phase, (members, values) in table.items()
        if head.endpoint in members and not np.isnan(values[members.index(head.endpoint), seen]).all()
    )
    evidence = (
        f"works {100 * head.mean:.1f} % longer than its replicas of stage {stage} in {head.last - head.first + 1} of "
        f"{case.steps.height} steps ({worst[1]} of a micro-batch: {1000 * worst[0]:.2f} ms)"
    )
    return case.finding(
        "slow_compute",
        case.name_worker([s.endpoint for s in group]),
        head.first,
        head.last,
        lost_s=_lost(case, head.first, head.last, head.mean),
        score=1 - np.exp(-head.sure / 10),
        evidence=evidence,
    )


def _lost(case: Case, first: int, last: int, mean: float) -> float:
    """Seconds each GPU lost: against the steps outside the window, or, where there are none, by the slower work."""
    inside = case.length_s[first : last + 1]
    outside = np.concatenate([case.length_s[:first], case.length_s[last + 1 :]])
    if len(outside) >= 3:
        return float((inside - np.median(outside)).clip(0).sum())
    return float(inside.sum() * mean / (1 + mean))


def _find_change(case: Case, table: Table) -> list[Finding]:
    """A single pipeline has no replicas: a rank is compared with its own quickest steps."""
    best: tuple[float, int, int, int, float] | None = None
    for members, values in table.values():
        for e, row in zip(members, values, strict=True):
            known = row[~np.isnan(row)]
            if len(known) < 6:
                continue
            usual = float(np.quantile(known, 0.25))
            excess = row / usual - 1
            noise = max(spread_of(known[known <= np.median(known)]) / usual, 0.003)
            window = find_window(excess, _SLOWER + 3 * noise)
            length = 0 if window is None else window.last - window.first + 1
            if window is None or length < 2 or window.share < 0.8 or length > 0.8 * len(row):
                continue
            sure = window.mean * np.sqrt(length) / noise
            if sure >= _SURE and (best is None or sure > best[0]):
                best = (float(sure), e, window.first, window.last, window.mean)
    if best is None:
        return []
    sure, e, first, last, mean = best
    return [_slow_finding(case, table, [Suspect(e, first, last, mean, sure)])]


def _find_load_imbalance(case: Case, table: Table) -> list[Finding]:
    """Replicas differ a lot, and another one is the slowest in each step: the work is uneven, not the ranks."""
    for members, values in table.values():
        stage = np.array([case.stages.stage[e] for e in members])
        for s in np.unique(stage):
            block = _workers(case, [e for e, k in zip(members, stage, strict=True) if k == s], members, values)
            if block.shape[0] < 2:
                continue
            known = ~np.isnan(block).any(axis=0)
            if known.sum() < 5:
                continue
            block = block[:, known]
            usual = np.median(block, axis=0)
            scatter = (block.max(axis=0) - usual) / usual
            top = np.bincount(block.argmax(axis=0), minlength=block.shape[0]).max() / block.shape[1]
            # What stays with a rank is the rank's; what moves from step to step is the work's.
            moving = np.median(np.abs(np.diff(block / usual, axis=1)))
            lasting = np.ptp(np.median(block / usual, axis=1))
            if np.median(scatter) > _SCATTER and top < 0.7 and moving > 0.5 * lasting:
                steps = case.steps.height
                lost = float(np.median((block.max(axis=0) - usual) / block.max(axis=0)) * case.length_s.sum())
                evidence = (
                    f"the slowest of {block.shape[0]} replicas works {100 * np.median(scatter):.0f} % longer than the "
                    f"middle one, and it is a different one in most steps"
                )
                return [
                    case.finding("load_imbalance", culprit("job", case.job.id), 0, steps - 1, lost_s=lost,
                                 score=0.9, evidence=evidence)
                ]  # fmt: skip
    return []


def _workers(case: Case, chosen: list[int], members: list[int], values: Floats) -> Floats:
    """Work by worker: endpoints of one host that always take the same time count once."""
    rows: list[NDArray[np.float64]] = []
    seen: list[tuple[str, NDArray[np.float64]]] = []
    for e in chosen:
        row = values[members.index(e)]
        if any(h == case.host(e) and np.nanmedian(np.abs(row / r - 1)) < 0.01 for h, r in seen):
            continue
        seen.append((case.host(e), row))
        rows.append(row)
    return np.array(rows)


def _find_heavy_stages(case: Case, slow: set[str]) -> list[Finding]:
    """A stage whose ranks all work longer than those of the other stages."""
    work = case.work.group_by("stage", "phase").agg(pl.col("work_ns").median() / 1e9)
    by = {(s, p): w for s, p, w in work.iter_rows()}
    stages = sorted({s for s, _ in by})
    last = max(stages)
    if last < 2:
        return []
    between = [s for s in stages if 0 < s < last and (s, "forward") in by and (s, "backward") in by]
    whole = {s: by[s, "forward"] + by[s, "backward"] for s in between}
    if (last, "turn") in by:
        whole[last] = by[last, "turn"]
    if len(whole) < 2:
        return []
    found = []
    for s, seconds in whole.items():
        others = float(np.median([w for k, w in whole.items() if k != s]))
        more = seconds / others - 1
        # The last stage also computes the loss, so it may be a little heavier by design.
        if more > _UNEVEN and not _caused_by(case, s, slow):
            share = more / (1 + more)
            evidence = (
                f"stage {s} works {1000 * seconds:.1f} ms on a micro-batch, the other stages {1000 * others:.1f} ms "
                f"({100 * more:.0f} % more)"
            )
            found.append(
                case.finding("stage_imbalance", culprit("stage", str(s)), 0, case.steps.height - 1,
                             lost_s=float(case.length_s.sum() * share * 0.8), score=min(0.95, 0.5 + more),
                             evidence=evidence)
            )  # fmt: skip
    return found


def _caused_by(case: Case, stage: int, slow: set[str]) -> bool:
    names = {case.address(e) for e, s in case.stages.stage.items() if s == stage}
    hosts = {case.host(e) for e, s in case.stages.stage.items() if s == stage}
    return bool((names | hosts) & slow) and len(case.stages.chains) == 1


def _nanmean(rows: Floats) -> Floats:
    known = ~np.isnan(rows)
    count = known.sum(axis=0)
    total = np.where(known, rows, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
