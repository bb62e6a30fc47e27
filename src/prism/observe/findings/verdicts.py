"""Verdicts: all proposed causes of one job form one list, and the best one for each time is reported.

Every proposal has a gain: the nats by which it makes the calls of the job more likely than no cause does. Of proposals
for the same time, the one that gains most is reported, and those that gain nearly as much are listed with it.

A cause that begins or ends within the observation also predicts which steps are longer. Without a cause, steps scatter
about one length. The distance between the two, in standard errors, gives the probability that there is a cause at all.
A cause that lasts all the time is judged by its calls alone: there are no steps to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Case, Floats
from prism.observe.findings.windows import spread_of
from prism.records.findings import Alternative, Finding

_SCATTER = math.sqrt(math.pi / 2)  # a median scatters so much more than a mean
CLOSE_SECOND = levels.SHARE_MINOR  # of what the best gains: what gains more is listed with it
_PLACES = {"slow_link", "slow_switch"}
_MOST_SECONDS = levels.MIN_SAMPLES
_OUTLIERS = levels.SIGMAS_CERTAIN  # standard deviations beyond which a step counts no further


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A cause that a generator proposes: the finding that it would be, and what it gains over no cause."""

    finding: Finding
    gain: float
    seconds: tuple[Alternative, ...] = ()  # its own, of the same kind
    by_design: bool = False  # it lasted all the time, whatever else began
    explained: float = 1.0  # of what steps are longer by while it lasts
    comes_and_goes: bool = False  # intermittent: it does not predict in which steps of its window

    def rivals(self, other: Proposal) -> bool:
        """Whether two explain the same time, so that one of them is enough."""
        at_once = covers(self.finding, other.finding) or covers(other.finding, self.finding)
        return at_once and self.by_design == other.by_design


def choose(case: Case, proposals: Sequence[Proposal]) -> list[Finding]:
    """Of proposals for one time the one that gains most, if it beats no cause; close others are its alternatives.

    Gains are weighted by confidence. Two components with equal gain have a confidence of at most one half. Another
    tenant predicts when transfers are slow, so an intermittent component at the same time is not reported.
    """
    shared = [p for p in proposals if p.finding.kind == "contention" and p.gain > 0]
    proposals = [p for p in proposals if not (p.comes_and_goes and any(p.rivals(s) for s in shared))]
    weighed = [(p, _beat_none(case, p.finding)) for p in proposals if p.gain > 0]
    ordered = sorted((w for w in weighed if w[1] >= levels.SHARE_HALF), key=lambda w: -w[0].gain * w[0].finding.score)
    told: list[tuple[Proposal, float]] = []
    seconds: dict[int, list[Alternative]] = {}
    for proposal, sure in ordered:
        over = next((i for i, (p, _) in enumerate(told) if p.rivals(proposal)), None)
        if over is None:
            seconds[len(told)] = list(proposal.seconds)
            told.append((proposal, sure))
        elif proposal.gain >= CLOSE_SECOND * told[over][0].gain:
            best, sure = told[over]
            share, found = round(proposal.gain / (proposal.gain + best.gain), 3), proposal.finding
            seconds[over].append(Alternative(kind=found.kind, culprit=found.culprit, score=min(share, found.score)))
            if _are_places(best, proposal):
                told[over] = best, min(sure, 1 - share)
    named = [name_seconds(p.finding, seconds[i], min(p.finding.score, sure)) for i, (p, sure) in enumerate(told)]
    weak = [p for (p, _), finding in zip(told, named, strict=True) if not _stands_out(finding)]
    if not weak:
        return named
    # If none of several components stands out, none of them excludes another cause.
    return choose(case, [p for p in proposals if not any(w is p or (w.rivals(p) and _are_places(w, p)) for w in weak)])


def _are_places(*proposals: Proposal) -> bool:
    return {p.finding.kind for p in proposals} <= _PLACES


def _stands_out(finding: Finding) -> bool:
    """Whether a cause is likelier than not, or else clearly likelier than each of the others."""
    second = max((a.score for a in finding.alternatives), default=0.0)
    return finding.score >= min(levels.SHARE_HALF, levels.RATIO_LONGER * second)


def name_seconds(finding: Finding, seconds: Sequence[Alternative], score: float) -> Finding:
    """A finding with its close alternatives, by name."""
    others = {a.culprit: a for a in sorted(seconds, key=lambda a: a.score) if a.culprit != finding.culprit}
    kept = tuple(sorted(others.values(), key=lambda a: -a.score)[:_MOST_SECONDS])
    words = f"; less likely {' or '.join(f'{a.culprit.type} {a.culprit.id}' for a in kept)}" if kept else ""
    return replace(finding, score=round(score, 3), evidence=finding.evidence + words, alternatives=kept)


def covers(cause: Finding, effect: Finding) -> bool:
    """Whether a named cause already accounts for most of a slow stretch."""
    both = min(cause.end_ns, effect.end_ns) - max(cause.start_ns, effect.start_ns)
    return both > levels.SHARE_HALF * (effect.end_ns - effect.start_ns)


def _beat_none(case: Case, cause: Finding) -> float:
    """The probability that there is a cause; contention varies within steps and was compared there."""
    return 1.0 if cause.kind == "contention" else weigh(case, cause)


def weigh(case: Case, cause: Finding) -> float:
    """The probability that the steps of a cause are longer than the others; 1 where there are none to compare with."""
    starts = case.steps["start_ns"].to_numpy()
    return compare_steps(case, (starts >= cause.start_ns) & (starts < cause.end_ns))


def compare_steps(case: Case, during: NDArray[np.bool_]) -> float:
    """The probability that some steps are longer than the others; 1 where there are too few to compare."""
    inside, outside = case.length_s[during], case.length_s[~during]
    if len(outside) < levels.MIN_SAMPLES or not len(inside):
        return 1.0
    usual = float(np.median(outside))
    noise = max(_measure_noise(outside), levels.THREE_PER_MILLE * levels.SHARE_SMALL * usual)
    # A link that flaps lengthens some steps only, which a median would not show.
    more = float(np.clip(inside - usual, -_OUTLIERS * noise, None).mean())
    error = noise * np.sqrt(1 / len(inside) + _SCATTER**2 / len(outside))
    return float(1 - np.exp(-0.5 * (more / error) ** 2)) if more > 0 else 0.0


def _measure_noise(lengths: Floats) -> float:
    """How much a step differs from the next by chance; what changes once or slowly does not count."""
    return spread_of(np.diff(lengths)) / float(np.sqrt(2)) if len(lengths) > 1 else 0.0
