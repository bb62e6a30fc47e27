"""Late ranks: every rank, host and stage is scored by how well the assumption that it is late predicts the calls.

Under a cause the calls of its members are late by one amount in a step, and all others are not. Residuals scatter
about that with a Laplace distribution, whose scale is estimated from the job. The gain of a cause is how much more
likely it makes the residuals than no cause; a step must gain more than a cause costs. The best cause wins; its lead
over the best one on another host is its margin. If a different one is the best in each step, the load is uneven.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, culprit, is_pipeline
from prism.observe.findings.cost import settle
from prism.observe.findings.residuals import list_residuals, number_hosts
from prism.observe.findings.scoring import PER_STEP, Candidate, Cause, Scores, score, sum_steps
from prism.observe.findings.telling import AHEAD, find_late_hop, hosts_of, tell_hop, tell_late, tell_two
from prism.observe.findings.verdicts import Proposal
from prism.observe.findings.waits import are_of_larger_group
from prism.observe.findings.windows import Window, spread_of
from prism.records.findings import Culprit, FindingKind

_TIED = 0.9  # of the best gain: one that gains this much is indistinguishable
_LATE = levels.ONE_PERCENT  # of a step, or of the work: smaller delays are ignored
_ALWAYS_LATE = levels.SHARE_SMALL  # the same for a lasting delay: ranks differ by design and by chance
_BETWEEN = 0.2  # of the delay of the last one: others this late have uneven work too


def find_late(case: Case) -> list[Proposal]:
    """The rank, host or stage that is late, two that are indistinguishable, or the job if it changes each time."""
    if case.steps.height < levels.MIN_SAMPLES or case.messages.is_empty():
        return []
    host = number_hosts(case)
    longer = _find_longer(case)
    tables = list(list_residuals(case, host, of_past=longer is not None))  # Else only similar members are compared.
    if not tables:
        return []
    candidates = _list_candidates(case)
    uneven: list[Proposal] = []
    if longer is not None:
        every = [*candidates, *_list_replicas(case)]
        scores = score(case, every, [t.since() for t in tables if not t.of_like], host, longer)
        began = scores.take(range(len(candidates)))
        replicas = scores.take(range(len(candidates), len(every)))
        found = _choose(case, began, None, longer, replicas)
        if found:
            return found
        # If whole stages seem late, it is their parts: a different one in each step.
        turns = _find_turns(case, _take_turns(case, began, replicas, longer), longer)
        uneven = [f for f in turns if f.finding.kind == "load_imbalance"]
    always = score(case, candidates, [t for t in tables if not t.of_past], host, None).take_middle_step()
    return _choose(case, always, Window(0, case.steps.height - 1), None) or uneven


def _find_longer(case: Case) -> Floats | None:
    """The excess length of slow steps, 0 for the others; None if none is slow, or nearly all are.

    Steps in which the job saves are longer by design: they are compared with those at the same place in a save. What
    made the step before a save longer lasts while it saves.
    """
    longer, steps = _exceed(case.length_s, levels.SHARE_MINOR), np.arange(len(case.length_s))
    before = np.maximum.accumulate(np.where(case.saving, -1, steps))
    place, lasting = steps - before, np.where(before >= 0, longer[before], 0.0)
    for at in np.unique(place[case.saving]):
        own = case.saving & (place == at)
        more = np.maximum(_exceed(case.length_s[own], levels.SHARE_HALF), lasting[own])
        longer[own] = np.minimum(longer[own], more)
    lead = int(np.argmin(longer > 0))
    if lead < levels.MIN_EVENTS:
        longer[:lead] = 0.0  # The first steps of a program compile, or fill caches.
    return longer if 1 < (longer > 0).sum() <= _TIED * len(longer) else None


def _exceed(length_s: Floats, quick: float) -> Floats:
    """The excess of steps over a quantile of their lengths, 0 where it is small or within the scatter."""
    usual = float(np.quantile(length_s, quick, method="lower"))
    noise = spread_of(length_s[length_s <= np.median(length_s)])
    longer = length_s - usual
    return np.where(longer > max(levels.SHARE_NEGLIGIBLE * usual, levels.SIGMAS_UNLIKELY * noise), longer, 0.0)


def _choose(
    case: Case, scores: Scores, window: Window | None, longer: Floats | None, replicas: Scores | None = None
) -> list[Proposal]:
    """The best of the candidates, judged against the others in its own window; `replicas` may have uneven load."""
    best = scores.find_best(
        window,
        _ALWAYS_LATE if longer is None else _LATE,
        lambda c: _is_awaited(scores, c) if longer is None else _explains(c, longer) and _is_steady(c),
    )
    if longer is not None:
        turns = _take_turns(case, scores, replicas, longer)
        uneven = _find_uneven(turns)
        if uneven is not None and _explains(uneven, longer) and not _is_ahead(case, scores, best, uneven, turns):
            return _find_turns(case, turns, longer)
    if best is None:
        return []
    causes = sorted((scores.settle(i, best.window) for i in range(len(scores.candidates))), key=lambda c: -c.gain)
    rivals = [c for c in causes if not c.members & best.members and _apart(case, c, best)]
    rivals = sorted((_leave_passed_on(case, c, best) for c in rivals), key=lambda c: -c.gain)
    rival = rivals[0] if rivals else None
    margin = min(best.lead(rival), _beat_chance(case, best, longer))
    is_either = rival is not None and rival.gain > 0 and _may_be_either(scores, best, rival, longer)
    if longer is not None and (is_either or not is_pipeline(case)) and _waits_hardly(best, longer):
        return []
    if rival is not None and is_either:
        hosts = hosts_of(case, best.members | rival.members)
        if longer is None and (is_pipeline(case) or not are_of_larger_group(case, hosts)):
            return []  # One of them is last by design.
        others = [c for c in rivals if _apart(case, c, rival)]
        return tell_two(case, best, rival, best.lead(others[0] if others else None))
    if margin < AHEAD:
        return []
    hop = find_late_hop(case, best) if case.meets else None
    return [tell_late(case, best, causes, rivals, margin) if hop is None else tell_hop(case, best, hop, margin)]


def _is_awaited(scores: Scores, cause: Cause) -> bool:
    """Whether others wait for a cause, if that is visible: start times differ by design, and clocks differ."""
    return cause.of_wait > 0 or not any(table.of_hosts for table in scores.tables)


def _is_steady(cause: Cause) -> bool:
    """Whether a stage is late in most steps of its window: extra work recurs in every step, uneven load does not."""
    return cause.stage is None or cause.window.share >= levels.SHARE_HALF


def _waits_hardly(cause: Cause, longer: Floats) -> bool:
    """Whether the wait for a cause is only a small part of the excess length of slow steps."""
    return cause.late_s < levels.SHARE_SMALL * float(np.median(longer[longer > 0]))


def _may_be_either(scores: Scores, best: Cause, rival: Cause, longer: Floats | None) -> bool:
    """Whether two gain alike, or most gain comes from the hops between them, which are late if either of the two is."""
    own, others_own = best.gain - best.of_wait, rival.gain - rival.of_wait
    apart = own - others_own if rival.of_wait >= _TIED * best.of_wait else best.gain - rival.gain
    close = apart < PER_STEP * best.window.length
    return close or (longer is not None and best.lead(rival) < AHEAD and scores.score_between(best, rival) > 0)


def _leave_passed_on(case: Case, rival: Cause, best: Cause) -> Cause:
    """A rival without its excess wait over the best one: a pipeline passes waits on, also to its replicas."""
    longer = max(rival.of_wait - best.of_wait, 0.0)
    if not case.stages.chains:
        return rival
    return replace(rival, gain=rival.gain - longer, of_wait=rival.of_wait - longer)


def _beat_chance(case: Case, cause: Cause, longer: Floats | None) -> float:
    """The probability that one host is late in all slow steps, rather than a different one each time by chance."""
    if longer is None:
        return 1.0
    slow = int((longer[cause.window.first : cause.window.last + 1] > 0).sum())
    return 1 / (1 + float(len(case.own_by_host)) ** (1 - slow))


def _find_turns(case: Case, turns: Scores, longer: Floats) -> list[Proposal]:
    """The job, if a different host or replica is late each time and this explains its slow steps."""
    uneven = _find_uneven(turns)
    # In a pipeline all wait alike, so only each one's own work shows that it is a different one each time.
    told = not is_pipeline(case) or _sum_own_work(turns, slice(None)) > 0
    return _tell_uneven(case, uneven, turns) if told and uneven is not None and _explains(uneven, longer) else []


def _is_ahead(case: Case, scores: Scores, best: Cause | None, uneven: Cause, turns: Scores) -> bool:
    """Whether one cause gains about as much as a different host in each of the same steps, and is late by one amount.

    A pipeline passes waits on, so another of its hosts may arrive last: only own work shows whether it is one host.
    """
    if best is None:
        return False
    at = next(i for i, c in enumerate(scores.candidates) if (c.members, c.stage) == (best.members, best.stage))
    inside = slice(uneven.window.first, uneven.window.last + 1)
    steps = np.arange(scores.gain.shape[1])
    during = (steps >= best.window.first) & (steps <= best.window.last)
    each = (turns.gain + turns.elsewhere)[:, inside]
    last = {host for i in each.argmax(axis=0) for host in hosts_of(case, turns.candidates[i].members)}
    if last == hosts_of(case, best.members) and not is_pipeline(case):
        return True  # It is a different rank each time, but always on one host.
    alone = (scores.gain[at] * during)[inside]
    is_ahead = any(_gains_as_much(one, each) for one in (alone, (scores.gain + scores.elsewhere)[at, inside]))
    own, works = scores.gain - scores.of_wait, (turns.gain - turns.of_wait)[:, inside]
    if is_pipeline(case) and _sum_own_work(turns, inside) > 0:
        # The ranks that wait for a replica are part of it, so it gains only by its own work.
        is_host = len(hosts_of(case, turns.candidates[0].members)) == 1
        is_ahead = _gains_as_much(own[at, inside], works) or (is_ahead and is_host)
    return is_ahead and _is_alike(scores, best)


def _gains_as_much(one: Floats, each: Floats) -> bool:
    """Whether one gains about as much as the best of each step, less the cost of choosing it."""
    most = each.max(axis=0) - float(np.log(len(each)))
    return bool(sum_steps(one) >= _TIED * sum_steps(most))


def _sum_own_work(turns: Scores, inside: slice) -> float:
    """The gain of the best one in each step by its own work, less the cost of choosing it."""
    most = (turns.gain - turns.of_wait)[:, inside].max(axis=0) - float(np.log(len(turns.candidates)))
    return float(np.maximum(most, 0.0).sum())


def _is_alike(scores: Scores, cause: Cause) -> bool:
    """Whether a late stage has a constant amount of extra work: with uneven work the delay varies."""
    if cause.stage is None:
        return True
    rows = [i for i, c in enumerate(scores.candidates) if len(c.members) == 1 and c.members <= cause.members]
    late = scores.share[rows, cause.window.first : cause.window.last + 1].ravel()
    return spread_of(late) <= _BETWEEN * float(np.median(late))


def _take_turns(case: Case, scores: Scores, replicas: Scores | None, longer: Floats) -> Scores:
    """The units that take turns being late: hosts, ranks or replicas, whichever gain most by their own work.

    Units that explain the slow steps are preferred. All stages of a replica work on the same data, so uneven load makes
    all of them late.
    """
    hosts = {frozenset(members) for members in case.own_by_host.values()}
    whole = scores.take([i for i, c in enumerate(scores.candidates) if c.members in hosts])
    ranks = scores.take([i for i, c in enumerate(scores.candidates) if len(c.members) == 1])
    parts = [part for part in (whole, ranks, replicas) if part is not None and part.candidates]
    found = [(part, _find_uneven(part)) for part in parts]
    telling = [part for part, uneven in found if uneven is not None and _explains(uneven, longer)]
    return max(telling or parts, key=lambda part: _sum_own_work(part, slice(None)))


def _explains(cause: Cause, longer: Floats) -> bool:
    """Whether the slow steps of a cause's window in which it gains are most of all slow steps.

    Two steps alone explain slow steps only if these are the last ones and all of them, except the one in which it
    began: two earlier ones, such as the start of a program, name nobody.
    """
    if cause.stage is not None and cause.gain <= cause.of_wait:
        return False  # All ranks of a stage wait for one of them: only work shows that it is the whole stage.
    inside = longer[cause.window.first : cause.window.last + 1]
    left = int((longer > 0).sum() - (inside > 0).sum())
    if cause.window.length < levels.MIN_SAMPLES and (left > 1 or cause.window.last < len(longer) - 1):
        return False
    return cause.gain > 0 and bool(longer[sorted(cause.steps)].sum() >= levels.SHARE_HALF * longer.sum())


def _list_candidates(case: Case) -> list[Candidate]:
    """Every rank, every host with several, and every stage of several."""
    ranks = [frozenset([int(e)]) for e in case.job.endpoints]
    hosts = [frozenset(own) for own in case.own_by_host.values() if len(own) > 1]
    stages: dict[int, set[int]] = {}
    for endpoint, stage in case.stages.stage.items():
        stages.setdefault(stage, set()).add(endpoint)
    whole = [
        Candidate(frozenset(own), s) for s, own in stages.items() if len(stages) > 1 and len(hosts_of(case, own)) > 1
    ]
    return [*(Candidate(members) for members in (*ranks, *hosts)), *whole]


def _list_replicas(case: Case) -> list[Candidate]:
    """Every chain of stages, and all chains over the same hosts where others are on other hosts."""
    chains = [frozenset(chain) for chain in case.stages.chains if len(chain) > 1]
    by_hosts: dict[frozenset[str], set[int]] = {}
    for chain in chains:
        by_hosts.setdefault(frozenset(hosts_of(case, chain)), set()).update(chain)
    wider = [frozenset(members) for members in by_hosts.values() if len(by_hosts) > 1]
    return [Candidate(members) for members in dict.fromkeys((*chains, *wider))]


def _apart(case: Case, one: Cause, other: Cause) -> bool:
    return not hosts_of(case, one.members) & hosts_of(case, other.members)


def _find_uneven(hosts: Scores) -> Cause | None:
    """In each step the host, rank or replica that gains most, less the cost of choosing it.

    From the first slow step to the last one all steps count: with uneven load some rank is late in quick ones too.
    """
    if len(hosts.candidates) < levels.MIN_TWO:
        return None
    top, at = (hosts.gain + hosts.elsewhere).argmax(axis=0), np.arange(hosts.gain.shape[1])
    late_s, share, elsewhere = (table[top, at][None] for table in (hosts.late_s, hosts.share, hosts.elsewhere))
    every = Candidate(frozenset(e for c in hosts.candidates for e in c.members))
    gain = hosts.gain[top, at][None] - float(np.log(len(hosts.candidates)))
    turns = Scores([every], gain + elsewhere, np.zeros_like(gain), late_s, share, elsewhere)
    return turns.settle(0, _find_stretch(gain[0]))


def _find_stretch(gain: Floats) -> Window:
    """The run of steps that gains most without its best step: one outlier does not show that ranks take turns."""

    def sum_from(begin: int) -> Floats:
        return np.asarray(np.cumsum(gain[begin:]) - np.maximum.accumulate(gain[begin:]))

    first = max(np.flatnonzero(gain > 0).tolist() or [int(gain.argmax())], key=lambda begin: sum_from(begin).max())
    last = first + int(sum_from(first).argmax())
    return Window(first, last, share=float((gain[first : last + 1] > 0).mean()))


def _tell_uneven(case: Case, uneven: Cause, turns: Scores) -> list[Proposal]:
    """The job, if a different host or replica is last in each step of a part of the observation."""
    window = uneven.window
    if window.mean < _LATE or window.length < levels.MIN_SAMPLES:
        return []
    inside = slice(window.first, window.last + 1)
    gain = turns.gain[:, inside] + turns.elsewhere[:, inside]
    varies = _is_work_uneven(case, turns, inside)
    kind: FindingKind = "load_imbalance" if varies else "slow_step"
    cost = settle(case, window, None)
    if cost.lost_s < levels.SHARE_NEGLIGIBLE * float(case.length_s[inside].sum()):
        return []  # In any job some rank arrives last, a different one in each step.
    last = len(np.unique(gain.argmax(axis=0)))
    what = "the others differ too" if varies else "all others come as ever"
    unit = turns.candidates[0].members
    units = "hosts" if unit in case.own_by_host.values() else "ranks" if len(unit) == 1 else "replicas"
    evidence = f"the last to come changes: {last} different {units} in {window.length} steps; {what}; {cost.words}"
    who: Culprit = culprit("job", case.job.id)
    # A step in which another one is last is evidence against the best one, by at most the cost of a step with a cause.
    best = gain[gain.sum(axis=1).argmax()]
    sure = 1 - float(np.exp(-np.minimum(gain.max(axis=0) - best, PER_STEP).sum()))
    if sure < AHEAD:
        return []
    if varies:  # Some rank is also late in normal steps before the first slow one and after the last.
        window = _find_stretch((turns.gain + turns.elsewhere).max(axis=0) - float(np.log(len(turns.candidates))))
    told = case.finding(kind, who, window.first, window.last, lost_s=cost.lost_s, score=sure, evidence=evidence)
    return [Proposal(finding=told, gain=uneven.gain)]


def _is_work_uneven(case: Case, turns: Scores, inside: slice) -> bool:
    """Whether the work of all varies from step to step, rather than one having more than before.

    Then some rank is also late in normal steps. If there are none between many longer ones, the last one
    is late by a different amount each time, while pauses are about equally long. If there are few, others are also late
    on their own: the hop that begins last has two ends, so the third host decides.
    """
    if turns.slow is not None and not turns.slow[inside].all():
        gain = turns.elsewhere[:, inside].max(axis=0)[~turns.slow[inside]]
        return bool(np.median(gain) > PER_STEP + np.log(len(turns.candidates)))
    most = turns.share[:, inside].max(axis=0)
    if len(most) >= levels.MIN_STATISTICS and spread_of(most) > _BETWEEN * float(np.median(most)):
        return True
    by_hosts: dict[frozenset[str], list[int]] = {}
    for i, one in enumerate(turns.candidates):
        by_hosts.setdefault(frozenset(hosts_of(case, one.members)), []).append(i)
    if len(by_hosts) < levels.MIN_SAMPLES:
        return False
    late = np.sort([turns.share[own, inside].max(axis=0) for own in by_hosts.values()], axis=0)
    return bool(np.median(late[-levels.MIN_SAMPLES] / np.maximum(late[-1], 1e-12)) > _BETWEEN)
