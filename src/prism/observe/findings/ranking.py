"""All findings of a cluster, worst first, each thing said once."""

from __future__ import annotations

import polars as pl

from prism.observe.findings.case import Case
from prism.observe.findings.compute import find_late, find_slow_compute
from prism.observe.findings.contention import find_contention
from prism.observe.findings.network import find_network
from prism.observe.findings.progress import find_longer_pauses, find_slow_steps
from prism.observe.findings.silence import find_hang
from prism.observe.findings.transfers import find_slow_pairs, measure_transfers
from prism.records.findings import Finding


def find_all(cases: list[Case], routes: pl.DataFrame | None = None) -> tuple[Finding, ...]:
    """Findings of every job, ordered by how sure and how costly they are; a cause stands before what it causes."""
    transfers = {case.job.id: measure_transfers(case) for case in cases}
    slow = {case.job.id: find_slow_pairs(case, transfers[case.job.id]) for case in cases}
    contended = find_contention(cases, slow, routes)
    found: list[Finding] = []
    for case in cases:
        job = case.job.id
        late = find_late(case)
        shared = contended.get(job, [])
        # What is slow because of another tenant needs no broken link to explain it, and whoever waits for a late rank
        # seems to transfer slowly.
        network = [] if shared else find_network(case, transfers[job], slow[job], routes)
        network = [n for n in network + shared if not any(_covers(x, n) or _covers(n, x) for x in late)]
        causes = find_hang(case) + (late or find_slow_compute(case, _nics_of(case, network))) + network
        pauses = find_longer_pauses(case)
        steps = [s for s in find_slow_steps(case) if not any(_covers(c, s) for c in causes)]
        found += causes + steps + pauses
    return tuple(sorted(found, key=_weight, reverse=True))


def _weight(finding: Finding) -> tuple[float, float]:
    return finding.lost_gpu_seconds * finding.score, finding.score


def _covers(cause: Finding, effect: Finding) -> bool:
    """Whether a named cause already accounts for most of a slow stretch."""
    overlap = min(cause.end_ns, effect.end_ns) - max(cause.start_ns, effect.start_ns)
    return overlap > 0.5 * (effect.end_ns - effect.start_ns)


def _nics_of(case: Case, network: list[Finding]) -> frozenset[int]:
    """The endpoints at the ends of slow links."""
    ends = {end for f in network if f.culprit.type == "link" for end in f.culprit.id.split(">")}
    return frozenset(int(e) for e in case.job.endpoints if case.address(int(e)) in ends)
