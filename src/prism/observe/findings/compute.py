"""Who computes late: a rank against its replicas or its own past, a stage against the others, or the work itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism.observe.findings.answers import Answers, measure_answers
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.cost import price_slow_work
from prism.observe.findings.load import find_load_imbalance, find_uneven_answers
from prism.observe.findings.stages import find_heavy_stages
from prism.observe.findings.transfers import SlowPair
from prism.observe.findings.windows import Floats, Window, find_window
from prism.observe.findings.work_table import WorkTable, noise_of, tabulate_work
from prism.records.findings import Finding

_SLOWER = 0.06  # a rank this much slower than its replicas is worth a word
_MOST_SLOWER = 3.5  # beyond, replicas do different things
_PASSING = 0.08  # share of the steps: what is over sooner is chance
_SURE = 6.0  # standard errors
_SAME_TIME = 0.5  # share of the shorter window that two suspects have in common when they are one
_AS_LATE = 0.6  # of how late the latest is: those who are so at the same time are late with it
_ACCOUNTED = 0.5  # share of what steps are longer by that the answers of a culprit make up
_WITH_IT = 0.25  # the same on its own host
_FELT = 0.01  # steps of the window are longer than the others by at least this much


@dataclass(frozen=True, slots=True)
class Suspect:
    """An endpoint that works longer than it should in a window of steps."""

    row: int
    window: Window
    sure: float


def find_late(case: Case, slow: Sequence[SlowPair] = ()) -> list[Finding]:
    """Who began to answer late while others answer as ever: a rank, a host, a stage, or another one in each step.

    `slow` are pairs whose transfers seem slow: a rank may wait for that of another NIC of its host.
    """
    if case.messages.is_empty() or case.steps.height < 3:
        return []
    answers, table = measure_answers(case), tabulate_work(case)
    return find_uneven_answers(case, answers, table) or _blame_late(case, answers, table, slow)


def find_slow_compute(case: Case, slow_nics: frozenset[int] = frozenset()) -> list[Finding]:
    """Ranks and stages that work longer than others all along; `slow_nics` are endpoints known to transfer slowly."""
    if case.work.is_empty() or case.steps.height < 3:
        return []
    table = tabulate_work(case)
    if not table.phases:
        return []
    return find_load_imbalance(case, table) or _find_slow(case, table, slow_nics) or find_heavy_stages(case, table)


def _blame_late(case: Case, answers: Answers, table: WorkTable, slow: Sequence[SlowPair]) -> list[Finding]:
    """The latest at any time, with those of its host or stage; nobody where the most of the job is as late."""
    left = [s for s in _suspects(answers.out) if _is_felt(case, s.window) and _accounts_for(case, answers, s)]
    left = _without_waiting(case, left, answers, slow)
    found: list[Finding] = []
    while left:
        weight = {s.row: _late_by(answers, s) for s in left}
        head = max(left, key=lambda s: weight[s.row])
        near = [s for s in left if _at_one_time([head, s])]
        late = [s for s in near if weight[s.row] >= _how_late(case, answers, head, s) * weight[head.row]]
        left = [s for s in left if s not in near]
        hosts = {case.host(int(answers.endpoints[s.row])) for s in late}
        stage = _stage_of(case, [int(answers.endpoints[s.row]) for s in late])
        if stage is None and len(hosts) > 1:
            # Where a transfer begins once both sides are ready, those around a late rank seem late with it.
            seen = _find_slow(case, table) if table.phases else []
            if seen or len(hosts) > 0.5 * len(case.own_by_host):
                return seen
            worst = _worst_host(case, answers, late)
            late = [s for s in late if case.host(int(answers.endpoints[s.row])) == worst]
        found.append(_tell_late(case, table, answers, late, stage))
    return found


def _without_waiting(
    case: Case, suspects: list[Suspect], answers: Answers, slow: Sequence[SlowPair]
) -> list[Suspect]:
    """Those that do not wait for a slow transfer of another NIC of their host: the ranks of a worker go on together."""
    hosts = {case.host(e) for p in slow if p.sound for e in (p.src, p.dst)}
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


def _worst_host(case: Case, answers: Answers, late: list[Suspect]) -> str:
    total: dict[str, float] = {}
    for s in late:
        host = case.host(int(answers.endpoints[s.row]))
        total[host] = total.get(host, 0.0) + _late_by(answers, s)
    return max(total, key=lambda h: total[h])


def _stage_of(case: Case, members: list[int]) -> int | None:
    """The stage that endpoints on several hosts make up; None where they are no stage, or all on one host."""
    stages = {case.stages.stage.get(e) for e in members}
    hosts = {case.host(e) for e in members}
    if len(hosts) < 2 or len(stages) != 1 or None in stages or len(set(case.stages.stage.values())) < 2:
        return None
    (stage,) = stages
    whole = {e for e, s in case.stages.stage.items() if s == stage}
    return stage if len(whole & set(members)) >= 0.7 * len(whole) else None


def _tell_late(
    case: Case, table: WorkTable, answers: Answers, late: list[Suspect], stage: int | None
) -> Finding:
    head = max(late, key=lambda s: s.sure)
    mean = float(np.median([s.window.mean for s in late]))
    window = Window(head.window.first, head.window.last, mean, head.window.share)
    members = [int(answers.endpoints[s.row]) for s in late]
    cost = price_slow_work(case, table, members, window, by_design=False)
    score = 1 - np.exp(-head.sure / 10)
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
        if e in own and (not len(known) or np.median(known) > _WITH_IT * window.mean):
            found.add(int(e))
    return sorted(found)


def _find_slow(case: Case, table: WorkTable, slow_nics: frozenset[int] = frozenset()) -> list[Finding]:
    """Ranks that work longer than their replicas on the way of the first and last micro-batch, or stages than before."""
    by_replica = [s for s in _suspects(table.against_replicas) if s.window.mean <= _MOST_SLOWER]
    by_past = [s for s in _suspects(table.against_past) if s.window.length <= 0.8 * case.steps.height]
    alone = _whole_stages(table, by_past)
    if len({int(table.stage[s.row]) for s in alone}) > max(1, table.num_stages // 2):
        alone = []  # All stages at once: nothing that a rank or a stage could be blamed for.
    groups = _group(case, table, [s for s in by_replica + alone if _is_felt(case, s.window)])
    return [_blame(case, table, group) for group in groups if not _wait_for_nic(case, table, group, slow_nics)]


def _whole_stages(table: WorkTable, suspects: list[Suspect]) -> list[Suspect]:
    """Those that no replica could have been compared with: all ranks of their stage became slow together."""
    kept = []
    for s in range(table.num_stages):
        rows = np.flatnonzero(table.stage == s)
        own = [x for x in suspects if table.stage[x.row] == s]
        if len(own) >= 0.9 * len(rows) and own and _at_one_time(own):
            kept += own
    return kept


def _wait_for_nic(case: Case, table: WorkTable, group: list[Suspect], slow_nics: frozenset[int]) -> bool:
    """Whether those who seem to work late wait for a slow transfer of another NIC of their worker.

    The ranks of a worker go on when the last of their messages has come; to those it came to early, that looks like
    work, and to the one it came to late it does not.
    """
    members = {int(table.endpoints[s.row]) for s in group}
    hosts = {case.host(e) for e in members}
    return any(case.host(e) in hosts and e not in members for e in slow_nics) and len(hosts) == 1


def _suspects(excess: Floats) -> list[Suspect]:
    noise = noise_of(excess)
    threshold = max(_SLOWER, 2.5 * noise)
    often = np.flatnonzero((np.where(np.isnan(excess), 0.0, excess) > threshold).sum(axis=1) >= 2)
    found = []
    for row in often.tolist():
        window = find_window(excess[row], threshold)
        if window is None or window.length < max(2, _PASSING * excess.shape[1]) or window.share < 0.75:
            continue
        sure = window.mean * np.sqrt(window.length) / noise
        if sure >= _SURE:
            found.append(Suspect(row, window, float(sure)))
    return found


def _at_one_time(suspects: list[Suspect]) -> bool:
    first = suspects[0].window
    return all(first.overlap(s.window) > _SAME_TIME * min(first.length, s.window.length) for s in suspects)


def _is_felt(case: Case, window: Window) -> bool:
    """Whether steps are longer where the window is; a rank that is slow and delays nobody is nobody's trouble."""
    slower = case.slower_by(window.first, window.last)
    return slower is None or slower > _FELT


