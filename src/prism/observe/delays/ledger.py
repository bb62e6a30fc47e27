"""The ledger of a job's seconds: each is of a step, a save, an evaluation, a pause or a stall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.records.findings import Finding

Ints = NDArray[np.int64]

_STOPS = ("hang", "stall", "restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """What is no step."""

    silent: float = 1.0  # usual steps without traffic that are no part of a step
    saving: float = 0.3  # of a silence or of a gap between steps: storage is written to for at least so much of it
    sending: float = 0.1  # of a gap between steps: messages are under way for at least so much of an evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of the life of a job; `unknown` are those whose records show no steps."""

    step: float = 0.0
    save: float = 0.0
    evaluation: float = 0.0
    pause: float = 0.0
    stall: float = 0.0
    unknown: float = 0.0

    def to_json(self) -> dict[str, float]:
        """The document form; what is unknown is listed where there is any."""
        told = {name: round(value, 6) for name, value in asdict(self).items()}
        return told if told["unknown"] else {k: v for k, v in told.items() if k != "unknown"}


def keep_ledger(
    messages: pl.DataFrame, steps: pl.DataFrame, saves: pl.DataFrame, stops: Sequence[Finding], life: tuple[int, int],
    config: LedgerConfig | None = None,
) -> Seconds:  # fmt: skip
    """What the seconds between the beginning and the end of a life were spent on; they add up to it."""
    config = config or LedgerConfig()
    begin, end = life
    whole = (end - begin) / 1e9
    if end <= begin:
        return Seconds()
    if not steps.height or messages.is_empty():
        return Seconds(unknown=whole)
    start, until = (steps[c].to_numpy() for c in ("start_ns", "end_ns"))
    usual = float(np.median(until - start))
    busy = _cover(messages["start_ns"].to_numpy(), messages["end_ns"].to_numpy())
    written = _cover(saves["start_ns"].to_numpy(), saves["end_ns"].to_numpy())
    stopped = _cover(*(np.array([getattr(f, c) for f in stops if f.kind in _STOPS], np.int64)
                       for c in ("start_ns", "end_ns")))  # fmt: skip
    spent = dict.fromkeys(("step", "save", "evaluation", "pause", "stall"), 0.0)
    for a, b, in_step in _cut(begin, end, start, until, busy, config.silent * usual):
        stall = _overlap(stopped, a, b)
        rest = b - a - stall
        spent["stall"] += stall
        if in_step:
            spent["step"] += rest
        elif _overlap(written, a, b) >= config.saving * (b - a):
            spent["save"] += rest
        elif _overlap(busy, a, b) >= config.sending * (b - a):
            spent["evaluation"] += rest
        else:
            spent["pause"] += rest
    return Seconds(**{name: value / 1e9 for name, value in spent.items()})


def _cut(begin: int, end: int, start: Ints, until: Ints, busy: Ints, least: float) -> list[tuple[int, int, bool]]:
    """A life in stretches, and whether each is of a step; what is sent before the first and after the last are parts.

    A silence that is longer than a step is none, wherever it is.
    """
    start = np.concatenate([[min(busy[0, 0], start[0])], start, until[-1:]])
    until = np.concatenate([start[1:2], until, [max(busy[-1, 1], until[-1])]])
    inside = _cover(start, until)
    gaps = np.stack([busy[:-1, 1], busy[1:, 0]], axis=1)
    silent = gaps[gaps[:, 1] - gaps[:, 0] > least]
    marks = np.unique(np.clip(np.concatenate([[begin, end], inside.ravel(), silent.ravel()]), begin, end)).tolist()
    return [(a, b, _overlap(inside, a, b) > 0 and not _overlap(silent, a, b)) for a, b in pairwise(marks)]


def _cover(start: Ints, end: Ints) -> Ints:
    """The stretches that intervals cover, in order, as rows of a beginning and an end."""
    if not len(start):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    cut = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return np.stack([start[np.append(0, cut)], reach[np.append(cut - 1, len(start) - 1)]], axis=1)


def _overlap(spans: Ints, a: int, b: int) -> int:
    """Nanoseconds of a stretch that spans cover."""
    return int(np.clip(np.minimum(spans[:, 1], b) - np.maximum(spans[:, 0], a), 0, None).sum())
