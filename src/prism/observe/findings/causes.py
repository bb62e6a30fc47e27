"""Who is late: every rank, host and stage is scored by how well the job with it late reproduces the calls.

Under a cause the calls of its members are late by one amount in a step, and all others are not. Residuals scatter
about that with a Laplace distribution, whose scale the job itself shows. What a cause gains is how much likelier it
makes the residuals than no cause; a step must gain more than a cause costs. The best cause wins, and how far it is
ahead of the best one elsewhere is its margin. Where another one is the best in each step, the load is uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints, culprit
from prism.observe.findings.cost import Cost, price_slow_work, settle
from prism.observe.findings.residuals import Mask, Residuals, list_residuals, number_hosts
from prism.observe.findings.windows import Window, quantile_rows, spread_of
from prism.observe.findings.work_table import tabulate_work
from prism.records.findings import Culprit, Finding, FindingKind

_PER_STEP = levels.SIGMAS_UNLIKELY  # nats that a step with a cause must gain: from when to when it lasts is chosen too
_AS_LATE = levels.SHARE_MINOR  # of what the latest rank of a host gains: the others are late with it
_TIED = 0.9  # of what the best gains: one that gains as much is not told apart
_AHEAD = levels.SHARE_HALF  # margin that a cause must have
_LATE = levels.ONE_PERCENT  # of a step, or of the work: what is less is nobody's trouble
_ALWAYS_LATE = levels.SHARE_SMALL  # the same where it always was so: ranks differ by design and by chance
_BETWEEN = 0.2  # of how late the last one is: others that are so late have uneven work, too


Candidate = tuple[frozenset[int], int | None]
"""Endpoints, and the stage that they are the whole of."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Members that are late from one step to another, by a share of a step or of their work, and what that gains."""

    members: frozenset[int]
    window: Window
    gain: float
    of_host: float  # what of it the waits for its host gain: the hop that comes last has two ends, which both gain it
    late_s: float
    stage: int | None = None

    def lead(self, rival: Cause | None) -> float:
        """How far it is ahead of a rival, as a share of what the two do not gain alike."""
        if rival is None or rival.gain <= 0:
            return 1.0
        return (self.gain - rival.gain) / max(self.gain - min(self.of_host, rival.of_host), 1e-9)


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate by step: what it gains, how late it is in seconds, and as a share of a step or of work."""

    members: frozenset[int]
    gain: Floats
    of_host: Floats
    late_s: Floats
    share: Floats
    stage: int | None = None

    def settle(self, window: Window) -> Cause:
        """The candidate over a stretch of steps."""
        inside = slice(window.first, window.last + 1)
        gain, of_host = float(self.gain[inside].sum()), float(self.of_host[inside].sum())
        late_s, share = float(np.median(self.late_s[inside])), float(np.median(self.share[inside]))
        return Cause(self.members, replace(window, mean=share), gain, of_host, late_s, self.stage)

    def find_window(self) -> Window:
        """The stretch of steps in which it gains most."""
        total = np.concatenate([[0.0], np.cumsum(self.gain)])
        last = int(np.argmax(total[1:] - np.minimum.accumulate(total)[:-1]))
        first = int(np.argmin(total[: last + 1]))
        return Window(first, last, 0.0, float((self.gain[first : last + 1] > 0).mean()))


def find_late(case: Case) -> list[Finding]:
    """The rank, host or stage that is late, two that cannot be told apart, or the job where it is another each time."""
    if case.steps.height < levels.MIN_SAMPLES or case.messages.is_empty():
        return []
    host = number_hosts(case)
    tables = list(list_residuals(case, host))
    if not tables:
        return []
    longer = _find_longer(case)
    candidates = _list_candidates(case)
    uneven: list[Finding] = []
    if longer is not None:
        began = [_score(case, c, [t.since() for t in tables], host, longer) for c in candidates]
        found = _choose(case, began, None, longer)
        if found:
            return found
        # Where whole stages are late alike, their parts are: another one in each step.
        uneven = [f for f in _find_turns(case, began, longer) if f.kind == "load_imbalance"]
    always = [_score(case, c, [t for t in tables if not t.of_past], host, None) for c in candidates]
    return _choose(case, always, Window(0, case.steps.height - 1, 0.0, 1.0), None) or uneven


def _find_longer(case: Case) -> Floats | None:
    """What slow steps are longer by, 0 for the others; None where none is, or nearly all are."""
    usual = float(np.quantile(case.length_s, levels.SHARE_MINOR, method="lower"))
    noise = spread_of(case.length_s[case.length_s <= np.median(case.length_s)])
    longer = case.length_s - usual
    longer = np.where(longer > max(levels.SHARE_NEGLIGIBLE * usual, levels.SIGMAS_UNLIKELY * noise), longer, 0.0)
    return longer if 1 < (longer > 0).sum() <= _TIED * len(longer) else None


def _choose(case: Case, scored: list[Scored], window: Window | None, longer: Floats | None) -> list[Finding]:
    """The best of the candidates, judged against the others in its own window."""
    first = max(scored, key=lambda s: (s.settle(window or s.find_window()).gain, -len(s.members)))
    best = first.settle(window or first.find_window())
    if longer is not None:
        uneven = _find_uneven(_list_hosts(case, scored))
        if uneven is not None and best.gain < _TIED * uneven.gain and _explains(uneven, longer):
            return _find_turns(case, scored, longer)
        if not _explains(best, longer):
            return []
    causes = sorted((s.settle(best.window) for s in scored), key=lambda c: -c.gain)
    rivals = [c for c in causes if not c.members & best.members and _apart(case, c, best)]
    rival = rivals[0] if rivals else None
    # A few steps may be long for a reason of their own, such as the start of a program.
    if best.gain <= 0 or best.window.length < levels.MIN_SAMPLES:
        return []
    if best.window.mean < (_ALWAYS_LATE if longer is None else _LATE):
        return []
    margin = best.lead(rival)
    if rival is not None and best.gain - rival.gain < _PER_STEP * best.window.length:
        others = [c for c in rivals if _apart(case, c, rival)]
        return _tell_two(case, best, rival, best.lead(others[0] if others else None))
    return [_tell(case, best, causes, margin)] if margin >= _AHEAD else []


def _find_turns(case: Case, scored: list[Scored], longer: Floats) -> list[Finding]:
    """The job, where another host is late each time and that explains its slow steps."""
    hosts = _list_hosts(case, scored)
    uneven = _find_uneven(hosts)
    return _tell_uneven(case, uneven, hosts) if uneven is not None and _explains(uneven, longer) else []


def _list_hosts(case: Case, scored: list[Scored]) -> list[Scored]:
    return [s for s in scored if s.members in {frozenset(own) for own in case.own_by_host.values()}]


def _explains(cause: Cause, longer: Floats) -> bool:
    """Whether the slow steps of a cause's window are most of all slow steps."""
    inside = longer[cause.window.first : cause.window.last + 1]
    return cause.gain > 0 and bool(inside.sum() >= levels.SHARE_HALF * longer.sum())


