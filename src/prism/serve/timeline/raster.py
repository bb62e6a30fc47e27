"""The loops over spans, compiled: which kind fills each pixel of each row, and for how much of its time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

MAX_KINDS = 16  # a kind and a level share a byte
_warm = threading.Event()


class Window(NamedTuple):
    """The spans of an index (as in `SpanIndex`), the rows that are shown of it, and from when to when."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    reach: NDArray[np.int64]
    kind: NDArray[np.uint8]
    offset: NDArray[np.int64]
    first_row: NDArray[np.int64]  # of each shown row; -1: none
    last_row: NDArray[np.int64]
    t0: int
    t1: int


class Kernels(NamedTuple):
    """The compiled loops."""

    draw: Callable[..., None]
    measure: Callable[..., None]
    count: Callable[..., int]
    collect: Callable[..., int]


@cache
def compile_kernels() -> Kernels:
    """Compile on first use: numba's import takes longer than all else at start."""
    import numba

    compiled: Any = numba.njit(cache=True, nogil=True)
    return Kernels(
        draw=cast("Callable[..., None]", compiled(_draw)),
        measure=cast("Callable[..., None]", compiled(_measure)),
        count=cast("Callable[..., int]", compiled(_count)),
        collect=cast("Callable[..., int]", compiled(_collect)),
    )


def warm_up() -> None:
    """Compile with the types that are used, so that no request waits for it."""
    long, none = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    kind, weight = np.zeros(1, dtype=np.uint8), np.ones(MAX_KINDS)
    kernels = compile_kernels()
    seen = Window(long, long, long, kind, none, long, long, 0, 1)
    kernels.draw(seen, weight, np.zeros((1, 1), dtype=np.uint8), np.zeros((MAX_KINDS, 3), dtype=np.float32))
    kernels.measure(seen, np.zeros((1, MAX_KINDS)))
    kernels.count(seen)
    kernels.collect(seen, np.zeros((1, 2), dtype=np.int64))
    _warm.set()


def is_warm() -> bool:
    """Whether all loops are compiled."""
    return _warm.is_set()


def _draw(seen: Window, weight: NDArray[np.float64], out: NDArray[np.uint8], acc: NDArray[np.float32]) -> None:
    """Fill `out` (shown rows by pixels) with kind * 16 + level; level 0 is nothing, 15 a full pixel.

    A kind of weight 0 is hidden. Where kinds share a pixel, the one with most weighted time has it, and the level
    is the share of the pixel that anything fills. `acc` is scratch: kinds with a weight by pixels, and two more.
    """
    start, end, reach, kind, offset, first_row, last_row, t0, t1 = seen
    slot = np.full(len(weight), -1, dtype=np.int64)
    kind_of = np.zeros(acc.shape[0], dtype=np.uint8)
    num = 0
    for k in range(len(weight)):
        if weight[k] > 0.0:
            slot[k], kind_of[num] = num, k
            num += 1
    width = out.shape[1]
    per_ns = width / (t1 - t0)  # multiplying is several times faster than dividing, and this is done for every span
    best = np.zeros(width, dtype=np.float32)
    filled = np.zeros(width, dtype=np.float32)
    winner = np.zeros(width, dtype=np.uint8)
    for shown in range(out.shape[0]):
        if first_row[shown] < 0:
            continue
        drawn = 0  # a bit for each kind of this row; only pixels of these kinds are cleared and read
        for row in range(first_row[shown], last_row[shown]):
            low, high = offset[row], offset[row + 1]
            low += np.searchsorted(reach[low:high], t0, side="right")  # the first that ends after t0
            for i in range(low, low + np.searchsorted(start[low:high], t1)):
                n = slot[kind[i]]
                begin, rest = (start[i] - t0) * per_ns, (max(end[i], start[i] + 1) - t0) * per_ns
                if n < 0 or rest <= 0.0:
                    continue
                if not (drawn >> n) & 1:
                    drawn |= 1 << n
                    acc[n, :] = 0.0
                begin, rest = max(begin, 0.0), min(rest, float(width))
                first = min(int(begin), width - 1)
                # Most spans touch one pixel or two. Both pixels are always added to: a wrongly predicted
                # branch takes longer than adding zero.
                acc[n, first] += np.float32(min(rest, first + 1.0) - begin)
                rest -= first + 1.0
                if rest < 1.0:
                    acc[n, first + 1] += np.float32(max(rest, 0.0))
                else:
                    last = first + 1 + int(rest)
                    for p in range(first + 1, last):
                        acc[n, p] += np.float32(1.0)
                    acc[n, last] += np.float32(rest - int(rest))
        if drawn == 0:
            continue
        # Several simple loops over all pixels: the compiler turns each into vector instructions.
        best[:], filled[:], winner[:] = 0.0, 0.0, 0
        for n in range(num):
            if (drawn >> n) & 1:
                share, code = np.float32(weight[kind_of[n]]), kind_of[n]
                for p in range(width):
                    value = acc[n, p]
                    filled[p] += value
                    if value * share > best[p]:
                        best[p], winner[p] = value * share, code
        for p in range(width):
            level = min(max(int(filled[p] * np.float32(15.0) + np.float32(0.9999)), 1), 15)
            out[shown, p] = winner[p] * 16 + level if best[p] > 0.0 else 0


def _measure(seen: Window, out: NDArray[np.float64]) -> None:
    """Add up in `out` (shown rows by kinds) the nanoseconds of each kind between two times."""
    start, end, reach, kind, offset, first_row, last_row, t0, t1 = seen
    for shown in range(out.shape[0]):
        for row in range(first_row[shown], last_row[shown]):
            low, high = offset[row], offset[row + 1]
            i = low + np.searchsorted(reach[low:high], t0, side="right")
            while i < high and start[i] < t1:
                if end[i] > t0:
                    out[shown, kind[i]] += min(end[i], t1) - max(start[i], t0)
                i += 1


def _count(seen: Window) -> int:
    """How many spans the window may touch, at most."""
    start, _, reach, _, offset, first_row, last_row, t0, t1 = seen
    total = 0
    for shown in range(len(first_row)):
        if first_row[shown] < 0:
            continue
        for row in range(first_row[shown], last_row[shown]):
            low, high = offset[row], offset[row + 1]
            before = np.searchsorted(reach[low:high], t0, side="right")  # spans that have ended by then
            total += max(0, int(np.searchsorted(start[low:high], t1)) - int(before))
    return total


def _collect(seen: Window, out: NDArray[np.int64]) -> int:
    """Write the number of every span that the window touches, and its shown row, to `out`; how many there are."""
    start, end, reach, _, offset, first_row, last_row, t0, t1 = seen
    found = 0
    for shown in range(len(first_row)):
        if first_row[shown] < 0:
            continue
        for row in range(first_row[shown], last_row[shown]):
            low, high = offset[row], offset[row + 1]
            i = low + np.searchsorted(reach[low:high], t0, side="right")
            while i < high and start[i] < t1 and found < len(out):
                if end[i] > t0:
                    out[found, 0], out[found, 1] = i, shown
                    found += 1
                i += 1
    return found
