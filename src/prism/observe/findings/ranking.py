"""All findings of a cluster, worst first, each thing said once."""

from __future__ import annotations

import polars as pl

from prism.observe.findings.case import Case
from prism.observe.findings.compute import find_compute
from prism.observe.findings.network import find_network
from prism.observe.findings.progress import find_longer_pauses, find_slow_steps
from prism.observe.findings.silence import find_hang
from prism.records.findings import Finding


def find_all(cases: list[Case], routes: pl.DataFrame | None = None) -> tuple[Finding, ...]:
    """Findings of every job, ordered by how sure and how costly they are; a cause stands before what it causes."""
    found: list[Finding] = []
    for case in cases:
        network = find_network(case, routes)
        compute = [f for f in find_compute(case) if not any(_waits_for(case, f, n) for n in network)]
        causes = find_hang(case) + compute + network
        causes.sort(key=_weight, reverse=True)
        slow = [s for s in find_slow_steps(case) if not any(_covers(c, s) for c in causes)]
        found += causes + slow + find_longer_pauses(case)
    return tuple(sorted(found, key=_weight, reverse=True))


def _weight(finding: Finding) -> tuple[float, float]:
    return finding.lost_gpu_seconds * finding.score, finding.score


def _covers(cause: Finding, effect: Finding) -> bool:
    """Whether a named cause already accounts for most of a slow stretch."""
    overlap = min(cause.end_ns, effect.end_ns) - max(cause.start_ns, effect.start_ns)
    return overlap > 0.5 * (effect.end_ns - effect.start_ns)


def _waits_for(case: Case, compute: Finding, network: Finding) -> bool:
    """Whether who seems to compute late waits for a slow transfer of another NIC of its host.

    The ranks of a worker go on when the last of their messages has come; those that come early look like work.
    """
    if compute.kind != "slow_compute" or not _covers(network, compute) or network.culprit.type != "link":
        return False
    ends = network.culprit.id.split(">")
    hosts = {case.host(e) for e in case.job.endpoints.tolist() if case.address(e) in ends}
    late = {case.host(e) for e in case.job.endpoints.tolist() if case.address(e) in compute.culprit.id.split(",")}
    return bool(late) and late <= hosts and not set(ends) & set(compute.culprit.id.split(","))
