"""All findings of a cluster, worst first, each thing said once."""

from __future__ import annotations

from prism.observe.findings.case import Case
from prism.observe.findings.compute import find_compute
from prism.observe.findings.network import find_network
from prism.observe.findings.progress import find_hang, find_slow_steps
from prism.records.findings import Finding


def find_all(cases: list[Case]) -> tuple[Finding, ...]:
    """Findings of every job, ordered by how sure and how costly they are; a cause stands before what it causes."""
    found: list[Finding] = []
    for case in cases:
        causes = find_hang(case) + find_compute(case) + find_network(case)
        causes.sort(key=_weight, reverse=True)
        slow = [s for s in find_slow_steps(case) if not any(_covers(c, s) for c in causes)]
        found += causes + slow
    return tuple(sorted(found, key=_weight, reverse=True))


def _weight(finding: Finding) -> tuple[float, float]:
    return finding.lost_gpu_seconds * finding.score, finding.score


def _covers(cause: Finding, effect: Finding) -> bool:
    """Whether a named cause already accounts for most of a slow stretch."""
    overlap = min(cause.end_ns, effect.end_ns) - max(cause.start_ns, effect.start_ns)
    return overlap > 0.5 * (effect.end_ns - effect.start_ns)
