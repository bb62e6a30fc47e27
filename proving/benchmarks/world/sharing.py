"""Jobs side by side: collectives that are on the same uplinks at the same time share them fairly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from proving.benchmarks.world.execution import Claim

Program = Generator[Claim, float, None]


def run_alone(program: Program) -> None:
    """A job whose links are its own: each collective takes the time it asks for."""
    try:
        claim = next(program)
        while True:
            claim = program.send(claim.begin + claim.seconds)
    except StopIteration:
        return


@dataclass
class _Active:
    program: Program
    claim: Claim
    left: float  # seconds of work, had it the links to itself
    seen: float  # the time up to which `left` is right


def run_together(programs: list[Program]) -> None:
    """Fluid sharing: n jobs on an uplink have 1/n of it each; a job is as fast as its slowest uplink."""
    active = [_Active(p, c, c.seconds, c.begin) for p in programs if (c := next(p, None)) is not None]
    while active:
        now = min(a.seen for a in active)
        begun = [a for a in active if a.seen <= now]
        users = Counter(link for a in begun for link in a.claim.uplinks)
        rates = [1 / max((users[link] for link in a.claim.uplinks), default=1) for a in begun]
        until = min((a.seen for a in active if a.seen > now), default=np.inf)
        until = min([until] + [now + a.left / rate for a, rate in zip(begun, rates, strict=True)])
        for a, rate in zip(begun, rates, strict=True):
            a.left -= (until - now) * rate
            a.seen = until
            if a.left <= 1e-9:
                _advance(a, until, active)


def _advance(ended: _Active, now: float, active: list[_Active]) -> None:
    """Tell a program that its collective has ended, and take its next one."""
    try:
        claim = ended.program.send(now)
    except StopIteration:
        active.remove(ended)
        return
    ended.claim, ended.left, ended.seen = claim, claim.seconds, max(claim.begin, now)
