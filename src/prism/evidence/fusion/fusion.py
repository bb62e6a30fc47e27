"""One verdict from the clues of all sources: every suspect is a candidate, and every source adds a likelihood.

A candidate is a rank that may have stopped or slowed the job, or a host, link or switch without a named rank. A clue
that names it multiplies its odds by the odds that the clue is right, times the number of candidates that a wrong clue
could have named: sources err independently, so two of them seldom name the same candidate by mistake. A source that
names several suspects divides its likelihood among them. A clue about a cause that does not fit what the job shows (an
error that ends processes, while all ranks continue) is only as strong as the evidence that the job did stop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from prism.evidence.fusion.clues import Clue, Effect, Suspect, host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The combined verdict of all sources."""

    what: str
    culprits: tuple[Suspect, ...]
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...]
    against: tuple[str, ...]  # evidence for other candidates
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionConfig:
    """Assumptions for what was not measured."""

    candidates: int = 8  # ranks and hosts of a job of unknown size
    most: float = 0.99  # highest probability that a clue is right
    seen: float = 0.9  # probability that a source which saw the job stop or continue is right
    cleared: float = 0.4  # probability that the counters of a culprit show no fault
    doubted: float = 0.6  # confidence below which no culprit is named for something that the job does not show
    tied: float = 0.5  # of the best candidate's odds: another candidate of the same clue with more is named as well


_NOBODY = Fused(
    what="nothing wrong was found",
    culprits=(),
    since_ns=None,
    confidence=0.0,
    alternatives=(),
    against=(),
    advice="",
)