def _list_candidates(case: Case) -> list[Candidate]:
    """Every rank, every host with several, and every stage of several."""
    ranks = [frozenset([int(e)]) for e in case.job.endpoints]
    hosts = [frozenset(own) for own in case.own_by_host.values() if len(own) > 1]
    stages: dict[int, set[int]] = {}
    for endpoint, stage in case.stages.stage.items():
        stages.setdefault(stage, set()).add(endpoint)
    whole = [(frozenset(own), s) for s, own in stages.items() if len(stages) > 1 and len(_hosts(case, own)) > 1]
    return [*((members, None) for members in (*ranks, *hosts)), *whole]


def _hosts(case: Case, members: Sequence[int] | set[int] | frozenset[int]) -> set[str]:
    return {case.hosts[e] for e in members}


def _apart(case: Case, one: Cause, other: Cause) -> bool:
    return not _hosts(case, one.members) & _hosts(case, other.members)


def _score(case: Case, candidate: Candidate, tables: list[Residuals], host: Ints, longer: Floats | None) -> Scored:
    """What a candidate gains in each step over all residuals; with `longer`, in slow steps alone."""
    members, stage = candidate
    mask = np.zeros(len(host), np.bool_)
    mask[list(members)] = True
    hosts = np.zeros(int(host.max()) + 1, np.bool_)
    hosts[host[mask]] = len(_hosts(case, members)) == 1
    step_s = float(np.median(case.length_s))
    gain, of_host, late_s, share = (np.zeros(case.steps.height) for _ in range(4))
    slow = np.ones(case.steps.height, np.bool_) if longer is None else longer > 0
    for table in tables:
        touched = hosts if table.of_hosts else mask
        sends, takes = touched[table.sender], touched[table.receiver] & (table.receiver >= 0)
        # A hop begins with its sender, or once both ends are ready. What always was so does not tell which.
        rows = [sends != takes] if longer is None else [sends != takes, sends & ~takes]
        own, late = max((_gain(table, r) for r in rows), key=lambda option: float(option[0].sum()))
        gain += own
        of_host = own if table.of_hosts else of_host
        if float((own - _PER_STEP)[slow].sum()) > 0:  # What gains less shows no amount.
            share = np.maximum(share, late if table.per_work else late / step_s)
            late_s = late_s if table.per_work else np.maximum(late_s, late)
    late_s = late_s if longer is None else np.minimum(late_s, longer)
    return Scored(members, np.where(slow, gain, 0.0) - _PER_STEP, of_host, late_s, share, stage)


def _gain(table: Residuals, rows: Mask) -> tuple[Floats, Floats]:
    """By step how much likelier rows are if all are late by one amount than if none is, and that amount."""
    values = table.late_s[rows]
    if not len(values):
        none = np.zeros(table.late_s.shape[1])
        return none, none
    late = np.nan_to_num(np.maximum(quantile_rows(values, levels.SHARE_HALF, axis=0), 0.0))
    return np.nansum(np.abs(values) - np.abs(values - late), axis=0) / table.scale_s, late


