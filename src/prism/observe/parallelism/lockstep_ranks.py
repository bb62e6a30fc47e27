"""Lockstep ranks: ranks of a host that send to the next stage at the same moment because they share a sequence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import choose_some
from prism.observe.parallelism.connections import (
    BOUND_SCATTER,
    Connection,
    begin_as_one,
    keep_step,
    measure_bond,
    read_connection,
)
from prism.observe.parallelism.stages import StageMap, list_onward_streams
from prism.observe.traffic.table import Traffic

_PLACES = levels.SAMPLED_GROUPS  # pairs of hosts that are examined
_MOST_CONNECTIONS = levels.SAMPLED_STREAMS  # of two hosts that are compared
_ASKED = levels.MIN_EVENTS  # connections of a host that are compared with another host's
_FAR_CLOSER = levels.SHARE_SMALL  # of the largest scatter within a host, where some may be in lockstep too
_CLOSER = levels.SHARE_MINOR  # of the scatter of independent ranks

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepRanks:
    """Ranks of a host that act as one: those that share every tensor, and of these parts of a sequence."""

    tensor: int
    context: int

    @property
    def size(self) -> int:
        """How many they are."""
        return self.tensor * self.context


def find_lockstep_ranks(
    traffic: Traffic, streams: pl.DataFrame, stages: StageMap, rank_key: str
) -> LockstepRanks | None:
    """The ranks that act as one towards the next stage; None where nothing is sent there.

    `rank_key` is what identifies a rank: a `unit` if ranks share NICs, else a `pair`. Return traffic may be held
    up until gradients of replicas are summed, and then leaves at once too.
    """
    pipe = list_onward_streams(streams, stages, rank_key)
    ways = pipe.group_by("src_host", "dst_host").len().filter(pl.col("len") > 1).sort("src_host", "dst_host")
    if ways.is_empty():
        return LockstepRanks(tensor=1, context=1) if pipe.height else None
    chosen = ways[choose_some(np.arange(ways.height), _PLACES)]
    read = [_read_way(traffic, pipe, s, d) for s, d, _ in chosen.iter_rows()]
    clear = [connections for connections in read if all(_is_sharp(connection) for connection in connections)]
    if not clear:
        return None
    free_ns = _scatter_of_unrelated(clear, stages)
    bound, exact = Counter[int](), Counter[tuple[int, int]]()
    for connections in clear:
        near, same = _compare_all(connections, free_ns)
        bound.update(near.sum(axis=1).tolist())
        exact.update(_describe(row, i) for i, row in enumerate(same))
    members = int(ways["len"].mode().max())  # type: ignore[arg-type]
    size = _nearest_divisor(members, bound.most_common(1)[0][0])
    return split_lockstep_ranks(size, exact, ordered=rank_key == "pair")


def _read_way(traffic: Traffic, pipe: pl.DataFrame, src_host: int, dst_host: int) -> list[Connection]:
    """The connections from one host to another, in order of NICs."""
    own = pipe.filter((pl.col("src_host") == src_host) & (pl.col("dst_host") == dst_host)).sort("src", "stream")
    return [read_connection(traffic, int(v)) for v in own["stream"].head(_MOST_CONNECTIONS)]


def _is_sharp(connection: Connection) -> bool:
    """Whether sampling moves starts by little beside the silence before."""
    return not len(connection.fresh) or connection.fresh_noise <= BOUND_SCATTER * connection.usual_silence


def _scatter_of_unrelated(ways: list[list[Connection]], stages: StageMap) -> float:
    """How far connections of replicas of a stage on two hosts usually scatter; 0 where no stage is on two hosts."""
    beside = [
        (here, there)
        for here, there in pairwise(ways)
        if stages.stage.get(here[0].src) == stages.stage.get(there[0].src)
    ]
    found = [_usual_scatter(here[:_ASKED], there[:_ASKED]) for here, there in beside]
    # A host that is slow at times scatters against all others, so the least counts.
    return min((usual for usual in found if usual > 0), default=0.0)


def _usual_scatter(here: list[Connection], there: list[Connection]) -> float:
    bonds = [bond for a in here for b in there if (bond := measure_bond(a, b)) is not None]
    return float(np.median([bond.scatter_ns for bond in bonds])) if bonds else 0.0


def _compare_all(connections: list[Connection], free_ns: float) -> tuple[Flags, Flags]:
    """Which connections send far closer together than independent ranks, and which at the same moment."""
    num = len(connections)
    scatter, same = np.full((num, num), np.inf), np.eye(num, dtype=np.bool_)
    for i, a in enumerate(connections):
        for k, b in enumerate(connections):
            bond = measure_bond(a, b)
            if i != k and bond is not None:
                scatter[i, k], same[i, k] = bond.scatter_ns, keep_step(bond)
    # A scatter above the silence comes from matching other steps and measures nothing.
    widest = np.where(scatter < connections[0].usual_silence, scatter, 0.0).max(axis=1, keepdims=True)
    # Where every stage has one host there are no independent ranks to compare with. Replicas then work apart for the
    # time from one message to the next at least; silence also holds what all of the job waited for together.
    close = min(_CLOSER * free_ns or np.inf, BOUND_SCATTER * connections[0].usual_interval)
    closer = scatter < np.maximum(_FAR_CLOSER * widest, close)
    at_once = [[begin_as_one(a, b) for b in connections] for a in connections]
    return closer | same | np.array(at_once, np.bool_), same


def _describe(row: Flags, own: int) -> tuple[int, int]:
    """How many leave at the same moment as one, and how many places the next of them is away."""
    others = np.flatnonzero(row)
    away = np.abs(others[others != own] - own)
    return len(others), int(away.min()) if len(away) else 0


def split_lockstep_ranks(size: int, exact: Counter[tuple[int, int]], *, ordered: bool = True) -> LockstepRanks:
    """If some lockstep ranks send at exactly the same moment and the others a little apart, two degrees split them.

    The last thing that ranks do together is what makes them leave at once. Ranks that share tensors lie side by side,
    those that share a sequence are that many apart. If NICs do not show the order of ranks, more share tensors.
    """
    (same, stride), num = exact.most_common(1)[0]
    if not 1 < same < size or size % same or num < 0.5 * exact.total():
        return LockstepRanks(tensor=size, context=1)
    tensor = max(same, size // same) if not ordered else same if stride == 1 else size // same
    return LockstepRanks(tensor=tensor, context=size // tensor)


def _nearest_divisor(members: int, size: int) -> int:
    return min((n for n in range(1, members + 1) if members % n == 0), key=lambda n: abs(np.log(n / size)))