def fuse(
    clues: Sequence[Clue],
    hosts: Mapping[str, str] | None = None,
    *,
    cleared: Collection[str] = (),
    num_ranks: int = 0,
    config: FusionConfig | None = None,
) -> Fused:
    """The suspects that the clues make most likely.

    `hosts` maps ranks to known hosts, `cleared` holds the hosts whose counters were read and show no fault.
    """
    vote = _Vote(
        clues=tuple(clues),
        placed=hosts or {},
        hosts={**_place_by_clues(clues), **(hosts or {})},
        cleared=frozenset(cleared),
        num_ranks=max(num_ranks, len(hosts or {})),
        config=config or FusionConfig(),
    )
    weighed = vote.weigh()
    odds = {candidate: weight for candidate, (weight, _) in weighed.items()}
    if not clues:
        return _NOBODY
    if not odds:
        said = max(clues, key=lambda c: c.confidence)
        return _conclude((said,), (), said.confidence, vote)
    best = max(odds, key=lambda c: odds[c])
    effect = weighed[best][1]
    about = [c for c in clues if vote.share(c, best)]
    support = _lead_with_the_closest([c for c in about if effect in c.causes] or about)
    tied = [c for c in odds if vote.share(support[0], c) and odds[c] >= vote.config.tied * odds[best]]
    rest = max(1.0 - len(odds) / vote.num_candidates, 0.0)
    confidence = sum(odds[c] for c in tied) / (sum(odds.values()) + rest)
    if effect not in vote.list_shown_effects() and confidence < vote.config.doubted:
        runs = "the job runs on" if effect == "stop" else "the job stopped"
        nobody = _conclude(support, (), 1 - confidence, vote)
        what = f"{runs}, and what was found ({nobody.what}) does not explain that"
        return replace(nobody, what=what, culprits=(), advice="")
    return _conclude(support, tied, confidence, vote)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vote:
    """Clues about one job."""

    clues: tuple[Clue, ...]
    placed: Mapping[str, str]  # hosts by rank, as logs list them for all ranks of a host
    hosts: Mapping[str, str]  # these, and hosts that a clue names together with a rank
    cleared: frozenset[str]
    num_ranks: int
    config: FusionConfig

    @property
    def num_candidates(self) -> int:
        return self.num_ranks or self.config.candidates

    @property
    def unplaced_hosts(self) -> int:
        """Hosts with unknown ranks, if those of other hosts are known: as many as the remaining ranks would fill."""
        if not self.placed:
            return 0
        per_host = Counter(self.placed.values()).most_common(1)[0][1]
        return -(-(self.num_ranks - len(self.placed)) // per_host)

    def weigh(self) -> dict[Suspect, tuple[float, Effect]]:
        """The odds of every candidate against all unnamed ones, for the effect that fits it best."""
        return {candidate: self.weigh_one(candidate) for candidate in self._list_candidates()}

    def weigh_one(self, candidate: Suspect) -> tuple[float, Effect]:
        """The odds of one candidate, and which of the effects that clues blame it for fits best."""
        weights = self._weigh_effects()
        blamed = {effect for c in self.clues if self.share(c, candidate) for effect in c.causes}
        return max((weights[effect] * self._weigh(candidate, effect), effect) for effect in blamed or weights)

    def share(self, clue: Clue, candidate: Suspect) -> float:
        """The probability that a clue means a candidate: directly, or by the host of a rank."""
        if candidate in clue.suspects:
            return 1.0
        if any(s.type == "rank" for s in clue.suspects) and candidate.type == "rank":
            return 0.0  # Two different ranks of one host are two suspects.
        place = host_of(candidate, self.hosts)
        named = {host_of(s, self.hosts) for s in clue.suspects} - {None}
        if place is None and candidate.type == "rank" and named - set(self.hosts.values()):
            return 1 / max(self.unplaced_hosts, 1) if self.unplaced_hosts else 0.0
        return float(place in named)

    def _list_candidates(self) -> list[Suspect]:
        """The named ranks, and named hosts and links without a named rank."""
        named = dict.fromkeys(s for c in self.clues for s in c.suspects)
        ranks = [s for s in named if s.type == "rank"]
        taken = {host_of(r, self.hosts) for r in ranks}
        places = dict.fromkeys(host_of(s, self.hosts) for s in named if s.type in ("host", "gpu"))
        hosts = [Suspect(type="host", id=p) for p in places if p is not None and p not in taken]
        programs = [s for c in self.clues for s in c.suspects if {x.type for x in c.suspects} == {"program"}]
        return [*ranks, *hosts, *(s for s in named if s.type == "link"), *dict.fromkeys(programs)]

    def list_shown_effects(self) -> set[Effect]:
        """The effect that most sources which saw the job report; both effects if they are equally many."""
        return {effect for effect, weight in self._weigh_effects().items() if weight == 1.0}

    def _weigh_effects(self) -> dict[Effect, float]:
        """The likelihoods that the job stopped and that it continued, relative to the larger one."""
        log = dict.fromkeys(get_args(Effect), 0.0)
        seen = self.config.seen
        for effect in log:
            showed = {c.source for c in self.clues if c.shows == effect}
            log[effect] = len(showed) * math.log(seen / (1 - seen))
        most = max(log.values())
        return {effect: math.exp(value - most) for effect, value in log.items()}

    def _weigh(self, candidate: Suspect, effect: Effect) -> float:
        """Prior times the likelihood ratios of all sources."""
        odds = 1.0 / self._count(candidate.type == "rank")
        for source in dict.fromkeys(c.source for c in self.clues):
            own = [c for c in self.clues if c.source == source and c.suspects and effect in c.causes]
            about = [c for c in own if self.share(c, candidate)]
            if about:
                others = [c for c in own if c not in about and not _overlap(c, about)]
                clue = max(about, key=self._odds_of)
                ratio = self._odds_of(clue) / (1 + sum(self._odds_of(c) for c in _distinct(others)))
                ratio *= self._count(any(s.type == "rank" for s in clue.suspects)) * self.share(clue, candidate)
                odds *= max(ratio, 1.0)  # A vague source that names a candidate is no evidence for others.
        # A job is often stopped by its program, which counters do not show.
        fine = effect == "slow" and host_of(candidate, self.hosts) in self.cleared
        return odds * (self.config.cleared if fine else 1.0)

    def _odds_of(self, clue: Clue) -> float:
        """The probability that the clue is right, for each suspect that it may mean."""
        sure = min(clue.confidence, self.config.most)
        return sure / (1 - sure) / (len(clue.suspects) if clue.one_of else 1)

    def _count(self, ranks: bool) -> int:
        """How many ranks, or hosts, could have been named."""
        if not self.placed:
            return self.num_candidates if ranks else self.config.candidates
        return self.num_ranks if ranks else len(set(self.placed.values())) + self.unplaced_hosts


def _place_by_clues(clues: Iterable[Clue]) -> dict[str, str]:
    """Hosts of ranks, from clues that name one rank and its host."""
    pairs = [([s.id for s in c.suspects if s.type == kind] for kind in ("rank", "host")) for c in clues]
    return {ranks[0]: hosts[0] for ranks, hosts in pairs if len(ranks) == len(hosts) == 1}


def _overlap(clue: Clue, others: Iterable[Clue]) -> bool:
    return any(set(clue.suspects) & set(other.suspects) for other in others)


def _distinct(clues: Sequence[Clue]) -> list[Clue]:
    """The clue with the highest confidence for each set of suspects."""
    kept: list[Clue] = []
    for clue in sorted(clues, key=lambda c: -c.confidence):
        if not _overlap(clue, kept):
            kept.append(clue)
    return kept


def _conclude(support: Sequence[Clue], tied: Sequence[Suspect], confidence: float, vote: _Vote) -> Fused:
    culprits = _join(support, tied, vote)
    others = [s for c in vote.clues for s in (*c.suspects, *c.alternatives) if s not in culprits]
    since = [c.since_ns for c in support if c.since_ns is not None]
    against = [c.text for c in vote.clues if c.suspects and c not in support and c.confidence >= 0.3]
    return Fused(
        what=_describe(support),
        culprits=culprits,
        since_ns=min(since) if since else None,
        confidence=confidence,
        alternatives=tuple(dict.fromkeys(others))[:50],
        against=tuple(against[:5]),
        advice=next((c.advice for c in support if c.advice), ""),
    )


def _lead_with_the_closest(support: Sequence[Clue]) -> tuple[Clue, ...]:
    """The most specific clue first: the one that names the fewest ranks, or else the fewest suspects."""
    ranked = [c for c in support if any(s.type == "rank" for s in c.suspects)]
    lead = min(ranked or support, key=lambda c: (len(c.suspects), -c.confidence))
    return (lead, *(c for c in support if c is not lead))


def _join(support: Sequence[Clue], tied: Sequence[Suspect], vote: _Vote) -> tuple[Suspect, ...]:
    """The equally likely suspects of the leading clue, with hosts, GPUs and program lines from other clues."""
    places = {h for c in tied if (h := host_of(c, vote.hosts))}
    if not places and any(c.type == "rank" for c in tied):
        # The rank's host is unknown: it is the host that the other sources name, if no other ranks run there.
        unplaced = {h for c in support for s in c.suspects if (h := host_of(s, vote.hosts))} - set(vote.hosts.values())
        odds = {h: vote.weigh_one(Suspect(type="host", id=h))[0] for h in unplaced}
        places = {h for h in unplaced if odds[h] > max(1.0, vote.config.tied * max(odds.values()))}

    def near(suspect: Suspect) -> bool:
        return suspect.type == "program" or host_of(suspect, vote.hosts) in places

    joined = dict.fromkeys(s for s in support[0].suspects if s in tied or (s.type != "rank" and near(s)))
    for clue in support[1:]:
        joined.update(dict.fromkeys(s for s in clue.suspects if s.type in ("host", "gpu", "program") and near(s)))
    for suspect in tuple(joined):
        host = host_of(suspect, vote.hosts)
        if host is not None:
            joined.setdefault(Suspect(type="host", id=host))
    return tuple(joined)


def _describe(support: Sequence[Clue]) -> str:
    """What happened: the reason from the log if there is one, and what the other sources saw."""
    words = [c.what for c in sorted(support, key=lambda c: c.source != "log")]
    return "; ".join(dict.fromkeys(words))