def _group(case: Case, table: WorkTable, suspects: list[Suspect]) -> list[list[Suspect]]:
    """Suspects of one host or one stage at one time, the worst group first; whoever waits for it is let go."""
    left = sorted({s.row: s for s in sorted(suspects, key=lambda s: s.sure)}.values(), key=lambda s: -s.sure)
    peers = _peers(case) if len(left) > 1 else {}
    groups: list[list[Suspect]] = []
    while left:
        head = left[0]
        near = [s for s in left if _at_one_time([head, s])]
        on_host = [s for s in near if table.host[s.row] == table.host[head.row]]
        in_stage = [s for s in near if table.stage[s.row] == table.stage[head.row]]
        spread = len({table.host[s.row] for s in in_stage})
        whole = spread > 1 and len(in_stage) >= 0.9 * (table.stage == table.stage[head.row]).sum()
        chosen = in_stage if whole and table.num_stages > 1 and len(in_stage) > len(on_host) else on_host
        groups.append(chosen)
        taken = {s.row for s in chosen}
        touched = {p for s in chosen for p in peers.get(int(table.endpoints[s.row]), ())}
        waits = {s.row for s in near if int(table.endpoints[s.row]) in touched}
        left = [s for s in left if s.row not in taken | waits]
    return groups


def _peers(case: Case) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for s, d in case.messages.select("src", "dst").unique().iter_rows():
        found.setdefault(s, set()).add(d)
        found.setdefault(d, set()).add(s)
    return found


