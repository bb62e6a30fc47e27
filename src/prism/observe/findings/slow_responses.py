"""Who began to answer late: the one for whom the others wait, a rank, a host or a stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.compute import FELT, Suspect, at_one_time, find_slow, find_suspects, is_felt
from prism.observe.findings.cost import price_slow_work
from prism.observe.findings.load import find_load_imbalance, find_uneven_answers
from prism.observe.findings.response_times import Answers, measure_answers
from prism.observe.findings.transfers import SlowPair
from prism.observe.findings.windows import Window
from prism.observe.findings.work_table import WorkTable, tabulate_work
from prism.records.findings import Finding

_AS_LATE = levels.MAJORITY  # of how late the latest is: those who are so at the same time are late with it
_BY_FAR = 1.3  # times as late as the next host
_WITH_IT = 0.25  # the same on its own host
_ACCOUNTED = levels.HALF  # share of what steps are longer by that the answers of a culprit make up


def find_late(case: Case, slow: Sequence[SlowPair] = ()) -> list[Finding]:
    """Who began to answer late while others answer as ever: a rank, a host, a stage, or another one in each step.

    `slow` are pairs whose transfers seem slow: a rank may wait for that of another NIC of its host.
    """
    # What does not make some steps longer than others is not told of answers, which begin to be late.
    if case.messages.is_empty() or case.steps.height < 3 or case.most_longer < FELT:
        return []
    answers, table = measure_answers(case), tabulate_work(case)
    return find_uneven_answers(case, answers, table) or _blame_late(case, answers, table, slow)


def _blame_late(case: Case, answers: Answers, table: WorkTable, slow: Sequence[SlowPair]) -> list[Finding]:
    """The latest at any time, with those of its host or stage; nobody where the most of the job is as late."""
    left = [s for s in find_suspects(answers.out) if is_felt(case, s.window) and _accounts_for(case, answers, s)]
    left = _without_waiting(case, left, answers, slow)
    found: list[Finding] = []
    while left:
        weight = {s.row: _late_by(answers, s) for s in left}
        head = max(left, key=lambda s: weight[s.row])
        near = [s for s in left if at_one_time([head, s])]
        late = [s for s in near if weight[s.row] >= _how_late(case, answers, head, s) * weight[head.row]]
        left = [s for s in left if s not in near]
        hosts = {case.host(int(answers.endpoints[s.row])) for s in late}
        stage = _stage_of(case, [int(answers.endpoints[s.row]) for s in late])
        if stage is None and (heavy := _find_whole_stage(case, table, answers, late)):
            return heavy
        if stage is None and len(hosts) > 1:
            worst, clear = _worst_host(case, answers, late)
            # Where a transfer begins once both sides are ready, those around a late rank seem late with it.
            seen = find_load_imbalance(case, table) or find_slow(case, table) if table.phases and not clear else []
            if seen or (len(hosts) > 0.5 * len(case.own_by_host) and not clear):
                return seen
            late = [s for s in late if case.host(int(answers.endpoints[s.row])) == worst]
        found.append(_tell_late(case, table, answers, late, stage))
    return found


def _without_waiting(case: Case, suspects: list[Suspect], answers: Answers, slow: Sequence[SlowPair]) -> list[Suspect]:
    """Those that do not wait for a slow transfer of another NIC of their host: the ranks of a worker go on together."""
    hosts = {case.host(e) for p in slow if p.sound and not p.early for e in (p.src, p.dst)}
    doubtful = [s for s in suspects if case.host(int(answers.endpoints[s.row])) in hosts]
    if not doubtful:
        return suspects
    since_host = measure_answers(case, of_hosts=True)
    waits = {s.row for s in doubtful if not _accounts_for(case, since_host, s, _ACCOUNTED / 2)}
    return [s for s in suspects if s.row not in waits]


def _how_late(case: Case, answers: Answers, head: Suspect, other: Suspect) -> float:
    """The share of the latest one's lateness at which another is late with it: those of its host wait for it."""
    hosts = {case.host(int(answers.endpoints[s.row])) for s in (head, other)}
    return _AS_LATE if len(hosts) > 1 else _WITH_IT


