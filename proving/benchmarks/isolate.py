"""Finding bad hosts in simulated fleets: Prism's search beside the two-round test, alone and at an equal budget.

    python proving/benchmarks/isolate.py [--trials 10000]

Every trial draws one to four faults of one kind. The two-round test (Acme, DLRover) is run as published, and then
again and again with other pairs until it has used as many tests as the search did. A test of good hosts fails for no
reason once in 10,000; measured bandwidth has 5 % noise; an intermittent fault shows in 30 % of tests; a slow host
reaches 60 % of its peers; a bad link lies between neighbours of the job's ring.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from isolate_fleet import FaultKind, Faults, Fleet, draw_faults
from isolate_two_rounds import find_by_two_rounds, repeat_two_rounds
from machine import describe_machine
from prism.recover.isolate.search import Search

SIZES = (256, 512, 1024, 2048, 4096)
# Shares of the trials: the small fleets, where a mistake is most likely, get most.
SHARES = {256: 0.60, 512: 0.20, 1024: 0.12, 2048: 0.05, 4096: 0.03}
KINDS: tuple[FaultKind, ...] = ("permanent", "intermittent", "link", "slow")
GOALS = {"permanent": 0.99, "intermittent": 0.95}


@dataclass(slots=True)
class Score:
    """Sums over trials of one method."""

    faults: int = 0
    found: int = 0
    wrong_hosts: int = 0
    wrong_links: int = 0
    tests: int = 0

    def add(self, true: set[int], condemned: set[int], tests: int) -> None:
        """Count hosts."""
        self.faults += len(true)
        self.found += len(true & condemned)
        self.wrong_hosts += len(condemned - true)
        self.tests += tests

    def add_links(self, true: set[tuple[int, int]], found: set[tuple[int, int]]) -> None:
        """Count links."""
        self.faults += len(true)
        self.found += len(true & found)
        self.wrong_links += len(found - true)

    @property
    def recall(self) -> float:
        """Share of faults that were found."""
        return self.found / max(1, self.faults)


def run_trial(kind: FaultKind, num_hosts: int, seed: int, scores: tuple[Score, Score, Score]) -> None:
    """One fleet, three methods, each with luck of its own."""
    random = np.random.default_rng(seed)
    faults = draw_faults(kind, num_hosts, int(random.integers(1, 5)), random)
    bad = {int(h) for h in np.flatnonzero((faults.fail_rate > 0) | (faults.speed < 1))}
    ours, once, equal = scores
    search = run_search(num_hosts, faults, seed)
    report = search.report([str(h) for h in range(num_hosts)])
    ours.add(bad, {int(h) for h in report.condemned}, search.num_tests)
    ours.add_links(set(faults.links), {(int(b.first), int(b.second)) for b in report.bad_links})
    once.add(bad, *find_by_two_rounds(num_hosts, Fleet(faults, np.random.default_rng([seed, 2])).run))
    fleet = Fleet(faults, np.random.default_rng([seed, 3]))
    equal.add(bad, *repeat_two_rounds(num_hosts, fleet.run, search.num_tests, seed))
    for score in (once, equal):
        score.add_links(set(faults.links), set())


def run_search(num_hosts: int, faults: Faults, seed: int) -> Search:
    """Prism's search against a fleet."""
    fleet = Fleet(faults, np.random.default_rng([seed, 1]))
    search = Search(num_hosts, seed=seed)
    while (tests := search.next_round()) is not None:
        search.add(tests, fleet.run(tests))
    return search


def main() -> None:
    """Run all kinds and sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    options = parser.parse_args()
    print(describe_machine())
    peers = f"{'two rounds':^23}      {'two rounds, equal budget':^24}"
    print(f"{'fault':13} {'hosts':>5} {'trials':>6}   {'Prism':^29}   {peers}")
    head = f"{'recall':>8} {'wrong':>6} {'tests':>7}"
    print(f"{'':28}{head} {'links':>6}   {head}      {head}")
    start, trials, wrong = time.perf_counter(), 0, 0
    recalls: dict[str, Score] = {kind: Score() for kind in KINDS}
    for kind in KINDS:
        for num_hosts in SIZES:
            count = max(4, round(options.trials * SHARES[num_hosts] / len(KINDS)))
            scores = (Score(), Score(), Score())
            for trial in range(count):
                run_trial(kind, num_hosts, num_hosts * 100_003 + trial, scores)
            trials += count
            wrong += scores[0].wrong_hosts
            recalls[kind].found += scores[0].found
            recalls[kind].faults += scores[0].faults
            cells = [f"{s.recall:8.2%} {s.wrong_hosts:6} {s.tests / count:7.0f}" for s in scores]
            links = f"{scores[0].wrong_links:6}"
            print(f"{kind:13} {num_hosts:5} {count:6}   {cells[0]} {links}   {cells[1]}      {cells[2]}", flush=True)
    print(
        f"\n{trials:,} trials in {time.perf_counter() - start:.0f} s; "
        "'wrong' are healthy hosts condemned, 'links' good links blamed"
    )
    for kind, goal in GOALS.items():
        recall = recalls[kind].recall
        print(f"  recall {kind} {recall:.2%}, goal {goal:.0%}: {'yes' if recall >= goal else 'NO'}")
    print(f"  healthy hosts condemned by the search: {wrong}, goal 0: {'yes' if wrong == 0 else 'NO'}")


if __name__ == "__main__":
    main()
