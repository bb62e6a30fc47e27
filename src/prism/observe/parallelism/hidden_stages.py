"""Hidden stages: parts of a pipeline inside a host that are not visible, between the ranks it enters and leaves by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Links = Mapping[int, set[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStages:
    """One host: the endpoints that a pipeline enters and leaves it by, and the stages it holds."""

    entered: frozenset[int]
    left: frozenset[int]
    stages: int


def find_hidden_stages(
    forward: Links, backward: Links, host: Ints, ranks_of_host: Mapping[int, int]
) -> list[HiddenStages]:
    """The hosts of a pipeline, where it enters and leaves each by other ranks; none where any rank does both."""
    if set(forward) & set(backward):
        return []
    entered: dict[int, set[int]] = {}
    left: dict[int, set[int]] = {}
    for ends, table in ((backward, entered), (forward, left)):
        for endpoint in ends:
            table.setdefault(int(host[endpoint]), set()).add(endpoint)
    if not set(entered) & set(left):
        return []
    return [
        HiddenStages(
            entered=frozenset(entered.get(h, ())),
            left=frozenset(left.get(h, ())),
            stages=_count_stages(len(entered.get(h, ())), len(left.get(h, ())), ranks_of_host.get(h, 0)),
        )
        for h in sorted(set(entered) | set(left))
    ]


def _count_stages(entered: int, left: int, ranks: int) -> int:
    """As many as its ranks make, where each stage has as many of them as the ones that are seen."""
    seen = (entered > 0) + (left > 0)
    each = max(entered, left)
    return max(seen, ranks // each) if ranks % each == 0 else seen


def number_through(
    hidden_stages: list[HiddenStages], forward: Links, first_sent: Mapping[int, float]
) -> dict[int, int]:
    """The stage of every endpoint, counted through the hosts; `first_sent` tells where a ring of hosts begins."""
    into = {e: p for p in hidden_stages for e in p.entered}
    # A host that nothing enters begins a pipeline; the others are in rings, which begin with the first to send.
    waiting = sorted(
        hidden_stages, key=lambda p: (bool(p.entered), min((first_sent.get(e, np.inf) for e in p.left), default=np.inf))
    )
    stage: dict[int, int] = {}
    for begin in waiting:
        here = [(begin, 0)]
        while here:
            hidden, first = here.pop()
            if (hidden.entered | hidden.left) & stage.keys():
                continue
            stage |= dict.fromkeys(hidden.entered, first)
            stage |= dict.fromkeys(hidden.left, first + hidden.stages - 1)
            after = {id(into[b]): into[b] for a in sorted(hidden.left) for b in sorted(forward[a])}
            here += [(onward, first + hidden.stages) for onward in after.values()]
    return stage


def pair_ends(hidden_stages: list[HiddenStages]) -> dict[int, int]:
    """For each rank that a pipeline leaves a host by the one that it entered by: ranks of a stage in their order."""
    pairs: dict[int, int] = {}
    for hidden in hidden_stages:
        if len(hidden.entered) == len(hidden.left):
            pairs |= dict(zip(sorted(hidden.left), sorted(hidden.entered), strict=True))
    return pairs


def name_senders(sent: Mapping[tuple[int, int], int], host: Ints) -> dict[int, int]:
    """The sender of each one-way connection of a pipeline: its key, and the endpoint that sends.

    A rank may leave its host by the NIC on the rail of its receiver, so that what comes back enters by another one.
    `sent` holds a key for every source and destination. Between two hosts those that only send one way and those that
    only send the other belong together, in their order: who receives on the one sends on the other.
    """
    ways: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for s, d in sorted(sent):
        if (d, s) not in sent:
            ways.setdefault((int(host[s]), int(host[d])), []).append((s, d))
    return {
        sent[pair]: back[1]
        for way, pairs in ways.items()
        if len(pairs) == len(ways.get(way[::-1], ()))
        for pair, back in zip(pairs, ways[way[::-1]], strict=True)
    }
