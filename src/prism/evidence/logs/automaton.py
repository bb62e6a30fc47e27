"""The scanner's inner loop, compiled; in a file of its own, so that small logs never load the compiler."""

from __future__ import annotations

import numpy as np
from numba import njit

from prism.evidence.logs.triggers import MARK_SHIFT, STATE

_STATE = np.uint32(STATE)
_SHIFT = np.uint32(MARK_SHIFT)


@njit(nogil=True, cache=True, boundscheck=False)  # type: ignore[untyped-decorator, unused-ignore]
def run(data, classes, table, out, head, before, after_hit, limit):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Fill `out` (start, end, line, trigger, progress, template) and return how many rows, lines and progress lines."""
    num_bytes = data.size
    capacity = out.shape[1]
    seen = np.zeros(65536, np.uint8)
    recent = np.zeros((before, 4), np.int64)
    num_recent = 0
    count = 0
    line = 0
    progress = 0
    after = 0
    start = 0
    state = np.uint32(0)
    mask = 0
    trigger = -1
    i = 0
    while True:
        marked = np.uint32(0)
        while i < num_bytes:
            state = table[(state & _STATE) + classes[data[i]]]
            if state > _STATE:
                marked = state >> _SHIFT
                break
            i += 1
        if marked & 3:
            mask |= int(marked)
            if marked & 1 and trigger < 0:
                trigger = i
            i += 1
            continue
        if i == num_bytes and start >= num_bytes:
            break
        keep_anyway = line < head or after > 0
        if after > 0:
            after -= 1
        if mask & 1:
            value = np.uint32(2166136261)
            stop = min(i, start + 160)
            for k in range(start, stop):
                if data[k] < 48 or data[k] > 57:
                    value = np.uint32((value ^ np.uint32(data[k])) * np.uint32(16777619))
            slot = (value ^ (value >> np.uint32(16))) & np.uint32(65535)
            if seen[slot] < limit:
                seen[slot] += 1
                for r in range(num_recent):
                    if count < capacity:
                        out[0, count] = recent[r, 0]
                        out[1, count] = recent[r, 1]
                        out[2, count] = recent[r, 2]
                        out[3, count] = -1
                        out[4, count] = recent[r, 3]
                        out[5, count] = 0
                        count += 1
                num_recent = 0
                if count < capacity:
                    out[0, count] = start
                    out[1, count] = i
                    out[2, count] = line
                    out[3, count] = trigger
                    out[4, count] = progress
                    out[5, count] = np.int64(value)
                    count += 1
                after = after_hit
        elif i > start:
            if keep_anyway:
                if count < capacity:
                    out[0, count] = start
                    out[1, count] = i
                    out[2, count] = line
                    out[3, count] = -1
                    out[4, count] = progress
                    out[5, count] = 0
                    count += 1
                num_recent = 0
            else:
                if num_recent == before:
                    for r in range(1, before):
                        recent[r - 1] = recent[r]
                    num_recent -= 1
                recent[num_recent, 0] = start
                recent[num_recent, 1] = i
                recent[num_recent, 2] = line
                recent[num_recent, 3] = progress
                num_recent += 1
            if mask & 2:
                for k in range(start, i):
                    if data[k] >= 48 and data[k] <= 57:
                        progress += 1
                        break
        if i >= num_bytes:
            break
        if data[i] == 10:
            line += 1
        start = i + 1
        state = np.uint32(0)
        mask = 0
        trigger = -1
        i += 1
    return count, line, progress
