"""Who computes late: a rank against its replicas or its own past, a stage against the others, or the work itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.cost import price_slow_work
from prism.observe.findings.load import find_load_imbalance
from prism.observe.findings.stages import find_heavy_stages
from prism.observe.findings.windows import Floats, Window, find_window
from prism.observe.findings.work_table import WorkTable, noise_of, tabulate_work
from prism.records.findings import Finding

_SLOWER = 0.06  # a rank this much slower than its replicas is worth a word
_MOST_SLOWER = 3.5  # beyond, replicas do different things
_PASSING = 0.08  # share of the steps: what is over sooner is chance
_SURE = levels.SURELY  # standard errors
_CLOCKS_S = levels.TRACE  # that clocks of exporters may be apart where nothing tells how far they are
_SAME_TIME = levels.HALF  # share of the shorter window that two suspects have in common when they are one
FELT = levels.HUNDREDTH  # steps of the window are longer than the others by at least this much


@dataclass(frozen=True, slots=True)
class Suspect:
    """An endpoint that works longer than it should in a window of steps."""

    row: int
    window: Window
    sure: float


def find_slow_compute(case: Case, slow_nics: frozenset[int] = frozenset()) -> list[Finding]:
    """Ranks and stages that work longer than others all along; `slow_nics` are endpoints known to transfer slowly."""
    if case.work.is_empty() or case.steps.height < 3:
        return []
    table = tabulate_work(case)
    if not table.phases:
        return []
    return find_load_imbalance(case, table) or find_slow(case, table, slow_nics) or find_heavy_stages(case, table)


def find_slow(case: Case, table: WorkTable, slow_nics: frozenset[int] = frozenset()) -> list[Finding]:
    """Ranks that work longer than their replicas on the first and last micro-batch, or stages than before."""
    by_replica = [s for s in find_suspects(table.against_replicas) if s.window.mean <= _MOST_SLOWER]
    by_replica = [s for s in by_replica if not _may_be_clocks(case, table, s)]
    by_past = [s for s in find_suspects(table.against_past) if s.window.length <= 0.8 * case.steps.height]
    alone = _whole_stages(table, by_past)
    if len({int(table.stage[s.row]) for s in alone}) > max(1, table.num_stages // 2):
        alone = []  # All stages at once: nothing that a rank or a stage could be blamed for.
    groups = _group(case, table, [s for s in by_replica + alone if is_felt(case, s.window)])
    return [_blame(case, table, group) for group in groups if not _wait_for_nic(case, table, group, slow_nics)]


def _may_be_clocks(case: Case, table: WorkTable, suspect: Suspect) -> bool:
    """Whether it was never quicker, by no more than clocks of exporters may be off: they are so all the time."""
    switches = {case.switches[int(e)] for e in case.job.endpoints}
    if suspect.window.length <= 0.8 * case.steps.height or (len(switches) == 1 and None not in switches):
        return False
    return table.find_extra_s(suspect.row, suspect.window) < _CLOCKS_S


def _whole_stages(table: WorkTable, suspects: list[Suspect]) -> list[Suspect]:
    """Those that no replica could have been compared with: all ranks of their stage became slow together."""
    kept = []
    for s in range(table.num_stages):
        rows = np.flatnonzero(table.stage == s)
        own = [x for x in suspects if table.stage[x.row] == s]
        if len(own) >= 0.9 * len(rows) and own and at_one_time(own):
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


def find_suspects(excess: Floats) -> list[Suspect]:
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


def at_one_time(suspects: list[Suspect]) -> bool:
    first = suspects[0].window
    return all(first.overlap(s.window) > _SAME_TIME * min(first.length, s.window.length) for s in suspects)


def is_felt(case: Case, window: Window) -> bool:
    """Whether steps are longer where the window is; a rank that is slow and delays nobody is nobody's trouble."""
    slower = case.slower_by(window.first, window.last)
    return slower is None or slower > FELT


def _group(case: Case, table: WorkTable, suspects: list[Suspect]) -> list[list[Suspect]]:
    """Suspects of one host or one stage at one time, the worst group first; whoever waits for it is let go."""
    left = sorted({s.row: s for s in sorted(suspects, key=lambda s: s.sure)}.values(), key=lambda s: -s.sure)
    peers = _peers(case) if len(left) > 1 else {}
    groups: list[list[Suspect]] = []
    while left:
        head = _pick_head(table, left)
        near = [s for s in left if at_one_time([head, s])]
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


def _pick_head(table: WorkTable, left: list[Suspect]) -> Suspect:
    """The surest suspect of the host that is late in all: a transfer that begins late is late at both of its ends.

    A ring enters a host by one NIC and leaves it by another; every late transfer has an end at the host of a late rank.
    """
    late: dict[str, float] = {}
    for s in left:
        late[table.host[s.row]] = late.get(table.host[s.row], 0.0) + s.window.mean
    worst = max(late, key=lambda host: late[host])
    return next(s for s in left if table.host[s.row] == worst)


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
    window = Window(first, last, mean, head.window.share)
    cost = price_slow_work(case, table, members, window, by_design=False)
    score = min(1 - np.exp(-head.sure / 10), cost.margin)
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
