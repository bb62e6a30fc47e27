"""Clues of several sources made one verdict: those that name the same suspects add up, others lower confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prism.investigate.clues import Clue, Suspect, host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The verdict of all sources together."""

    what: str
    culprits: tuple[Suspect, ...]
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...]
    against: tuple[str, ...]  # what speaks for somebody else
    advice: str


_NOBODY = Fused(
    what="nothing wrong was found",
    culprits=(),
    since_ns=None,
    confidence=0.0,
    alternatives=(),
    against=(),
    advice="",
)


def fuse(clues: Sequence[Clue], hosts: Mapping[str, str] | None = None) -> Fused:
    """The suspects that the clues make most likely.

    Sources err independently, so clues that share a suspect combine as 1 - (1 - a)(1 - b); a rank and the host that it
    runs on are one suspect. A clue that names nobody says what happened and adds nothing to who did it.
    """
    hosts = hosts or {}
    best: tuple[float, tuple[Clue, ...]] = (-1.0, ())
    for lead in clues:
        support = tuple(c for c in clues if c is lead or _agree(lead, c, hosts))
        # A clue that names someone is worth more to a person than one that names nobody.
        score = _combine(support) + (0.001 if lead.suspects else -1.0)
        if score > best[0] or not best[1]:
            best = (score, (lead, *(c for c in support if c is not lead)))
    if not best[1]:
        return _NOBODY
    support = _lead_with_the_closest(best[1])
    culprits = _join(support, hosts)
    others = [s for c in clues for s in (*c.suspects, *c.alternatives) if s not in culprits]
    since = [c.since_ns for c in support if c.since_ns is not None]
    against = [c.text for c in clues if c.suspects and c not in support and c.confidence >= 0.3]
    return Fused(
        what=_describe(support),
        culprits=culprits,
        since_ns=min(since) if since else None,
        confidence=_combine(support),
        alternatives=tuple(dict.fromkeys(others))[:50],
        against=tuple(against[:5]),
        advice=next((c.advice for c in support if c.advice), ""),
    )


def _combine(support: Sequence[Clue]) -> float:
    """How likely it is that not all are wrong; a source that says the same in several clues counts once."""
    by_source: dict[str, float] = {}
    for clue in support:
        by_source[clue.source] = max(by_source.get(clue.source, 0.0), min(clue.confidence, 0.99))
    all_wrong = 1.0
    for confidence in by_source.values():
        all_wrong *= 1.0 - confidence
    return 1.0 - all_wrong


def _agree(one: Clue, other: Clue, hosts: Mapping[str, str]) -> bool:
    if set(one.suspects) & set(other.suspects):
        return True
    places = [{h for s in clue.suspects if (h := host_of(s, hosts))} for clue in (one, other)]
    # Two different ranks of one host are two suspects; a rank and its host, or its host's GPU, are one.
    ranks = [any(s.type == "rank" for s in clue.suspects) for clue in (one, other)]
    return bool(places[0] & places[1]) and not all(ranks)


def _lead_with_the_closest(support: Sequence[Clue]) -> tuple[Clue, ...]:
    """The clue that names fewest ranks comes first: it says most exactly who it was."""
    ranked = [c for c in support if any(s.type == "rank" for s in c.suspects)]
    lead = min(ranked, key=lambda c: (len(c.suspects), -c.confidence)) if ranked else support[0]
    return (lead, *(c for c in support if c is not lead))


def _join(support: Sequence[Clue], hosts: Mapping[str, str]) -> tuple[Suspect, ...]:
    """The lead's suspects, and the hosts, GPUs and program lines that other clues or the rank's place add."""
    joined = dict.fromkeys(support[0].suspects)
    for clue in support[1:]:
        joined.update(dict.fromkeys(s for s in clue.suspects if s.type in ("host", "gpu", "program")))
    for suspect in tuple(joined):
        host = host_of(suspect, hosts)
        if host is not None:
            joined.setdefault(Suspect(type="host", id=host))
    return tuple(joined)


def _describe(support: Sequence[Clue]) -> str:
    """What happened: the log's reason where there is one, beside what the other sources saw."""
    words = [c.what for c in sorted(support, key=lambda c: c.source != "log")]
    return "; ".join(dict.fromkeys(words))
