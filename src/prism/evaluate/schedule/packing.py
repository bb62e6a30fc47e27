"""Which worker takes which share of which dataset, so that the last one ends as early as possible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TOLERANCE = 0.004  # of the time to the end: how exactly the end is searched
_EXACT_S = 1e-3  # closer is never needed
_LAST = "\U0010ffff"  # sorts after every worker's name

Key = tuple[str, str]  # checkpoint and dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A worker as the packing sees it; times in seconds from now."""

    worker: str
    ready_s: float  # when it can begin: its trial over, the model loaded
    held: tuple[Key, ...] = ()  # datasets that need no set-up on it, the one it works on last


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is left of one dataset."""

    key: Key
    samples: int
    setup_s: float
    infer_s: float  # per sample
    score_s: float  # per sample
    splittable: bool = True
    trusted: bool = True  # its run time was measured or recorded, not estimated
    untried: bool = False  # a part of it should be run early, since its run time may prove wrong

    @property
    def seconds(self) -> float:
        """Inference of all of it on one worker."""
        return self.samples * self.infer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Samples of one dataset for one worker."""

    key: Key
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Each worker's shares in the order to run them, and when all are inferred and scored."""

    end_s: float
    queues: Mapping[str, tuple[Share, ...]]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Some samples of a dataset on a worker."""

    worker: str
    work: Work
    samples: int
    held: bool  # the worker has the dataset ready


class _Attempt:
    """One try to be done by `end_s`."""

    def __init__(self, slots: Sequence[Slot], end_s: float, min_part_s: float) -> None:
        self.end_s = end_s
        self.min_part_s = min_part_s
        self.fills = sorted((slot.ready_s, slot.worker) for slot in slots)  # how full each worker is
        self.full_s = {slot.worker: slot.ready_s for slot in slots}  # the same by worker
        self.placed: list[_Placed] = []

    def place(self, work: Work, samples: int) -> bool:
        """Give a dataset to the fullest worker that can still take it whole, or cut it over the emptiest ones.

        One with an estimated run time goes to the emptiest worker: begun early, a wrong estimate can be corrected.
        """
        while samples > 0:
            seconds = work.setup_s + samples * work.infer_s
            index = bisect_right(self.fills, (self.end_s - seconds - self._tail_s(work, samples), _LAST)) - 1
            if index >= 0:
                self._fill(index if work.trusted else 0, work, samples, seconds)
                return True
            fitting = self._fill_emptiest(work, samples)
            if not fitting:
                return False
            samples -= fitting
        return True

    def spread(self, work: Work, samples: int) -> int:
        """Fill whole workers with a dataset that is too large for any of them; returns what is left over."""
        while samples > 0:
            seconds = work.setup_s + samples * work.infer_s + self._tail_s(work, samples)
            if self.fills[0][0] + seconds <= self.end_s:
                break
            fitting = self._fill_emptiest(work, samples)
            if not fitting:
                break
            samples -= fitting
        return samples

    def _fill_emptiest(self, work: Work, samples: int) -> int:
        """Fill the emptiest worker up; returns how many samples it took, none where a part would be too small."""
        room_s = self.end_s - self.fills[0][0] - work.setup_s - self._tail_s(work, samples)
        fitting = _count(work, samples, room_s) if work.splittable else 0
        if fitting < 1 or fitting * work.infer_s < min(self.min_part_s, samples * work.infer_s):
            return 0
        self._fill(0, work, fitting, work.setup_s + fitting * work.infer_s)
        return fitting

    def keep(self, work: Work, holders: Sequence[tuple[bool, str]]) -> int:
        """Let workers that hold a dataset go on with it, those that work on it now (not in the past) before others.

        Returns the samples that are left over.
        """
        samples = work.samples
        for _, at_s, worker in sorted((past, self.full_s[worker], worker) for past, worker in holders):
            fitting = _count(work, samples, self.end_s - at_s - self._tail_s(work, samples))
            if fitting >= 1:
                index = bisect_left(self.fills, (at_s, worker))
                self._fill(index, work, fitting, fitting * work.infer_s, held=True)
                samples -= fitting
        return samples

    def _fill(self, index: int, work: Work, samples: int, seconds: float, *, held: bool = False) -> None:
        at_s, worker = self.fills.pop(index)
        insort(self.fills, (at_s + seconds, worker))
        self.full_s[worker] = at_s + seconds
        self.placed.append(_Placed(worker, work, samples, held))

    def _tail_s(self, work: Work, samples: int) -> float:
        """Scoring that is left when the last of these samples is inferred.

        Scores come in part by part, so for a dataset that can be split it is the score of the last, small part.
        """
        if not work.splittable:
            return samples * work.score_s
        return max(work.score_s, min(samples * work.score_s, self.min_part_s))


def _count(work: Work, samples: int, room_s: float) -> int:
    """How many samples are inferred in a time; none in less than no time."""
    if room_s < 0:
        return 0
    return samples if samples * work.infer_s <= room_s else int(room_s / work.infer_s)


def pack(slots: Sequence[Slot], works: Sequence[Work], min_part_s: float) -> Packing:
    """Search the earliest end for which every dataset finds room; no part that is cut off is under `min_part_s`."""
    works = sorted((work for work in works if work.samples), key=lambda w: _urgency(w, w.samples))
    if not slots or not works:
        return Packing(end_s=max((slot.ready_s for slot in slots), default=0.0), queues={})
    held = {key for slot in slots for key in slot.held}
    need_s = sum(work.seconds + (0.0 if work.key in held else work.setup_s) for work in works)
    low = (sum(slot.ready_s for slot in slots) + need_s) / len(slots)
    low = max(low, min(slot.ready_s for slot in slots))
    high = max(slot.ready_s for slot in slots) + sum(
        w.setup_s + w.samples * (w.infer_s + w.score_s) + min_part_s for w in works
    )
    best: _Attempt | None = None
    step = 1 + 4 * _TOLERANCE  # the end is usually not far above what work and workers alone would give
    while best is None or high - low > max(_TOLERANCE * high, _EXACT_S):
        end_s = min(high, low * step + 1e-3) if best is None else (low + high) / 2
        step *= step
        attempt = _try(slots, works, end_s, min_part_s)
        if attempt is not None:
            best, high = attempt, end_s
        elif end_s < high:
            low = end_s
        else:
            raise AssertionError("everything fits on one worker in the time it takes there")
    return Packing(end_s=high, queues=_order(best.placed))


def _try(slots: Sequence[Slot], works: Sequence[Work], end_s: float, min_part_s: float) -> _Attempt | None:
    """Place everything so that it ends in time, if that works out."""
    attempt = _Attempt(slots, end_s, min_part_s)
    holders: dict[Key, list[tuple[bool, str]]] = {}
    for slot in slots:
        for key in slot.held:
            holders.setdefault(key, []).append((key != slot.held[-1], slot.worker))
    left = {work.key: work.samples for work in works}
    # Those that few workers hold come first, short before long: what is left for others takes fewest set-ups then.
    for work in sorted(works, key=lambda w: (len(holders.get(w.key, ())), w.seconds, w.key)):
        if work.splittable and work.key in holders:
            left[work.key] = attempt.keep(work, holders[work.key])
    # Whole workers first: what is left of each dataset then, large before small, fits into fewer workers.
    for work in works:
        if work.splittable:
            left[work.key] = attempt.spread(work, left[work.key])
    for work in sorted(works, key=lambda w: _urgency(w, left[w.key])):
        if not attempt.place(work, left[work.key]):
            return None
    return attempt


def _urgency(work: Work, samples: int) -> tuple[bool, bool, float, Key]:
    """What is placed first: datasets that cannot be split, then those with estimated run times, then long ones."""
    score_s = 0.0 if work.splittable else work.score_s
    return work.splittable, work.trusted, -samples * (work.infer_s + score_s), work.key


def _order(placed: Sequence[_Placed]) -> dict[str, tuple[Share, ...]]:
    """Each worker's shares: what is untried first, what it holds, what few others work on, what takes long to score.

    A dataset shows its true run time only when a worker begins it: the sooner, the more can still be put right. One
    that few workers have shows it late. And scores that take long should not be left for the end.
    """
    takers = Counter(one.work.key for one in placed)
    queues: dict[str, list[Share]] = {}

    def urgency(one: _Placed) -> tuple[bool, bool, int, float, Key, str]:
        untried, score_s = one.work.untried, one.samples * one.work.score_s
        return not untried, not one.held, takers[one.work.key], -score_s, one.work.key, one.worker

    for one in sorted(placed, key=urgency):
        queues.setdefault(one.worker, []).append(Share(key=one.work.key, samples=one.samples))
    return {worker: tuple(shares) for worker, shares in queues.items()}
