"""The two-round test of Acme and DLRover: pairs first, then every suspect with a host that passed. The peer to beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from prism.recover.isolate.grading import PASSED
from prism.recover.isolate.search import Round, pack, ring_pairs

RunRound = Callable[[Round], NDArray[np.int8]]


def find_by_two_rounds(num_hosts: int, run: RunRound, order: NDArray[np.int64] | None = None) -> tuple[set[int], int]:
    """Condemned hosts and the number of tests."""
    numbers = np.arange(num_hosts) if order is None else order
    pairs = [tuple(pair) for pair in numbers[ring_pairs(num_hosts, odd=False)].tolist()]
    if num_hosts % 2:
        pairs[-1] = (*pairs[-1], int(numbers[-1]))  # a world of three, as in the paper
    tests = pack(pairs)
    outcomes = run(tests)
    suspects = sorted({h for row in tests[outcomes != PASSED].tolist() for h in row if h >= 0})
    good = [h for row in tests[outcomes == PASSED].tolist() for h in row if h >= 0]
    second = list(zip(suspects, good, strict=False))  # suspects beyond the number of good hosts stay untested
    if not second:
        return set(), len(tests)
    results = run(pack(second)).tolist()
    condemned = {suspect for (suspect, _), result in zip(second, results, strict=True) if result != PASSED}
    return condemned, len(tests) + len(second)


def repeat_two_rounds(num_hosts: int, run: RunRound, budget: int, seed: int) -> tuple[set[int], int]:
    """The same again with other pairs until the budget of tests is used; condemned in any repetition."""
    random = np.random.default_rng(seed)
    condemned: set[int] = set()
    used = 0
    while used < budget:
        order = np.arange(num_hosts) if used == 0 else random.permutation(num_hosts)
        found, tests = find_by_two_rounds(num_hosts, run, order)
        condemned |= found
        used += tests
    return condemned, used
