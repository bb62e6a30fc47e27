"""Layout model: every layout that the number of ranks allows, ranked by how well it predicts the measured counts.

A layout predicts counts: stages of a pipeline, ranks that send to the next stage, groups that sum gradients on a host,
ranks that begin together. A measured count equals the predicted one with a given reliability; other values are less
likely the further off they are. Layouts whose product is not the number of ranks are never candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter

from prism.observe import levels

_NEGLIGIBLE = 1e-9  # of the best layout's likelihood: thousands of such layouts change no digit that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutConfig:
    """How often a count is right, and how common a layout is before anything was measured."""

    stages: float = 0.98  # stages that messages pass
    senders: float = 0.9  # ranks that send to the next stage; a rank may send through the NIC of another
    groups: float = levels.SHARE_NEARLY_ALL  # groups that sum gradients on a host
    one_group: float = levels.SHARE_LARGE  # a single one: groups that wait for the same late rank end as one
    lockstep: float = 0.92  # ranks that begin as one
    unseen: float = 0.9  # what follows from the absence of messages
    context: float = levels.SHARE_SMALL  # share of jobs that split sequences
    experts: float = 0.2  # share of jobs that spread experts
    tensor: float = levels.SHARE_HALF  # share of jobs with a pipeline that split tensors
    tensor_alone: float = 0.2  # the same of other jobs, and of those that spread experts
    shared_host: float = levels.SHARE_MINOR  # share of pipelines with several stages on a host
    close: float = 0.05  # share of the best layout's likelihood at which another one is listed
    # Counts are right far more often than the numbers above say one by one: of 111 layouts of proving/benchmarks/world
    # and of recorded worlds without a close rival (even captures, 72 small ones of other seeds) 109 were right.
    sharpness: float = 3.0  # power of the likelihood
    sure: float = 0.97  # share of the layouts without a close rival that are right


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """A layout by its degrees."""

    dp: int
    pp: int
    tp: int
    cp: int
    ep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A count that was measured, how often such a count is right, and the counts that a layout predicts."""

    value: int
    reliability: float
    predict: Callable[[Degrees], tuple[int, ...]]
    merged: bool = False  # several may have been measured as one, whatever their number

    def log_likelihood(self, degrees: Degrees) -> float:
        """Of the measured count under a layout."""
        predicted = self.predict(degrees)
        if self.value in predicted:
            return math.log(self.reliability)
        if self.merged:
            return math.log(1 - self.reliability)
        off = min((_compare_counts(self.value, p) for p in predicted), default=1.0)
        return math.log(1 - self.reliability) - off


@cache
def _compare_counts(one: int, other: int) -> float:
    """How far two counts are apart, in nats."""
    return abs(math.log((one or 0.5) / (other or 0.5)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedLayout:
    """A layout and its probability among all candidates."""

    degrees: Degrees
    probability: float


def list_layouts(ranks: int) -> Iterator[Degrees]:
    """Every layout of as many ranks; experts are spread over replicas."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for pp in divisors:
        for tp in (n for n in divisors if (ranks // pp) % n == 0):
            for cp in (n for n in divisors if (ranks // (pp * tp)) % n == 0):
                dp = ranks // (pp * tp * cp)
                for ep in (n for n in divisors if (dp * cp) % n == 0):
                    yield Degrees(dp=dp, pp=pp, tp=tp, cp=cp, ep=ep)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCount:
    """How many ranks a job may have, how many of them a host holds, and what was measured if it has so many."""

    ranks: int
    per_host: int
    readings: Sequence[Reading]
    likely: float = 1.0  # beside the others


def rank_layouts(counts: Sequence[RankCount], config: LayoutConfig | None = None) -> list[RankedLayout]:
    """Layouts for every possible number of ranks, most probable first; far less likely ones are left out.

    Counts of ranks are as likely as is said of them, whatever their layouts; of two alike the first one is named first.
    """
    config = config or LayoutConfig()
    scored: list[tuple[float, int, Degrees]] = []
    for place, count in enumerate(counts):
        own = _score_layouts(count, config)
        best = max(score for score, _ in own) - math.log(count.likely)
        scored += [(score - best, place, d) for score, d in own]
    total = sum(math.exp(behind) for behind, _, _ in scored)
    return [
        RankedLayout(degrees=d, probability=config.sure * math.exp(behind) / total)
        for behind, _, d in sorted(scored, key=lambda r: (-r[0], r[1], r[2].tp))
        if behind >= config.sharpness * math.log(config.close)
    ]


def _score_layouts(count: RankCount, config: LayoutConfig) -> list[tuple[float, Degrees]]:
    """Layouts of as many ranks with their score, in order; those that are too unlikely to matter are left out.

    No reading makes a layout more likely, so its score may be known to be too low before all readings are used.
    """
    lost = math.log(_NEGLIGIBLE)
    best, own = -math.inf, []
    layouts = _list_with_priors(count.ranks, count.per_host, config)
    for place, (score, degrees) in sorted(
        enumerate(layouts), key=lambda one: -one[1][0]
    ):  # A likely one rules out most.
        for reading in count.readings:
            if score < best + lost:
                break
            score += config.sharpness * reading.log_likelihood(degrees)
        best = max(best, score)
        own.append((score, place))
    return [(score, layouts[place][1]) for score, place in sorted(own, key=itemgetter(1)) if score >= best + lost]


@lru_cache(maxsize=64)
def _list_with_priors(ranks: int, per_host: int, config: LayoutConfig) -> list[tuple[float, Degrees]]:
    """Every layout of as many ranks and how common it is."""
    return [(_log_prior(degrees, ranks, per_host, config), degrees) for degrees in list_layouts(ranks)]


def confidence_of(ranked: Sequence[RankedLayout], name: str) -> float:
    """That one degree of the best layout is right, whatever the others are."""
    value = getattr(ranked[0].degrees, name)
    return sum(r.probability for r in ranked if getattr(r.degrees, name) == value)


def stages_on_host(degrees: Degrees, ranks: int, per_host: int) -> tuple[int, int]:
    """How many stages share a host, where ranks are numbered by replica before stage, and by stage before replica."""
    beside = per_host // (degrees.tp * degrees.cp)
    return max(1, per_host * degrees.pp // ranks), max(1, math.gcd(beside, degrees.pp))


def _log_prior(degrees: Degrees, ranks: int, per_host: int, config: LayoutConfig) -> float:
    """How common a layout is: the share of the jobs that use each degree, over the values it may have.

    Sequences are split where tensors are split already, so their share is one of these jobs.
    """
    tensor = config.tensor if degrees.pp > 1 and degrees.ep == 1 else config.tensor_alone
    context = config.context / tensor if degrees.tp > 1 else config.context**2
    shares = (
        (degrees.tp, tensor, per_host),
        (degrees.cp, context, ranks),
        (degrees.ep, config.experts, ranks),
    )
    log = sum(math.log(share / _count_degrees(most) if n > 1 else 1 - share) for n, share, most in shares)
    log += math.log(1 - config.stages) * ((degrees.tp > per_host) + (degrees.tp & (degrees.tp - 1) > 0))
    several = stages_on_host(degrees, ranks, per_host)[0] > 1
    return log + math.log(config.shared_host if several else 1 - config.shared_host)


@lru_cache(maxsize=64)
def _count_degrees(ranks: int) -> int:
    """Degrees of more than one that so many ranks allow; one where there are none."""
    return max(1, sum(ranks % n == 0 for n in range(2, ranks + 1)))
