"""Proof of slowness: a suspect is timed again and again beside a control, and condemned only if it is always behind.

Speeds measured once, on machines that do other things as well, differ by chance; the search only finds whom to try.
Both tests of a comparison run at the same moment where there are four hosts for it, so that what slows the fleet as a
whole slows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prism.recover.isolate.agents import Measured

Measure = Callable[[list[list[int]]], Measured]
Answer = Literal["slow", "not slow", "not clear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofConfig:
    """How often to compare and how often it must be behind."""

    repeats: int = 12
    needed: int = 11
    slow_ratio: float = 0.75
    late_ratio: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the comparisons showed."""

    answer: Answer
    behind: int
    repeats: int
    ratio: float  # median speed against the control's

    def __str__(self) -> str:
        return f"behind its control in {self.behind} of {self.repeats} comparisons, {self.ratio:.2f} of its speed"


def prove_slow(
    part: Sequence[int], others: Sequence[int], measure: Measure, config: ProofConfig, random: np.random.Generator
) -> Proof:
    """Compare a host, or the link of two hosts, with others; ends early once it cannot be proven any more."""
    behind, ratios = 0, []
    for _ in range(config.repeats):
        test, control = _draw(part, others, random)
        found = measure_both(test, control, measure)
        if not found.alive.all() or found.busy.any():
            continue  # a failure is not slowness, the search weighs those; and a host at other work is not slow
        ratio = float(found.bandwidth[0] / found.bandwidth[1])
        late = found.latency_s[0] > config.late_ratio * found.latency_s[1]
        behind += ratio < config.slow_ratio or bool(late)
        ratios.append(ratio)
        if len(ratios) - behind > config.repeats - config.needed:
            break
    done = len(ratios)
    median = float(np.median(ratios)) if ratios else float("nan")
    if behind >= config.needed:
        return Proof(answer="slow", behind=behind, repeats=done, ratio=median)
    clear = done < config.repeats // 2 or behind <= max(1, 2 * done // 3)
    return Proof(answer="not slow" if clear else "not clear", behind=behind, repeats=done, ratio=median)


def measure_both(test: list[int], control: list[int], measure: Measure) -> Measured:
    """At the same moment where no host is in both, else one after the other."""
    if not set(test) & set(control):
        return measure([test, control])
    first, second = measure([test]), measure([control])
    return Measured(
        alive=np.concatenate([first.alive, second.alive]),
        bandwidth=np.concatenate([first.bandwidth, second.bandwidth]),
        latency_s=np.concatenate([first.latency_s, second.latency_s]),
        busy=np.concatenate([first.busy, second.busy]),
    )


def _draw(part: Sequence[int], others: Sequence[int], random: np.random.Generator) -> tuple[list[int], list[int]]:
    """A test with the part in it, and a control without it, by lot."""
    order = [int(host) for host in random.permutation(np.array(others))]
    if len(part) == 2:
        # The control of a link is each of its hosts with another in turn: then only the link differs.
        return list(part), [int(random.choice(np.array(part))), order[0]]
    return [int(part[0]), order[0]], order[1:3] if len(order) > 2 else order[:2]
