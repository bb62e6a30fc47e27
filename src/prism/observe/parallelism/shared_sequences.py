"""Shared sequences: ranks of a host that share a sequence begin to send their gradients together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from prism.observe import levels
from prism.observe.parallelism.connections import BOUND_SCATTER, Connection, ends_as_one, measure_bond

_BOUND = levels.SHARE_MINOR  # of how far ranks of other hosts scatter, which share nothing with them
_SILENT = levels.SHARE_MINOR  # of a step before gradients: what is sent layer by layer does not tell when its rank came
_LOOSE = levels.ONE_PER_MILLE  # of the silence: those who share a sequence come closer together whatever the others do
_ALIKE = levels.RATIO_FAR  # times the scatter of those who surely share one
_FLOOR_NS = levels.CLOCK_TOLERANCE_NS
_MOST_CONNECTIONS = levels.MIN_EVENTS  # of a group and host that are compared with another host's
_BLURRED = levels.ONE_PER_MILLE  # of the silence: sampling that moves starts by more hides who is bound to whom

Groups = list[list[Connection]]


def count_in_step(places: list[Groups], period_ns: float, sharp_ns: float) -> int:
    """Connections of one group and host that begin as one; `places` are the groups of some hosts, in order of NICs.

    Ranks that hand on a sequence in a ring come to the end of a step together. Replicas come when they please, as far
    apart on one host as on two.
    """
    sizes = {len(group) for groups in places for group in groups}
    if len(sizes) != 1 or sizes == {1} or not all(_tells(g[0], period_ns) for groups in places for g in groups):
        return 1
    size, silence = sizes.pop(), places[0][0][0].usual_silence
    free = [float(np.median(told)) for pair in pairwise(places) if (told := _scatter_between(*pair, sharp_ns))]
    if not free:
        return 1
    if min(free) < BOUND_SCATTER * silence:
        return size  # Transfers that begin when all have arrived do not tell who is bound to whom: all may be.
    # A host that is slow at times scatters against all others, so the least counts.
    limit, bound = min(_BOUND * min(free), _LOOSE * silence), 1
    for block in (n for n in range(2, size + 1) if size % n == 0):
        if block % bound:
            continue
        apart = [one for groups in places for group in groups for one in _scatter_within(group, block, bound)]
        usual = float(np.median(apart)) if apart else np.inf
        if usual > limit:
            break
        # Those who share a sequence are all about as close to each other.
        limit, bound = min(limit, max(_ALIKE * usual, _FLOOR_NS)), block
    return bound


def _tells(connection: Connection, period_ns: float) -> bool:
    """Whether a connection's messages follow a silence that is long beside a step and beside sampling noise."""
    if not len(connection.fresh):
        return False
    return (
        connection.usual_silence > _SILENT * period_ns and connection.fresh_noise < _BLURRED * connection.usual_silence
    )


def _scatter_within(group: list[Connection], block: int, smaller: int) -> list[float]:
    """How far connections of one block scatter that are not of one smaller block; sequences are shared side by side."""
    pairs = ((i, k) for i in range(len(group)) for k in range(i) if i // block == k // block)
    bonds = (measure_bond(group[i], group[k]) for i, k in pairs if i // smaller != k // smaller)
    return [bond.scatter_ns for bond in bonds if bond is not None]


def _scatter_between(here: Groups, there: Groups, sharp_ns: float) -> list[float]:
    """How far connections of one group scatter that leave other hosts."""
    found = []
    for group in here:
        other = next((g for g in there if ends_as_one(group[0], g[0], sharp_ns)), [])
        pairs = ((a, b) for a in group[:_MOST_CONNECTIONS] for b in other[:_MOST_CONNECTIONS])
        found += [bond.scatter_ns for a, b in pairs if (bond := measure_bond(a, b)) is not None]
    return found
