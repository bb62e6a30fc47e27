"""Stalls: silences of a whole job that are longer than its own habit, such as a data loader that stands.

No rank is seen to wait for another, so nobody is named. How sure it is grows with the length of the silence: pauses of
a job (evaluations, checkpoints) have long tails, so one that is n times as long as all others is a habit in one of n^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prism.observe.findings.case import Case, Floats, Ints, culprit
from prism.records.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class StallConfig:
    """When a silence is no habit."""

    steps: float = 2.0  # usual steps that it must last
    tail: float = 2.0  # how fast long pauses get rarer: twice as long, four times as rare
    least_sure: float = 0.7
    saving: float = 0.5  # of a silence: in one with more storage traffic the job saves
    first: int = 3  # steps that must be over: programs start slowly
    may_be_over: float = 0.5  # confidence at most, where nobody knows whether the job has ended


def find_stalls(
    case: Case, stops: Sequence[Finding], config: StallConfig | None = None, *, runs: bool | None = None
) -> list[Finding]:
    """Silences of a job; `stops` are told already.

    One that lasts when the observation ends counts if the job still `runs`; None: it may have ended, and that is said.
    """
    config = config or StallConfig()
    if case.steps.height <= config.first or case.messages.is_empty():
        return []
    begin, end = _list_silences(case)
    last = int(case.messages["end_ns"].max())  # type: ignore[arg-type]
    open_end = runs is not False and case.observed_until_ns > last
    if open_end:
        begin, end = np.append(begin, last), np.append(end, case.observed_until_ns)
    usual = float(np.median(case.steps["end_ns"].to_numpy() - case.steps["start_ns"].to_numpy()))
    length = (end - begin).astype(np.float64)
    after = int(case.steps["start_ns"][config.first])
    found = []
    for at in np.flatnonzero((length >= config.steps * usual) & (begin >= after)).tolist():
        habit = max(usual, float(np.delete(length, at).max(initial=0.0)))
        sure = 1 - (habit / length[at]) ** config.tail
        told = any(min(s.end_ns, end[at]) > max(s.start_ns, begin[at]) for s in stops)
        if sure < config.least_sure or told or _is_saving(case, int(begin[at]), int(end[at]), config):
            continue
        told_now = _tell(case, int(begin[at]), int(end[at]), habit, _measure_rest(case, begin, length), sure)
        if open_end and at == len(begin) - 1:
            told_now = _tell_open(told_now, runs, config)
        found.append(told_now)
    return found


def _tell_open(stall: Finding, runs: bool | None, config: StallConfig) -> Finding:
    if runs:
        return replace(stall, evidence=f"{stall.evidence}; by its scheduler it still runs")
    evidence = f"{stall.evidence}; or it has ended: records do not show which, and with --jobs its scheduler does"
    return replace(stall, evidence=evidence, score=min(stall.score, config.may_be_over))


def _list_silences(case: Case) -> tuple[Ints, Ints]:
    """When silences of the whole job begin and end."""
    start, over = (case.messages[c].to_numpy()[case.by_start] for c in ("start_ns", "end_ns"))
    reach = np.maximum.accumulate(over)[:-1]
    silent = np.flatnonzero(start[1:] > reach)
    return reach[silent], start[1:][silent]


def _measure_rest(case: Case, begin: Ints, length: Floats) -> float:
    """Nanoseconds of the longest silence of a usual step: all ranks compute."""
    step = np.searchsorted(case.steps["start_ns"].to_numpy(), begin, side="right") - 1
    longest = np.zeros(case.steps.height)
    np.maximum.at(longest, np.maximum(step, 0), length)
    return float(np.median(longest))


def _is_saving(case: Case, begin_ns: int, end_ns: int, config: StallConfig) -> bool:
    """Whether the job writes to storage for most of a silence."""
    if case.saves is None or not case.saves.height:
        return False
    start, end = (case.saves[c].to_numpy() for c in ("start_ns", "end_ns"))
    inside: Floats = np.minimum(end, end_ns) - np.maximum(start, begin_ns)
    return bool(inside.max(initial=0) > config.saving * (end_ns - begin_ns))


def _tell(case: Case, begin_ns: int, end_ns: int, habit_ns: float, rest_ns: float, sure: float) -> Finding:
    length_s = (end_ns - begin_ns) / 1e9
    step = int(np.searchsorted(case.steps["start_ns"].to_numpy(), begin_ns, side="right")) - 1
    step = min(max(step, 0), case.steps.height - 1)
    lost_s = max(length_s - rest_ns / 1e9, 0.0)
    hours = lost_s * case.gpus / 3600
    evidence = (
        f"no traffic of any rank for {length_s:.1f} s, {1e9 * length_s / habit_ns:.1f} times as long "
        f"as any other pause of this job; {hours:.1f} GPU-hours; all ranks waited, so that records name nobody: look "
        "at its data loader, its checkpoints and its storage"
    )
    told = case.finding("stall", culprit("job", case.job.id), step, step, lost_s=lost_s, score=sure,
                        evidence=evidence)  # fmt: skip
    return replace(told, start_ns=begin_ns, end_ns=end_ns)