def _find_uneven(hosts: list[Scored]) -> Cause | None:
    """In each step the host that gains most; which of them it is costs its choice."""
    if len(hosts) < levels.MIN_TWO:
        return None
    gains = np.stack([s.gain for s in hosts])
    top, at = gains.argmax(axis=0), np.arange(gains.shape[1])
    late_s, share = (np.stack([getattr(s, name) for s in hosts])[top, at] for name in ("late_s", "share"))
    every = frozenset(e for s in hosts for e in s.members)
    turns = Scored(every, gains[top, at] - float(np.log(len(hosts))), np.zeros(len(at)), late_s, share)
    return turns.settle(turns.find_window())


def _price(case: Case, cause: Cause) -> Cost:
    """What a cause costs: the job solved again where it has stages, else how late the others wait for it."""
    if len(set(case.stages.stage.values())) > 1:
        table = tabulate_work(case)
        return price_slow_work(case, table, sorted(cause.members), cause.window, by_design=False)
    late = min(cause.late_s / float(np.median(case.length_s)), levels.SHARE_HALF)
    return settle(case, replace(cause.window, mean=late / (1 - late)), None)


def _tell(case: Case, cause: Cause, causes: list[Cause], margin: float) -> Finding:
    cost = _price(case, cause)
    first, last = cause.window.first, cause.window.last
    steps = f"in {cause.window.length} of {case.steps.height} steps"
    sure = f"{100 * margin:.0f} % of what it explains nobody else does"
    if cause.stage is not None:
        evidence = f"stage {cause.stage} works {100 * cause.window.mean:.1f} % longer {steps}; {sure}; {cost.words}"
        return case.finding("stage_imbalance", culprit("stage", str(cause.stage)), first, last, lost_s=cost.lost_s,
                            score=margin, evidence=evidence)  # fmt: skip
    evidence = f"{_say_late(case, cause)} {steps}, and all others wait for it; {sure}; {cost.words}"
    who = case.name_worker(_with_mates(case, cause, causes))
    return case.finding("slow_compute", who, first, last, lost_s=cost.lost_s, score=margin, evidence=evidence)


def _say_late(case: Case, cause: Cause) -> str:
    if cause.late_s <= 0:
        return f"works {100 * cause.window.mean:.1f} % longer than usual"
    return f"comes {1000 * cause.late_s:.1f} ms late to the calls of a step"


def _with_mates(case: Case, cause: Cause, causes: list[Cause]) -> list[int]:
    """The ranks of a cause's host that are late at all."""
    own = case.own_by_host[case.hosts[next(iter(cause.members))]]
    gains = {next(iter(c.members)): c.gain for c in causes if len(c.members) == 1 and c.members <= own}
    most = max(gains.values())
    late = sorted(e for e, gain in gains.items() if gain >= _AS_LATE * most)
    return late if most > 0 else sorted(cause.members)


def _tell_two(case: Case, one: Cause, other: Cause, margin: float) -> list[Finding]:
    """Two hosts that gain as much, of which one is late."""
    names = sorted(_hosts(case, one.members | other.members))
    if margin < _AHEAD or case.stages.chains or len(names) > 2 or len(case.own_by_host) < levels.MIN_SAMPLES:
        return []
    cost = _price(case, one)
    members = [e for name in names for e in sorted(case.own_by_host[name])]
    evidence = (
        f"all others wait for {' or '.join(names)}, {1000 * one.late_s:.1f} ms of a step in all its calls; the hop "
        f"between the two comes last, and records do not show which of them is late; {cost.words}"
    )
    who = culprit("group", ",".join(case.address(e) for e in members))
    window = one.window
    return [case.finding("slow_compute", who, window.first, window.last, lost_s=cost.lost_s, score=margin,
                         evidence=evidence)]  # fmt: skip


def _tell_uneven(case: Case, uneven: Cause, hosts: list[Scored]) -> list[Finding]:
    """The job, where another host is the last one in each step of a part of the observation."""
    window = uneven.window
    inside = slice(window.first, window.last + 1)
    if window.mean < _LATE or window.length < levels.MIN_SAMPLES:
        return []
    late = np.sort(np.stack([s.share[inside] for s in hosts]), axis=0)
    last = len(np.unique(np.stack([s.gain[inside] for s in hosts]).argmax(axis=0)))
    # The hop that comes last has two ends, so it is the third that shows whether others are late on their own account.
    between = bool(np.median(late[-min(levels.MIN_SAMPLES, len(late))] / np.maximum(late[-1], 1e-12)) > _BETWEEN)
    kind: FindingKind = "load_imbalance" if between else "slow_step"
    cost = settle(case, window, None)
    what = "others come between" if between else "all others come as ever"
    evidence = f"the last to come changes: {last} different hosts in {window.length} steps; {what}; {cost.words}"
    who: Culprit = culprit("job", case.job.id)
    margin = 1 - max(float(np.max([s.settle(window).gain for s in hosts])), 0.0) / uneven.gain
    return [case.finding(kind, who, window.first, window.last, lost_s=cost.lost_s, score=0.5 + margin / 2,
                         evidence=evidence)]  # fmt: skip
