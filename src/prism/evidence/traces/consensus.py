"""Who stands apart: the stacks of all ranks laid side by side.

Ranks of one job run one program, so those that wait for a rank stand together, and the rank that they wait for stands
elsewhere. Ranks with the same functions on their stack are one cluster. Each way to divide the clusters into those that
wait and those that are waited for is a hypothesis; how likely each is follows from whose code a cluster stands in,
whether it runs or waits in the kernel, and how many ranks it holds. The likelihoods are counted on made hangs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from prism.evidence.traces.stacks import Place, RankStack, describe_place

Activity = Literal["runs", "waits", "asks", "unknown"]
"""runs: uses a processor. waits: for a lock or event of its own process. asks: for a file, a timer or a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stance:
    """How often ranks of one role stood in whose code, and did what."""

    place: Mapping[Place, float]
    activity: Mapping[Activity, float]


# Counted by proving/benchmarks/hangs: live.py --fit on 13 hangs over gloo, nccl.py --read on 10 over NCCL. Who waits
# sleeps inside gloo, while over NCCL it spins where the program takes a result from the GPU.
_GLOO_WAITING = Stance(
    place={"communication": 0.68, "framework": 0.23, "program": 0.05, "unknown": 0.05},
    activity={"runs": 0.05, "waits": 0.86, "asks": 0.05, "unknown": 0.05},
)
_GLOO_AWAITED = Stance(
    place={"communication": 0.18, "framework": 0.12, "program": 0.65, "unknown": 0.06},
    activity={"runs": 0.29, "waits": 0.29, "asks": 0.35, "unknown": 0.06},
)
_NCCL_WAITING = Stance(
    place={"communication": 0.07, "framework": 0.07, "program": 0.79, "unknown": 0.07},
    activity={"runs": 0.79, "waits": 0.07, "asks": 0.07, "unknown": 0.07},
)
_NCCL_AWAITED = Stance(
    place={"communication": 0.15, "framework": 0.15, "program": 0.62, "unknown": 0.08},
    activity={"runs": 0.38, "waits": 0.23, "asks": 0.31, "unknown": 0.08},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusConfig:
    """What is assumed of a job before its stacks are seen."""

    waiting: tuple[Stance, ...] = (_GLOO_WAITING, _NCCL_WAITING)  # by backend, of which each is as likely
    awaited: tuple[Stance, ...] = (_GLOO_AWAITED, _NCCL_AWAITED)
    one_rank: float = 0.1  # probability that one more rank is waited for; most hangs begin at one
    nobody: float = 0.05  # that no rank is waited for, and a link or a GPU holds them all
    nobody_apart: float = 0.1  # that ranks stand in different functions although nobody is waited for
    same_functions: float = 0.5  # that they stand at different lines of the same functions then
    most_clusters: int = 12  # of more of them each is taken alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Ranks that stand apart from those that wait, and how likely it is that the others wait for them."""

    what: str  # stopped, ended, apart
    stacks: tuple[RankStack, ...]
    waiting: tuple[RankStack, ...]
    confidence: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(s.rank for s in self.stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """What the stacks of a job say together."""

    moves: bool  # most ranks stood elsewhere at the second look: the job runs on
    apart: tuple[Apart, ...]  # likeliest first; empty where nobody can be told apart
    clusters: tuple[tuple[RankStack, ...], ...]  # largest first


def find_apart(
    stacks: Sequence[RankStack], *, lost_peer: Collection[int] = (), config: ConsensusConfig | None = None
) -> Consensus:
    """Who stands apart; `lost_peer` are ranks whose logs say that they ended because a peer was lost."""
    config = config or ConsensusConfig()
    alive = [s for s in stacks if not s.is_stopped and not s.has_ended]
    clusters = _cluster(alive)
    looked = [s for s in alive if s.moved is not None]
    moves = 2 * sum(bool(s.moved) for s in looked) > len(looked)
    for what in ("stopped", "ended"):
        gone = [s for s in stacks if (s.is_stopped if what == "stopped" else s.has_ended and s.rank not in lost_peer)]
        if gone and len(gone) < len(stacks):
            held = Apart(what=what, stacks=tuple(gone), waiting=tuple(alive), confidence=1 - config.nobody)
            return Consensus(moves=False, apart=(held,), clusters=clusters)
    if moves:
        return Consensus(moves=True, apart=(), clusters=clusters)
    return Consensus(moves=False, apart=tuple(_weigh(clusters, config)), clusters=clusters)


def describe_cluster(stacks: Sequence[RankStack]) -> str:
    """How many ranks stand where."""
    names = ", ".join(str(s.rank) for s in stacks[:8]) + (" ..." if len(stacks) > 8 else "")
    return f"rank{'s' if len(stacks) > 1 else ''} {names} {describe_place(stacks[0])}"


def _cluster(stacks: Sequence[RankStack]) -> tuple[tuple[RankStack, ...], ...]:
    """Ranks with the same functions; where all have the same ones, those at the same lines of the program."""
    by_functions: dict[object, list[RankStack]] = defaultdict(list)
    for stack in stacks:
        by_functions[stack.functions].append(stack)
    if len(by_functions) == 1:
        by_functions = defaultdict(list)
        for stack in stacks:
            by_functions[stack.line].append(stack)
    return tuple(sorted(map(tuple, by_functions.values()), key=lambda c: (-len(c), c[0].rank)))


def _weigh(clusters: Sequence[Sequence[RankStack]], config: ConsensusConfig) -> list[Apart]:
    """Every division of the clusters into those that wait and those that are waited for, by its probability."""
    if len(clusters) < 2:
        return []
    waits = [math.log(_likelihood(c, config.waiting)) for c in clusters]
    awaited = [math.log(_likelihood(c, config.awaited)) for c in clusters]
    at_most = len(clusters) - 1 if len(clusters) <= config.most_clusters else 1
    weights: dict[tuple[int, ...], float] = {}
    for size in range(1, at_most + 1):
        for chosen in combinations(range(len(clusters)), size):
            prior = sum(len(clusters[i]) for i in chosen) * math.log(config.one_rank)
            weights[chosen] = prior + sum(awaited[i] if i in chosen else waits[i] for i in range(len(clusters)))
    alike = len({s.functions for c in clusters for s in c}) == 1
    differ = config.same_functions if alike else config.nobody_apart
    nobody = math.log(config.nobody * differ * config.one_rank) + sum(waits)
    top = max(*weights.values(), nobody)
    total = sum(math.exp(w - top) for w in weights.values()) + math.exp(nobody - top)
    found = []
    for chosen in sorted(weights, key=lambda c: -weights[c])[:4]:
        apart = tuple(sorted((s for i in chosen for s in clusters[i]), key=lambda s: s.rank))
        rest = tuple(s for i, c in enumerate(clusters) if i not in chosen for s in c)
        sure = math.exp(weights[chosen] - top) / total
        found.append(Apart(what="apart", stacks=apart, waiting=rest, confidence=sure))
    return found


def _likelihood(cluster: Sequence[RankStack], stances: Sequence[Stance]) -> float:
    """Of what is seen of a cluster, by its first rank: ranks of a cluster stand in the same functions."""
    place, activity = cluster[0].place, find_activity(cluster[0])
    if activity == "unknown":  # stacks that tell nothing of the kernel speak by their place alone
        return sum(s.place[place] for s in stances) / len(stances)
    return sum(s.place[place] * s.activity[activity] for s in stances) / len(stances)


def find_activity(stack: RankStack) -> Activity:
    """Whether a rank computes, waits for its own process, or waits for something outside of it."""
    if stack.is_running:
        return "runs"
    if not stack.doing:
        return "unknown"
    return "waits" if stack.doing.startswith("waits") else "asks"
