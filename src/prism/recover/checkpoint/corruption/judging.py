"""Which rank computes wrong numbers: pure decisions on what all ranks measured."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prism.recover.checkpoint.corruption.measuring import Sketch

Kind = Literal["gradient", "replica", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionConfig:
    """How often, and what counts as standing out."""

    every_steps: int = 50
    checks_per_probe: int = 4  # launching even a small part of a micro-batch may take as long as a whole step
    norm_factor: float = 8.0  # a rank's gradient norm, against the median of its last steps
    num_usual: int = 64  # steps that say what is usual
    min_usual: int = 8  # before that only NaN and infinity stand out
    tolerance: float = 1e-3  # of a norm, where kernels do not give the same bits twice
    probe_share: float = 0.125  # of a micro-batch that all ranks compute
    lag_steps: int = 4  # on a GPU, results are read so many steps later, so that no step waits for the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Wrong numbers, and the ranks that computed them."""

    step: int  # where it was found to have happened, or was measured
    kind: Kind
    ranks: tuple[int, ...]  # more than one: it is one of these, or all
    evidence: str
    hosts: tuple[str, ...] = ()
    last_clean_step: int = 0  # the last step without an error: its checkpoint can be trusted
    proven: bool = True  # False: something else may be the cause, or another of the ranks named

    def __str__(self) -> str:
        where = f" on {', '.join(sorted(set(self.hosts)))}" if self.hosts else ""
        who = " or ".join(str(rank) for rank in self.ranks)
        verb = "computes" if self.proven else "may compute"
        return f"step {self.step}: rank {who}{where} {verb} wrong numbers: {self.evidence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """One rank's gradient norm of one step, and what was usual for that rank; 0 where too little is known."""

    value: float
    usual: float


class NormHistory:
    """The usual gradient norms of one rank: shards differ in size and content."""

    def __init__(self, config: CorruptionConfig) -> None:
        self._config = config
        self._values: deque[float] = deque(maxlen=config.num_usual)

    def judge(self, value: float) -> Norm:
        """A norm together with the rank's usual one."""
        known = len(self._values) >= self._config.min_usual
        return Norm(value=value, usual=statistics.median(self._values) if known else 0.0)

    def stands_out(self, norm: Norm) -> bool:
        """Whether it does, as far as this rank alone can say; if not, it is remembered."""
        if _ratio(norm) > self._config.norm_factor:
            return True
        self._values.append(norm.value)
        return False


def find_outliers(norms: Sequence[Norm], config: CorruptionConfig) -> list[int]:
    """Ranks whose norm stands out; a rise that most ranks share is the model's or the schedule's."""
    return [rank for rank, ratio in enumerate(_ratios(norms)) if ratio > config.norm_factor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The result of computing micro-batches again."""

    guilty: tuple[int, ...]  # it stood out, and is usual when computed again
    weights_lost: bool  # ranks that did not stand out give other norms, too: the weights are no longer what they were


def judge_repeated(
    norms: Sequence[Norm], again: Sequence[float | None], suspects: Sequence[int], config: CorruptionConfig
) -> Repeated:
    """Compare the norms of a step with those computed again, a few steps later, from the same micro-batches."""
    second = [Norm(value=math.nan if v is None else v, usual=n.usual) for n, v in zip(norms, again, strict=True)]
    ratios = _ratios(second)
    limit = config.norm_factor / 4.0  # training on odd data makes it less odd, but not by this much in a few steps
    guilty = tuple(rank for rank in suspects if again[rank] is not None and ratios[rank] <= limit)
    witnesses = [rank for rank in range(len(norms)) if rank not in suspects and again[rank] is not None]
    lost = any(not _ratio(second[rank]) <= config.norm_factor for rank in witnesses)
    return Repeated(guilty=guilty, weights_lost=lost)


def find_odd_bits(sketches: Sequence[Sketch]) -> tuple[int, ...]:
    """Replicas that differ from the majority; all, when there is none; empty when all agree."""
    counts = Counter(one.bits for one in sketches).most_common()
    if len(counts) == 1:
        return ()
    if counts[0][1] * 2 <= len(sketches):
        return tuple(range(len(sketches)))
    return tuple(rank for rank, one in enumerate(sketches) if one.bits != counts[0][0])


def find_odd_norms(sketches: Sequence[Sketch], config: CorruptionConfig) -> tuple[int, ...]:
    """Ranks whose result of the same computation differs by more than kernels may."""
    if not find_odd_bits(sketches):
        return ()
    middle = statistics.median([one.norm for one in sketches if math.isfinite(one.norm)] or [math.nan])
    limit = config.tolerance * middle
    return tuple(rank for rank, one in enumerate(sketches) if not abs(one.norm - middle) <= limit)


def _ratio(norm: Norm) -> float:
    if not math.isfinite(norm.value):
        return math.inf
    return norm.value / norm.usual if norm.usual else 1.0


def _ratios(norms: Sequence[Norm]) -> list[float]:
    ratios = [_ratio(norm) for norm in norms]
    shared = statistics.median(ratios) if len(ratios) > 2 else 1.0
    return [ratio / max(1.0, shared) for ratio in ratios] if math.isfinite(shared) else ratios