def _accounts_for(case: Case, answers: Answers, suspect: Suspect, share: float = _ACCOUNTED) -> bool:
    """Whether what an endpoint answers late adds up to what the steps of the window are longer by."""
    window = suspect.window
    outside = np.concatenate([case.length_s[: window.first], case.length_s[window.last + 1 :]])
    if len(outside) < 2 or window.length > 0.8 * case.steps.height:
        return False
    seen = slice(window.first, window.last + 1)
    extra = answers.extra_s[suspect.row, seen]
    longer = float(np.median(case.length_s[seen]) - np.median(outside))
    known = extra[~np.isnan(extra)]
    return bool(len(known)) and bool(np.median(known) >= share * longer)


def _late_by(answers: Answers, suspect: Suspect) -> float:
    """How much later than before it sends, and half of how much later it is sent to.

    Where a transfer begins once both sides are ready, the neighbours of a late rank seem late too, on one side each.
    """
    seen = slice(suspect.window.first, suspect.window.last + 1)
    into = answers.into[suspect.row, seen]
    known = into[~np.isnan(into)]
    return suspect.window.mean + 0.5 * max(0.0, float(np.median(known)) if len(known) else 0.0)


def _worst_host(case: Case, answers: Answers, late: list[Suspect]) -> tuple[str, bool]:
    """The host of the latest, and whether it is later than all others by far."""
    by_host: dict[str, float] = {}
    for s in late:
        host = case.host(int(answers.endpoints[s.row]))
        by_host[host] = max(by_host.get(host, 0.0), _late_by(answers, s))
    worst = max(by_host, key=lambda h: by_host[h])
    others = max((v for h, v in by_host.items() if h != worst), default=0.0)
    return worst, by_host[worst] >= _BY_FAR * others


def _stage_of(case: Case, members: list[int]) -> int | None:
    """The stage that endpoints on several hosts make up; None where they are no stage, or all on one host."""
    stages = {case.stages.stage.get(e) for e in members}
    hosts = {case.host(e) for e in members}
    if len(hosts) < 2 or len(stages) != 1 or None in stages or len(set(case.stages.stage.values())) < 2:
        return None
    (stage,) = stages
    whole = {e for e, s in case.stages.stage.items() if s == stage}
    return stage if len(whole & set(members)) >= 0.7 * len(whole) else None


def _find_whole_stage(case: Case, table: WorkTable, answers: Answers, late: list[Suspect]) -> list[Finding]:
    """Stages that the late ones belong to and that work longer on all their hosts: the work itself grew."""
    if not table.phases:
        return []
    stages = {str(case.stages.stage.get(int(answers.endpoints[s.row]))) for s in late}
    return [f for f in find_slow(case, table) if f.culprit.type == "stage" and stages == {f.culprit.id}]


def _tell_late(case: Case, table: WorkTable, answers: Answers, late: list[Suspect], stage: int | None) -> Finding:
    head = max(late, key=lambda s: s.sure)
    mean = float(np.median([s.window.mean for s in late]))
    window = Window(head.window.first, head.window.last, mean, head.window.share)
    members = [int(answers.endpoints[s.row]) for s in late]
    cost = price_slow_work(case, table, members, window, by_design=False)
    score = min(1 - np.exp(-head.sure / 10), cost.margin)
    steps = f"in {window.length} of {case.steps.height} steps"
    if stage is not None:
        evidence = f"stage {stage} answers {100 * mean:.1f} % later than before {steps}; {cost.words}"
        return case.finding("stage_imbalance", culprit("stage", str(stage)), window.first, window.last,
                            lost_s=cost.lost_s, score=score, evidence=evidence)  # fmt: skip
    evidence = (
        f"answers {100 * mean:.1f} % later than before {steps} while the others answer as ever and wait; {cost.words}"
    )
    who = case.name_worker(_with_mates(case, answers, members, window))
    return case.finding("slow_compute", who, window.first, window.last, lost_s=cost.lost_s, score=score,
                        evidence=evidence)  # fmt: skip


def _with_mates(case: Case, answers: Answers, members: list[int], window: Window) -> list[int]:
    """The members, and those of their host that are late too, if less, or of which nothing can be said."""
    own = case.own_by_host.get(case.host(members[0]), set())
    found = set(members)
    for e, row in zip(answers.endpoints.tolist(), answers.out[:, window.first : window.last + 1], strict=True):
        known = row[~np.isnan(row)]
        unseen = not len(known) and case.stages.stage.get(e) == case.stages.stage.get(members[0])
        if e in own and (unseen or (len(known) and np.median(known) > _WITH_IT * window.mean)):
            found.add(int(e))
    return sorted(found)
