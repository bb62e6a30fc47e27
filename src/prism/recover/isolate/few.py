"""The search among few hosts: every pair is tested repeatedly, and every simple explanation gets a probability.

Among hundreds of hosts a suspect always finds a witness it has not met. Among five it soon has met them all, and only
the whole pattern of passes and failures tells a host that fails at times from a link, so here the chance of that
pattern is computed for every explanation with at most two faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from prism.recover.isolate.grading import FEW_HOSTS, MIN_PEERS, PASSED, SLOW
from prism.recover.isolate.report import BadLink, IsolationReport, Verdict
from prism.recover.isolate.search import Round, SearchConfig

# How often a faulty part fails a test; the truth is nearest to one of them.
_RATES = (0.15, 0.3, 0.6, 1.0)
_PRIOR_HOST, _PRIOR_LINK = 0.02, 0.005  # of any one host or link: a run has failed already, or no one would look
_SURE = 0.999
_POSSIBLE = 0.01
_MAX_FAULTS = 2

Part = tuple[int, ...]  # a host (h,) or a link (a, b)


class PairSearch:
    """One search over two to eight hosts; the same three methods as `Search`."""

    def __init__(self, num_hosts: int, config: SearchConfig | None = None) -> None:
        assert 2 <= num_hosts <= FEW_HOSTS
        self.num_hosts = num_hosts
        self.config = config or SearchConfig()
        self._schedule = self._riskiest_first(plan_pairs(num_hosts))
        self._passed = np.zeros((num_hosts, num_hosts), dtype=np.int64)
        self._failed = np.zeros((num_hosts, num_hosts), dtype=np.int64)
        self._slow = np.zeros((num_hosts, num_hosts), dtype=np.int64)
        self._parts: list[Part] = [(h,) for h in range(num_hosts)] + list(combinations(range(num_hosts), 2))
        self._explanations = list_explanations(tuple(self._parts), self.config.model.flake_rate)
        self.beliefs: dict[Part, float] = dict.fromkeys(self._parts, 0.0)  # of being bad
        self.num_tests = 0
        self.num_rounds = 0

    def next_round(self) -> Round | None:
        """Tests that can run in parallel, or None if every host is decided or cannot be."""
        turns = len(self._schedule)
        # As many tests per host as in the search of a large fleet, so that an intermittent fault is seen.
        least = -(-(2 + self.config.group_rounds) * turns // (self.num_hosts - 1))
        hopeless = self.num_hosts == 2 and self.num_rounds >= min(least, 4)
        decided = self.num_rounds >= max(least, turns) and not self._open()
        if decided or hopeless or self.num_rounds >= self.config.max_rounds:
            return None
        if self.num_rounds < least:
            return self._schedule[self.num_rounds % turns]
        return max(self._schedule, key=self._worth)

    def _riskiest_first(self, schedule: list[Round]) -> list[Round]:
        """The most likely culprit is tested first with the hosts that are most likely good."""
        priors = self.config.model.priors
        if not priors:
            return schedule
        worst = max(range(self.num_hosts), key=lambda h: priors[h])

        def partner_prior(tests: Round) -> float:
            return min((priors[h] for pair in tests.tolist() if worst in pair for h in pair if h != worst), default=1.0)

        return sorted(schedule, key=partner_prior)

    def _worth(self, tests: Round) -> float:
        """How informative a round is: it tests undecided parts, preferably those that were tested least."""
        done = self._passed + self._failed
        open_ones = self._open()
        pairs = [(min(pair), max(pair)) for pair in tests.tolist()]
        return sum(1.0 / (1 + int(done[pair])) for pair in pairs for part in open_ones if set(part) <= set(pair))

    def add(self, tests: Round, outcomes: NDArray[np.int8]) -> None:
        """Take the outcomes of a round."""
        self.num_rounds += 1
        self.num_tests += len(tests)
        for (first, second), outcome in zip(tests.tolist(), outcomes.tolist(), strict=True):
            pair = (min(first, second), max(first, second))
            # Without peers to compare with, a pass does not show that a host is not slow.
            self._passed[pair] += outcome == PASSED and self.num_tests > MIN_PEERS
            self._failed[pair] += outcome != PASSED
            self._slow[pair] += outcome == SLOW
        self.beliefs = self._weigh(self._passed, self._failed)

    def report(self, names: Sequence[str]) -> IsolationReport:
        """The result for every host, and further tests if it is not clear."""
        bad = [part for part, belief in self.beliefs.items() if belief >= _SURE]
        condemned = [part[0] for part in bad if len(part) == 1]
        open_ones = self._open()
        suspected = sorted({h for part in open_ones for h in part} - set(condemned))
        slow = [h for h in condemned if 2 * self._of(self._slow, h) > self._of(self._failed, h)]
        links = [part for part in bad if len(part) == 2]
        return IsolationReport(
            trusted=tuple(names[h] for h in range(self.num_hosts) if h not in {*condemned, *suspected}),
            suspected=tuple(names[h] for h in suspected),
            condemned=tuple(names[h] for h in condemned),
            slow=tuple(names[h] for h in slow),
            bad_links=tuple(BadLink(first=names[a], second=names[b]) for a, b in links),
            num_tests=self.num_tests,
            num_rounds=self.num_rounds,
            evidence={names[h]: self._evidence(h) for h in (*condemned, *suspected)},
            advice=_advise(open_ones, names),
        )

    def by_failures(self) -> dict[Part, Verdict]:
        """How each host and each link stands if every slow test is taken for a passed one."""
        beliefs = self._weigh(self._passed + self._slow, self._failed - self._slow)
        return {p: "bad" if b >= _SURE else "unclear" if b >= _POSSIBLE else "good" for p, b in beliefs.items()}

    def _weigh(self, passed: NDArray[np.int64], failed: NDArray[np.int64]) -> dict[Part, float]:
        """The probability of every part being bad, over all explanations and rates."""
        upper = np.triu_indices(self.num_hosts, 1)
        known = self._explanations
        scores = known.log_prior + known.log_pass @ passed[upper] + known.log_fail @ failed[upper]
        weights = np.exp(scores - scores.max())
        beliefs = weights @ known.members / weights.sum()
        return dict(zip(self._parts, beliefs.tolist(), strict=True))

    def _open(self) -> list[Part]:
        """Parts that are neither certainly good nor certainly bad, the most suspect first."""
        if not self._failed.any():
            return []
        limit = 1.0 if self.num_hosts == 2 else _SURE
        likely = [part for part, belief in self.beliefs.items() if _POSSIBLE <= belief < limit]
        return sorted(likely, key=lambda part: -self.beliefs[part])

    def _evidence(self, host: int) -> str:
        counts = f"failed {self._of(self._failed, host)} tests ({self._of(self._slow, host)} slow)"
        return f"{counts}, passed {self._of(self._passed, host)}, bad with probability {self.beliefs[(host,)]:.4f}"

    def _of(self, counts: NDArray[np.int64], host: int) -> int:
        return int(counts[host].sum() + counts[:, host].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanations:
    """Every set of at most two bad parts, at every rate: one row each."""

    members: NDArray[np.float64]  # which parts are bad
    log_prior: NDArray[np.float64]
    log_pass: NDArray[np.float64]  # of a test of each pair
    log_fail: NDArray[np.float64]


@lru_cache(maxsize=FEW_HOSTS)
def list_explanations(parts: tuple[Part, ...], flake_rate: float) -> Explanations:
    """The possible explanations, and how likely each pair passes under them. Two bad links at once are too rare."""
    links = [part for part in parts if len(part) == 2]
    touches = np.array([[float(set(part) <= set(link)) for link in links] for part in parts])
    members, priors, rows = [], [], []
    for count in range(_MAX_FAULTS + 1):
        for chosen in combinations(range(len(parts)), count):
            if count == 2 and len(parts[chosen[0]]) == 2:
                continue
            prior = np.prod([_PRIOR_HOST if len(parts[c]) == 1 else _PRIOR_LINK for c in chosen])
            for rates in product(_RATES, repeat=count):
                members.append(np.isin(np.arange(len(parts)), chosen))
                priors.append(prior / len(_RATES) ** count)
                rows.append(np.prod([1.0 - rate * touches[c] for rate, c in zip(rates, chosen, strict=True)], axis=0))
    passing = (1.0 - flake_rate) * np.array([np.broadcast_to(row, len(links)) for row in rows])
    return Explanations(
        members=np.array(members, dtype=np.float64),
        log_prior=np.log(priors),
        log_pass=np.log(np.maximum(passing, 1e-9)),
        log_fail=np.log1p(-passing),
    )


def plan_pairs(num_hosts: int) -> list[Round]:
    """Every pair once, in rounds in which no host has two tests: the circle of a chess tournament."""
    seats = list(range(num_hosts)) + ([-1] if num_hosts % 2 else [])
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = [(a, b) for a, b in zip(seats[:half], reversed(seats[half:]), strict=True) if -1 not in (a, b)]
        rounds.append(np.array(pairs, dtype=np.int64))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _advise(open_ones: Sequence[Part], names: Sequence[str]) -> str:
    if not open_ones:
        return ""
    if len(names) == 2:
        return "two hosts cannot be told apart: add a third, known to be good, with --hosts"
    told = ", or ".join(_name(part, names) for part in open_ones[:4])
    return f"not clear yet: {told}; test again with more --rounds, or with one more good host"


def _name(part: Part, names: Sequence[str]) -> str:
    return names[part[0]] if len(part) == 1 else f"the link {names[part[0]]} - {names[part[1]]}"
