"""Clues of several sources made one verdict: those that name the same suspects add up, others lower confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism.investigate.clues import Clue, Suspect


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The verdict of all sources together."""

    what: str
    culprits: tuple[Suspect, ...]
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...]
    advice: str


def fuse(clues: Sequence[Clue]) -> Fused:
    """The suspects that the clues make most likely.

    Sources err independently, so clues that share a suspect combine as 1 - (1 - a)(1 - b). A clue that names nobody
    says what happened and adds nothing to who did it.
    """
    best: tuple[float, tuple[Clue, ...]] = (-1.0, ())
    for lead in clues:
        support = tuple(c for c in clues if c is lead or _agree(lead, c))
        all_wrong = 1.0
        for clue in support:
            all_wrong *= 1.0 - min(clue.confidence, 0.99)
        # A clue that names someone is worth more to a person than one that names nobody.
        score = (1.0 - all_wrong) + (0.001 if lead.suspects else -1.0)
        if score > best[0] or not best[1]:
            best = (score, (lead, *(c for c in support if c is not lead)))
    lead, support = best[1][0], best[1]
    all_wrong = 1.0
    for clue in support:
        all_wrong *= 1.0 - min(clue.confidence, 0.99)
    culprits = _join(support)
    others = [s for c in clues for s in (*c.suspects, *c.alternatives) if s not in culprits]
    since = [c.since_ns for c in support if c.since_ns is not None]
    return Fused(
        what=_describe(support),
        culprits=culprits,
        since_ns=min(since) if since else None,
        confidence=1.0 - all_wrong,
        alternatives=tuple(dict.fromkeys(others)),
        advice=next((c.advice for c in support if c.advice), lead.advice),
    )


def _agree(one: Clue, other: Clue) -> bool:
    return one is not other and bool(set(one.suspects) & set(other.suspects))


def _join(support: Sequence[Clue]) -> tuple[Suspect, ...]:
    """The lead's suspects, and the hosts that another clue names beside a shared rank: they say where it ran."""
    joined = dict.fromkeys(support[0].suspects)
    for clue in support[1:]:
        joined.update(dict.fromkeys(s for s in clue.suspects if s.type in ("host", "gpu")))
    return tuple(joined)


def _describe(support: Sequence[Clue]) -> str:
    """What happened: the log's reason where there is one, beside what the other sources saw."""
    words = [c.what for c in sorted(support, key=lambda c: c.source != "log")]
    return "; ".join(dict.fromkeys(words))
