"""Silences: a job that stops in the middle of a step, which rank stopped first, and whether the job resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.standstill import Standstill, find_stalled, find_standstill
from prism.observe.findings.stopped import FirstToStop, name_first_to_stop, name_silent_host
from prism.observe.findings.verdicts import name_seconds
from prism.observe.steps.life import LifeConfig, StepTemplate, breaks_off, counts_bytes, rests_whole
from prism.records.findings import Finding, FindingKind

_LIFE = LifeConfig()
_ONE_MOMENT = levels.ONE_PER_MILLE  # of a step
_ALIKE = levels.ONE_PER_MILLE  # by which sizes differ that buffers set
_EITHER = levels.SHARE_LARGE  # confidence that one of two neighbours stopped
_MOST_CELLS = levels.SAMPLED_GROUPS  # for each message, of a grid that shows silences
_STALLED = 0.05  # share of the endpoints that have sent one when a job stands still


@dataclass(frozen=True, slots=True)
class Silence:
    """No message of the job from `start_ns` to `end_ns`; `last` is the last whole step before it."""

    start_ns: int
    end_ns: int
    last: int
    ends: bool  # whether messages follow


def find_hang(case: Case) -> list[Finding]:
    """Silences that began in the middle of a step, with the rank that stopped first where it is known."""
    if case.job.period_ns is None or case.messages.is_empty() or case.steps.height < 3:
        return []
    found = []
    for silence in _find_silences(case):
        finding = _explain(case, silence)
        if finding is not None:
            found.append(finding)
    return found + _tell_unbegun(case)


def _tell_unbegun(case: Case) -> list[Finding]:
    """Two neighbours, one of which sent nothing when others began a step."""
    begun = case.beginning
    if begun is None or not begun.suspects:
        return []
    ends = [culprit("endpoint", ",".join(case.address(e) for e in sorted(_list_own(case, h)))) for h in begun.suspects]
    named = " and ".join(end.id for end in ends)
    evidence = (
        f"{begun.began} of {begun.hosts} hosts began a step, and others wait for {named}; records do not show which of "
        "the two stopped"
    )
    last = case.steps.height - 1
    lost = max((case.observed_until_ns - begun.start_ns) / 1e9, float(np.median(case.length_s)))
    finding = case.finding("hang", culprit("group", ",".join(end.id for end in ends)), last, last, lost_s=lost,
                           score=_EITHER, evidence=evidence)  # fmt: skip
    return [replace(finding, start_ns=begun.start_ns, end_ns=case.observed_until_ns)]


def _list_own(case: Case, host: int) -> list[int]:
    own = case.endpoints["host_id"].to_numpy()
    return [int(e) for e in case.job.endpoints if own[e] == host]


def _find_silences(case: Case) -> list[Silence]:
    usual = float(np.median((case.steps["end_ns"] - case.steps["start_ns"]).to_numpy()))
    if usual <= 0:
        return []
    start, over = (case.messages[c].to_numpy() for c in ("start_ns", "end_ns"))
    found = _list_pauses(case, usual) if _may_be_silent(start, over, usual) else []
    last, until = int(over.max()), case.observed_until_ns
    if until - last >= _LIFE.silent_steps * usual or _is_cut_short(case, last, until, usual):
        found.append((last, until, False))
    template = case.template if found else None
    if template is None:
        return []
    starts = case.steps["start_ns"].to_numpy()
    out = []
    for begin, end, followed in found:
        whole = rests_whole(template, begin, config=_LIFE)
        if whole and not (followed and breaks_off(template, begin)) and not _is_cut_short(case, begin, end, usual):
            continue
        before = int(np.searchsorted(starts, begin, side="right")) - 1
        while before > 0 and not _is_whole(template, before, begin):
            before -= 1
        if before >= 0:
            out.append(Silence(begin, end, before, followed))
    return out


def _list_pauses(case: Case, usual: float) -> list[tuple[int, int, bool]]:
    """Silences that are longer than a usual step and than those that recur (evaluation, checkpoints)."""
    start, reach = (case.messages[c].to_numpy()[case.by_start] for c in ("start_ns", "end_ns"))
    reach = np.maximum.accumulate(reach)
    gaps = start[1:] - reach[:-1]
    often = float(np.quantile(gaps, max(0.0, 1 - 2.5 / len(gaps)))) if len(gaps) else 0.0
    long = np.flatnonzero(gaps > max(usual, 1.5 * min(often, 20 * usual)))
    return [(int(reach[i]), int(start[i + 1]), True) for i in long]


@kernel
def _may_be_silent(start: NDArray[np.int64], end: NDArray[np.int64], length: float) -> bool:
    """Whether a silence may be longer than a length: it then has a whole cell of a grid that is a third as wide.

    This takes far less time than to put messages in order, and most jobs are never silent. A job with far more cells
    than messages is looked at without a grid, which could be larger than memory.
    """
    first, width = start.min(), max(length / 3.0, 1.0)
    cells = int((end.max() - first) / width) + 1
    if cells > _MOST_CELLS * (len(start) + 100):
        return True
    begun = np.zeros(cells + 1, np.int64)  # messages that begin in a cell, less those over
    for i in range(len(start)):
        begun[int((start[i] - first) / width)] += 1
        begun[int((end[i] - first) / width) + 1] -= 1
    under_way = 0
    for one in begun[:-1]:
        under_way += one
        if under_way == 0:
            return True
    return False


def _is_cut_short(case: Case, begin_ns: int, end_ns: int, usual: float) -> bool:
    """Whether the last messages of many endpoints before a silence are transfers that made no progress.

    The endpoint that stopped begins none, so one of two is as many as there can be.
    """
    cut = find_stalled(case, begin_ns - round(usual), begin_ns)
    num = len(case.job.endpoints)
    enough = max(min(2, num - 1), _STALLED * num)
    if cut["src"].n_unique() < enough:
        return False
    # A capture that ends cuts what is under way, whatever was sent of it: a record that ends within the time of a
    # transfer before may be such a one, and so may one that waits no longer than transfers were held up before. A
    # transfer that gets nowhere stops earlier, or where the buffers of its transport are full, at one size, which is
    # a stop in a job that seldom waits; two or three may be of one size by chance.
    alike = cut.height >= levels.MIN_COMPARED and cut["bytes"].max() <= (1 + _ALIKE) * cut["bytes"].min()  # type: ignore[operator]
    held_up_ns = _measure_hold_up(case, begin_ns - round(usual))
    if not (alike and held_up_ns <= levels.SHARE_NEGLIGIBLE * usual):
        own = case.streams.filter(pl.col("role") != "rare").with_columns(pl.col("duration_ns").max().over("kind"))
        own = own.group_by("src", "dst").agg(pl.col("duration_ns").max())
        cut = cut.join(own, on=["src", "dst"], how="left")
        margin = pl.max_horizontal(pl.col("duration_ns").fill_null(0.0), pl.lit(max(_ONE_MOMENT * usual, held_up_ns)))
        cut = cut.filter(pl.col("end_ns") + margin < end_ns)
    return cut["src"].n_unique() >= enough


def _measure_hold_up(case: Case, until_ns: int) -> float:
    """The longest time beyond what is usual for its stream that a transfer of a step took before a moment."""
    known = case.messages.filter((pl.col("role") != "rare") & (pl.col("step") >= 0) & (pl.col("end_ns") < until_ns))
    took = pl.col("end_ns") - pl.col("start_ns")
    longest = known.group_by("stream").agg((took.max() - took.median()).alias("more"))["more"].max()
    return float(longest or 0.0)  # type: ignore[arg-type]


def _is_whole(template: StepTemplate, step: int, until_ns: int) -> bool:
    """Whether a step sent all its messages before a moment."""
    sent = template.count_since(int(template.begin[step]), min(until_ns, int(template.until[step])))
    return float(sent.sum()) >= float(template.usual.sum()) - template.slack


def _explain(case: Case, silence: Silence) -> Finding | None:
    stands = find_standstill(case, silence.last, silence.start_ns)
    if stands is None:
        return None
    usual = float(np.median(case.length_s))
    length = (silence.end_ns - silence.start_ns) / 1e9
    first = _name_first(case, silence, stands)
    if first is None:
        return None
    if silence.ends and not first.others_went_on and _is_resumed(case, silence):
        return None  # who held it up is not seen: a stall of the job
    stopped, why = first.culprit, first.why
    if stopped.type == "job" and not silence.ends and (length < usual or stands.stuck.is_empty()):
        # A capture that ends cuts the transfers of all ranks at once. A job that is killed leaves none that got stuck:
        # its state says that it stopped, and no rank waited for another.
        return None
    back = f"; it came back after {length:.1f} s" if silence.ends else ""
    evidence = f"no traffic for {length:.1f} s, {length / usual:.1f} usual steps, in the middle of a step; {why}{back}"
    if silence.ends and stopped.type == "endpoint":  # the job was restarted, and hosts are what is replaced
        stopped = culprit("host", next(h for h in case.own_by_host if _has(case, h, stopped.id)))
    kind: FindingKind = "restart" if silence.ends and stopped.type == "job" else "hang"
    finding = case.finding(
        kind, stopped, silence.last, silence.last, lost_s=length if silence.ends else max(length, usual),
        score=first.score,
        evidence=evidence,
    )  # fmt: skip
    finding = name_seconds(finding, first.seconds, finding.score)
    return replace(finding, start_ns=silence.start_ns, end_ns=silence.end_ns)


def _name_first(case: Case, silence: Silence, stands: Standstill) -> FirstToStop | None:
    """What stopped first; None where only what was sent in all is known, and that does not show it."""
    if case.template is None or not counts_bytes(case.template):
        return name_first_to_stop(case, stands)
    start, last = case.messages["start_ns"].to_numpy(), case.steps.row(silence.last, named=True)
    begun = start[start >= last["end_ns"]]
    return name_silent_host(case, last["start_ns"], int(begun.min())) if len(begun) else None


def _is_resumed(case: Case, silence: Silence) -> bool:
    """Whether the step that a silence broke off was finished after it: nothing was started again."""
    starts, ends = case.steps["start_ns"].to_numpy(), case.steps["end_ns"].to_numpy()
    at = int(np.searchsorted(starts, silence.start_ns, side="right")) - 1
    if at < 0 or ends[at] < silence.end_ns:
        return False
    step = case.messages["step"].to_numpy()
    counts = np.bincount(step[step >= 0], minlength=case.steps.height)
    return bool(abs(counts[at] / np.median(counts) - 1) <= _LIFE.missing)


def _has(case: Case, host: str, addresses: str) -> bool:
    return addresses.split(",")[0] in {case.address(e) for e in case.own_by_host[host]}