def _blame(case: Case, table: WorkTable, group: list[Suspect]) -> Finding:
    head = max(group, key=lambda s: s.sure)
    stage = int(table.stage[head.row])
    first, last = head.window.first, head.window.last
    mean = float(np.median([s.window.mean for s in group]))
    members = [int(table.endpoints[s.row]) for s in group]
    num_hosts = len({case.host(e) for e in members})
    score = 1 - np.exp(-head.sure / 10)
    window = Window(first, last, mean, head.window.share)
    cost = price_slow_work(case, table, members, window, by_design=False)
    if num_hosts > 1:
        on_all = f"on all its {len(members)} endpoints"
        evidence = f"stage {stage} works {100 * mean:.1f} % longer than before, {on_all}; {cost.words}"
        return case.finding("stage_imbalance", culprit("stage", str(stage)), first, last, lost_s=cost.lost_s,
                            score=score, evidence=evidence)  # fmt: skip
    phase, seconds = _worst_phase(table, head)
    replicas = not np.isnan(table.against_replicas[head.row]).all()
    than = (f"its replicas of stage {stage}" if table.num_stages > 1 else "its replicas") if replicas else "before"
    ring = "between turns of its ring"
    what = {"ring": ring, "ring in": ring, "ring out": ring, "start": "beyond a fifth of a step before it first sends"}
    evidence = (
        f"works {100 * mean:.1f} % longer than {than} in {head.window.length} of {case.steps.height} steps "
        f"({1000 * seconds:.2f} ms {what.get(phase, f'for the {phase} of a micro-batch')}); {cost.words}"
    )
    return case.finding("slow_compute", case.name_worker(members), first, last, lost_s=cost.lost_s, score=score,
                        evidence=evidence)  # fmt: skip


def _worst_phase(table: WorkTable, suspect: Suspect) -> tuple[str, float]:
    seen = slice(suspect.window.first, suspect.window.last + 1)
    seconds = {
        phase: float(np.nanmedian(values[suspect.row, seen]))
        for phase, values in table.phases.items()
        if not np.isnan(values[suspect.row, seen]).all()
    }
    phase = max(seconds, key=lambda p: seconds[p])
    return phase, seconds[phase]
