"""Accusations: who is late is said only where the collectives wait for it, and far more than for anyone else.

Candidates come from the detectors. The waits of the collectives say what the job would save without each host: the
share of it that is a culprit's is the confidence, a rival that saves as much makes a set of the two, and where nobody
stands out nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from prism.observe.findings.case import Case, Floats, culprit
from prism.observe.findings.cost import settle
from prism.observe.findings.waits import Waits, measure_waits
from prism.observe.findings.windows import Window, find_window
from prism.records.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class AccusationConfig:
    """What an accusation must show.

    Ranges: over 43 jobs of 16 captures of `benchmarks/world`, hosts with a slow rank cause 0.99 to 1.00 of all waiting
    and 52 to 89 % of a step's length summed over its calls, those of healthy jobs at most 0.45 and 7 %. Under an idle
    timeout that cuts the waiting hops, slow ranks do not show.
    """

    most: float = 0.5  # share of all waiting that is for the culprit; 0.46 to 0.98 decide alike
    alone: float = 0.8  # the same where no detector names it; 0.46 to 0.98 decide alike
    felt: float = 0.03  # of a step that the others wait for it, where no detector names it; up to 0.5 decides alike
    tied: float = 0.9  # of what the worst costs: one that costs as much is not told apart; 0.01 to 0.99 decide alike
    other_end: float = 0.7  # confidence in the end of a hop that a detector names
    unchecked: float = 0.8  # confidence where no collective tells


def check_slow_ranks(case: Case, findings: list[Finding], config: AccusationConfig | None = None) -> list[Finding]:
    """The findings, slow ranks among them only as far as collectives wait for them; one that was missed is added.

    Ranks of a pipeline or of a ring of blocks wait for each other's messages, not in collectives alone.
    """
    config = config or AccusationConfig()
    if len(set(case.stages.stage.values())) > 1 or (case.streams["kind"] == "cp").any():
        return findings
    waits = measure_waits(case) if case.steps.height >= 3 else None
    if waits is None:
        return [_limit(f, config.unchecked) for f in findings]
    checked = [_check(case, f, waits, config) if f.kind == "slow_compute" else f for f in findings]
    kept = [f for f in checked if f is not None]
    named = any(f.kind in ("slow_compute", "hang") for f in kept)
    return kept if named else [*_accuse_latest(case, waits, config), *kept]


def _limit(finding: Finding, most: float) -> Finding:
    return replace(finding, score=min(finding.score, most)) if finding.kind == "slow_compute" else finding


def _check(case: Case, finding: Finding, waits: Waits, config: AccusationConfig) -> Finding | None:
    """The finding with the share of waiting that is for its host as its confidence; None where others cost more."""
    starts = case.steps["start_ns"].to_numpy()
    during = (starts >= finding.start_ns) & (starts < finding.end_ns) & waits.seen
    hosts = _hosts_of(case, finding)
    if not during.any() or len(hosts) != 1:
        return _limit(finding, config.unchecked)
    cost = waits.cost_s[:, during].sum(axis=1)
    shares, own = _share(cost), waits.hosts.index(hosts.pop())
    tied = [i for i in range(len(cost)) if cost[i] >= config.tied * cost.max()]
    # The hop that comes last has two ends. Detectors tell them apart where a hop begins with its sender alone.
    sure = float(shares[tied].sum()) * (1 if len(tied) == 1 else config.other_end)
    if own not in tied or len(tied) > 2 or float(shares[tied].sum()) < config.most:
        return None
    others = float(max((s for i, s in enumerate(shares) if i not in tied), default=0.0))
    share = f"{100 * shares[tied].sum():.0f} % of all waiting in its collectives"
    words = f"{share} is for it, {100 * others:.0f} % for the next"
    if len(tied) == 2:
        rival = next(waits.hosts[i] for i in tied if i != own)
        words += f"; or for {rival}, at the other end of the hop that comes last"
    return replace(finding, score=round(min(0.99, sure), 3), evidence=f"{finding.evidence}; {words}")


def _share(cost: Floats) -> Floats:
    return np.asarray(cost / max(float(cost.sum()), 1e-12))


def _hosts_of(case: Case, finding: Finding) -> set[str]:
    if finding.culprit.type == "host":
        return {finding.culprit.id} & case.own_by_host.keys()
    named = set(finding.culprit.id.split(","))
    return {host for host, own in case.own_by_host.items() if named & {case.address(e) for e in own}}


def _accuse_latest(case: Case, waits: Waits, config: AccusationConfig) -> list[Finding]:
    """The host that nearly all waiting is for, or the two that cannot be told apart."""
    total = waits.cost_s.sum(axis=1)
    shares, order = _share(total), np.argsort(-total)
    tied = [int(i) for i in order if total[i] >= config.tied * total[order[0]]]
    felt = float(np.median(waits.cost_s[order[0]][waits.seen]) / np.median(case.length_s))
    if len(tied) > 2 or float(shares[tied].sum()) < config.alone or felt < config.felt:
        return []
    window = find_window(waits.cost_s[order[0]] / case.length_s, config.felt) or Window(0, case.steps.height - 1, 0, 1)
    late_s = float(np.median(waits.cost_s[order[0], window.first : window.last + 1]))
    names = sorted(waits.hosts[i] for i in tied)
    cost = settle(case, replace(window, mean=min(window.mean, config.most)), None)
    evidence = (
        f"all others wait for {' or '.join(names)}, {1000 * late_s:.1f} ms of a step in all its collectives; "
        f"{100 * float(shares[tied].sum()):.0f} % of all waiting is for it; {cost.words}"
    )
    members = [e for name in names for e in sorted(case.own_by_host[name])]
    who = culprit("host", names[0]) if len(names) == 1 else culprit("group", ",".join(case.address(e) for e in members))
    if len(names) > 1:
        evidence += "; the hop between the two comes last, and records do not show which of them is late"
    score = min(0.95, float(shares[tied].sum()))  # that it is one of those who are named
    return [case.finding("slow_compute", who, window.first, window.last, lost_s=cost.lost_s, score=score,
                         evidence=evidence)]  # fmt: skip
