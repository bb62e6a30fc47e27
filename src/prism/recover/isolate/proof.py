"""Proof of slowness: a suspect is timed next to a control until it is proven slow, or proven not to be.

Speeds measured once, on machines that do other things as well, differ by chance; the search only finds whom to try.
Both tests of a comparison run at the same moment where there are four hosts for it, so that what slows the fleet as a
whole slows both; else one runs after the other, in an order by lot.

A comparison is lost when the suspect is behind and in nothing ahead. A healthy host is ahead as often as it is behind,
however noisy the fleet is, so it loses at most every second comparison; Wald's sequential test of that against a host
that loses most of them bounds the chance of a wrong accusation by `error`, whenever it stops.

Where a host is at other work, the time that its probes waited for a core is taken off whoever is behind, and only what
is behind or ahead even so is counted; latency is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prism.recover.isolate.agents import Measured

Measure = Callable[[list[list[int]]], Measured]
Answer = Literal["slow", "not slow", "not clear"]
_BY_CHANCE = 0.5  # the largest share of comparisons that a healthy host loses


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofConfig:
    """When a comparison is lost, and the error rates of the test."""

    slow_ratio: float = 0.75
    late_ratio: float = 5.0
    error: float = 1e-5  # probability that a healthy host is called slow, over all hosts of one search
    missed: float = 0.01  # probability that a slow host is not called slow
    lost_by_slow: float = 0.9  # share of comparisons that a slow host loses
    most: int = 80  # comparisons
    most_unclear: int = 12  # comparisons in which a host failed, or was busy enough to explain the result

    def accuse_at(self, num_tried: int) -> float:
        """The evidence that suffices if so many hosts are tested."""
        return math.log(max(1, num_tried) / self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of the comparisons."""

    answer: Answer
    behind: int
    repeats: int
    ratio: float  # median speed against the control's

    def __str__(self) -> str:
        return f"behind its control in {self.behind} of {self.repeats} comparisons, {self.ratio:.2f} of its speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Which part is tested, against which controls, and how many parts are tested in all."""

    part: tuple[int, ...]  # a host, or the two of a link
    others: tuple[int, ...]
    num_tried: int = 1


def prove_slow(trial: Trial, measure: Measure, config: ProofConfig, random: np.random.Generator) -> Proof:
    """Compare a host, or the link of two hosts, with others until one answer is proven."""
    gain = math.log(config.lost_by_slow / _BY_CHANCE)
    loss = math.log((1.0 - config.lost_by_slow) / _BY_CHANCE)
    enough, evidence, unclear = config.accuse_at(trial.num_tried), 0.0, 0
    lost: list[bool] = []
    ratios: list[float] = []
    while len(lost) < config.most and unclear < config.most_unclear and math.log(config.missed) < evidence < enough:
        found = measure_both(*_draw(trial.part, trial.others, random), measure, random)
        behind, ahead = _is_behind(found, config), _is_behind(_swap(found), config)
        if not found.alive.all() or (found.busy.any() and behind == ahead):
            unclear += 1  # a failure is not slowness: the search judges those; and a busy host is not slow
            continue
        lost.append(behind and not ahead)
        ratios.append(float(found.bandwidth[0] / found.bandwidth[1]))
        evidence += gain if lost[-1] else loss
    median = float(np.median(ratios)) if ratios else float("nan")
    answer: Answer = "not clear" if evidence > 0 and len(lost) >= config.most else "not slow"
    return Proof(answer="slow" if evidence >= enough else answer, behind=sum(lost), repeats=len(lost), ratio=median)


def measure_both(test: list[int], control: list[int], measure: Measure, random: np.random.Generator) -> Measured:
    """Both tests at the same moment if they share no host, else one after the other in random order."""
    if not set(test) & set(control):
        return measure([test, control])
    if random.random() < 0.5:
        return _join(measure([test]), measure([control]))
    later = measure([control])
    return _join(measure([test]), later)


def _join(test: Measured, control: Measured) -> Measured:
    return Measured(
        alive=np.concatenate([test.alive, control.alive]),
        bandwidth=np.concatenate([test.bandwidth, control.bandwidth]),
        latency_s=np.concatenate([test.latency_s, control.latency_s]),
        busy=np.concatenate([test.busy, control.busy]),
        most_bandwidth=np.concatenate([test.most_bandwidth, control.most_bandwidth]),
    )


def _swap(found: Measured) -> Measured:
    """The control as the suspect."""
    return Measured(
        alive=found.alive[::-1],
        bandwidth=found.bandwidth[::-1],
        latency_s=found.latency_s[::-1],
        busy=found.busy[::-1],
        most_bandwidth=found.most_bandwidth[::-1],
    )


def _is_behind(found: Measured, config: ProofConfig) -> bool:
    slow = found.most_bandwidth[0] < config.slow_ratio * found.bandwidth[1]
    late = found.latency_s[0] > config.late_ratio * found.latency_s[1]
    return bool(slow or (late and not found.busy.any()))


def _draw(part: Sequence[int], others: Sequence[int], random: np.random.Generator) -> tuple[list[int], list[int]]:
    """A test with the part in it, and a control without it, by lot."""
    order = [int(host) for host in random.permutation(np.array(others))]
    if len(part) == 2:
        # The control of a link is each of its hosts with another in turn: then only the link differs.
        return list(part), [int(random.choice(np.array(part))), order[0]]
    return [int(part[0]), order[0]], order[1:3] if len(order) > 2 else order[:2]
