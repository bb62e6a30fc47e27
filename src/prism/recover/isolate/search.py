"""The search for bad hosts among many: results in, the next round of tests out. Runs no test itself.

1. Rounds of pairs along the job's ring: every link that the job's collectives use is tried once.
2. Rounds of random groups: one all-gather tries many hosts, and an intermittent fault gets several chances to show.
3. Beside them, every suspect is paired with the most trusted hosts, a new one each time, until it is clear.
4. A pair that failed although both its hosts are clear is tried again: then it is their link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prism.recover.isolate.beliefs import FailureModel, find_beliefs
from prism.recover.isolate.grading import PASSED, SLOW
from prism.recover.isolate.report import UNCLEAR, BadLink, IsolationReport, Verdict

_LIKELY = 0.5
Round = NDArray[np.int64]  # one test per row: its members, filled up with -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """How long to look and how sure to be."""

    model: FailureModel = field(default_factory=FailureModel)
    group_size: int = 8
    group_rounds: int = 12  # with the ring's two, an intermittent fault of 30 % stays unseen in 0.7 % of cases
    suspect_at: float = 0.003  # of a host that failed at least once
    clear_at: float = 0.001
    condemn_at: float = 0.99
    condemn_partners: int = 3  # different partners it failed with: one could be bad itself, one could be the link
    link_retests: int = 3
    max_rounds: int = 80


class Search:
    """The state of one search over hosts numbered 0..n-1 in the order of the job's ring."""

    def __init__(self, num_hosts: int, config: SearchConfig | None = None, seed: int = 0) -> None:
        self.num_hosts = num_hosts
        self.config = config or SearchConfig()
        self._random = np.random.default_rng(seed)
        self._passes = np.zeros(num_hosts, dtype=np.int64)
        self._failed: list[tuple[int, ...]] = []
        self._slow: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._broken: list[tuple[int, ...]] = []  # those of the failed that were not only slow
        self._retests: Counter[tuple[int, int]] = Counter()
        self._bad_links: set[tuple[int, int]] = set()
        self._fine_links: set[tuple[int, int]] = set()
        self._open: set[int] = set()  # suspects not yet decided
        self._condemned: set[int] = set()
        self.beliefs = find_beliefs(self._passes, [], self.config.model)
        self.num_tests = 0
        self.num_rounds = 0

    def next_round(self) -> Round | None:
        """Tests that can run side by side, or None when all is decided."""
        if self.num_rounds >= self.config.max_rounds:
            return None
        if self.num_rounds < 2:
            return ring_pairs(self.num_hosts, odd=self.num_rounds == 1)
        rows = self._suspect_pairs()
        busy = {host for pair in rows for host in pair}
        if self.num_rounds == 2 and self.num_hosts % 2 and not busy & {0, self.num_hosts - 1}:
            rows.append(
                (self.num_hosts - 1, 0)
            )  # with an odd number two rounds leave out the link that closes the ring
            busy |= {0, self.num_hosts - 1}
        rows += self._link_pairs(busy)
        busy |= {host for pair in rows for host in pair}
        if self.num_rounds < 2 + self.config.group_rounds:
            rows += self._groups(busy)
        return pack(rows) if rows else None

    def add(self, tests: Round, outcomes: NDArray[np.int8]) -> None:
        """Take the outcomes of a round."""
        self.num_rounds += 1
        self.num_tests += len(tests)
        passed = tests[outcomes == PASSED]
        np.add.at(self._passes, passed[passed >= 0], 1)
        for number in np.flatnonzero(outcomes != PASSED).tolist():
            self._note_failure(_members(tests[number]), int(outcomes[number]))
        if self._retests:
            pairs = {_members(row) for row in passed if np.count_nonzero(row >= 0) == 2}
            self._fine_links |= {pair for pair in self._retests if pair in pairs or pair[::-1] in pairs}
        self._decide()

    def report(self, names: Sequence[str]) -> IsolationReport:
        """The result for every host so far."""
        condemned = sorted(self._condemned)
        suspected = sorted(self._open - self._condemned)
        out = {*condemned, *suspected}
        slow = [h for h in condemned if 2 * self._slow[h] > self._failures[h]]
        evidence = {
            names[h]: f"failed {self._failures[h]} tests ({self._slow[h]} slow), passed {self._passes[h]}, "
            f"bad with probability {self.beliefs[h]:.4f}"
            for h in sorted(out)
        }
        return IsolationReport(
            trusted=tuple(names[h] for h in range(self.num_hosts) if h not in out),
            suspected=tuple(names[h] for h in suspected),
            condemned=tuple(names[h] for h in condemned),
            slow=tuple(names[h] for h in slow),
            bad_links=tuple(BadLink(first=names[a], second=names[b]) for a, b in sorted(self._bad_links)),
            num_tests=self.num_tests,
            num_rounds=self.num_rounds,
            evidence=evidence,
            advice=UNCLEAR if suspected else "",
        )

    def by_failures(self) -> dict[tuple[int, ...], Verdict]:
        """How each host, and each link that is told to be bad, stands if every slow test is taken for a passed one."""
        config, hosts = self.config, range(self.num_hosts)
        slow = np.array([self._slow[host] for host in hosts])
        usable = [s for s in self._broken if s not in self._bad_links]
        before = find_beliefs(np.zeros_like(self._passes), [], config.model)
        after = find_beliefs(self._passes + slow, usable, config.model)
        found: dict[tuple[int, ...], Verdict] = {
            (h,): "bad" if after[h] >= config.condemn_at else "unclear" if after[h] > before[h] else "good"
            for h in hosts
        }
        times = Counter(self._broken)
        return found | {link: "bad" if times[link] >= config.link_retests else "good" for link in self._bad_links}

    # -- deciding

    def _note_failure(self, members: tuple[int, ...], outcome: int) -> None:
        self._failed.append(tuple(sorted(members)))
        if outcome != SLOW:
            self._broken.append(tuple(sorted(members)))
        for host in members:
            self._failures[host] += 1
            self._slow[host] += outcome == SLOW
        if len(members) == 2 and (pair := (min(members), max(members))) in self._retests:
            self._retests[pair] += 1
            if self._retests[pair] >= self.config.link_retests:
                self._bad_links.add(pair)

    def _decide(self) -> None:
        """Judge all results again: which hosts are suspected, cleared or condemned."""
        config = self.config
        usable = [s for s in self._failed if len(s) != 2 or (s[0], s[1]) not in self._bad_links]
        self.beliefs = find_beliefs(self._passes, usable, config.model)
        self._open |= {h for h in self._failures if self.beliefs[h] >= config.suspect_at}
        self._open = {h for h in self._open if self.beliefs[h] > config.clear_at}
        partners: dict[int, set[int]] = {}
        for members in usable:
            if len(members) == 2:
                for host, partner in (members, members[::-1]):
                    if self.beliefs[partner] < _LIKELY:
                        partners.setdefault(host, set()).add(partner)
        self._condemned = {
            h
            for h in self._open
            if self.beliefs[h] >= config.condemn_at and len(partners.get(h, ())) >= config.condemn_partners
        }

    # -- choosing tests

    def _suspect_pairs(self) -> list[tuple[int, ...]]:
        """Every open suspect with a witness of its own: trusted, and not one it failed with, where possible."""
        suspects = sorted(self._open - self._condemned, key=lambda h: -self.beliefs[h])
        free = [h for h in self._by_trust() if h not in self._condemned]
        failed_with: dict[int, set[int]] = {}
        for members in self._failed:
            for host in members:
                failed_with.setdefault(host, set()).update(members)
        pairs: list[tuple[int, ...]] = []
        # Suspects with an untested partner go first; repeating a pair shows little.
        for new_only in (True, False):
            for suspect in suspects:
                if suspect not in free:
                    continue  # it has a test in this round already
                near = [h for h in free[: 4 * len(suspects) + 16] if h != suspect]
                known = failed_with.get(suspect, set()) if new_only else set()
                witness = next((h for h in near if h not in known), None)
                if witness is not None:
                    free.remove(suspect)
                    free.remove(witness)
                    pairs.append((suspect, witness))
        return pairs

    def _link_pairs(self, busy: set[int]) -> list[tuple[int, ...]]:
        """Pairs that failed although both hosts are clear now."""
        pairs: list[tuple[int, ...]] = []
        for members in dict.fromkeys(self._failed):
            if len(members) != 2 or busy & set(members):
                continue
            pair = (members[0], members[1])
            if pair in self._bad_links or pair in self._fine_links:
                continue
            if not self._open & set(pair):
                self._retests.setdefault(pair, 1)
                pairs.append(pair)
                busy |= set(pair)
        return pairs

    def _groups(self, busy: set[int]) -> list[tuple[int, ...]]:
        """The others in random groups; known suspects would only spoil them."""
        taken = np.zeros(self.num_hosts, dtype=np.bool_)
        taken[list(busy | self._open)] = True
        free = np.flatnonzero(~taken)
        if len(free) < 2:
            return []
        self._random.shuffle(free)
        parts = np.array_split(free, max(1, len(free) // min(self.config.group_size, self.num_hosts // 4)))
        return [tuple(part.tolist()) for part in parts]

    def _by_trust(self) -> list[int]:
        """Hosts, the most trusted first; equals in random order, so that no single host is in every test."""
        order = np.lexsort((self._random.random(self.num_hosts), self.beliefs))
        return [int(h) for h in order]


def ring_pairs(num_hosts: int, *, odd: bool) -> Round:
    """Every second link of the ring; with an odd number of hosts one sits out, another one each time."""
    order = np.roll(np.arange(num_hosts), -1) if odd else np.arange(num_hosts)
    return order[: num_hosts - num_hosts % 2].reshape(-1, 2)


def _members(row: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(row[row >= 0].tolist())


def pack(rows: Sequence[tuple[int, ...]]) -> Round:
    """Rows of different length as one array."""
    width = max(map(len, rows))
    return np.array([row + (-1,) * (width - len(row)) for row in rows], dtype=np.int64)
