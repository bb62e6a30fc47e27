"""Passes over millions of records: dense numbers for keys, records grouped by number, sizes put into classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism.kernel import kernel
from prism.observe import levels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_CLASSES = levels.SAMPLED_STREAMS  # distinct sizes of one connection; more are tokens routed at random
_FREE = np.int64(-1)
_FIRST_KEYS = 512  # that a hash table has room for before it grows; a power of two
_MOST_SLOTS = levels.SAMPLED_GROUPS  # ranks behind one NIC
_AS_OFTEN = levels.SHARE_LARGE  # of the messages of the first slot


@kernel
def number_keys(keys: Ints) -> tuple[Ints, Ints]:
    """A dense number for every distinct key, in order of first appearance, and the keys by number."""
    least = keys.min() if len(keys) else np.int64(0)
    span = keys.max() - least if len(keys) else np.int64(-1)  # negative where it is too wide for a number
    if 0 <= span < 2 * len(keys):  # A table of all that the keys may be is read far faster than a hashed one.
        numbers, found = number_again(keys - least, int(span) + 1)
        return numbers, found + least
    numbers, found, slots = np.empty(len(keys), np.int64), np.empty(_FIRST_KEYS, np.int64), _make_slots(_FIRST_KEYS)
    done, count = _number_more(keys, 0, slots, numbers, found, 0)
    while done < len(keys):  # The table is half full: all keys move to a larger one.
        known, found, slots = found, np.empty(4 * count, np.int64), _make_slots(4 * count)
        _number_more(known, 0, slots, np.empty(count, np.int64), found, 0)
        done, count = _number_more(keys, done, slots, numbers, found, count)
    return numbers, found[:count].copy()


@kernel
def _make_slots(most: int) -> Ints:
    """Empty slots of a hash table for so many keys, a power of two."""
    return np.full(2 * most, _FREE, np.int64)


@kernel
def _number_more(keys: Ints, begin: int, slots: Ints, numbers: Ints, found: Ints, count: int) -> tuple[int, int]:
    """Number keys from `begin` on until `found` is full; where that was, and how many keys were found in all.

    The upper half of a product with a large odd number scatters keys; the lower half does not depend on what the upper
    half of a key holds.
    """
    mask = len(slots) - 1
    for i in range(begin, len(keys)):
        key = keys[i]
        at = np.int64(np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask
        while slots[at] >= 0 and found[slots[at]] != key:
            at = (at + 1) & mask
        if slots[at] < 0:
            if count == len(found):
                return i, count
            slots[at], found[count] = count, key
            count += 1
        numbers[i] = slots[at]
    return len(keys), count


@kernel
def number_again(old: Ints, count: int) -> tuple[Ints, Ints]:
    """New numbers for dense old ones, in order of first appearance, and the old ones by new number."""
    table = np.full(count, _FREE, np.int64)
    found = np.empty(count, np.int64)
    numbers = np.empty(len(old), np.int64)
    taken = 0
    for i in range(len(old)):
        key = old[i]
        if table[key] < 0:
            table[key] = taken
            found[taken] = key
            taken += 1
        numbers[i] = table[key]
    return numbers, found[:taken].copy()


@kernel
def number_places(group: Ints, part: Ints, count: int) -> tuple[Ints, Ints]:
    """The place of each record among those of its group and part, and how many these are; groups run part by part."""
    now = np.full(count, -(2**62), np.int64)
    first = np.zeros(count, np.int64)  # record of the part that a group is in
    place = np.zeros(len(group), np.int64)
    opened = np.empty(len(group), np.int64)
    total = np.zeros(len(group), np.int64)
    for i in range(len(group)):
        g = group[i]
        if part[i] != now[g]:
            now[g], first[g] = part[i], i
        opened[i] = first[g]
        place[i] = total[first[g]]
        total[first[g]] += 1
    return place, total[opened]


@kernel
def number_calls(group: Ints, stream: Ints, step: Ints, place: Ints, num: Ints) -> tuple[Ints, int]:
    """A number for each group, step and place of a record, and how many there may be; -1 where it has no group.

    `group` is that of each stream. Of each group and step there are as many places as its fullest stream has.
    """
    steps = step.max() + 1 if len(step) else 0
    first = np.zeros((group.max() + 1 if len(group) else 0) * steps + 1, np.int64)
    for i in range(len(stream)):
        if group[stream[i]] >= 0:
            cell = group[stream[i]] * steps + step[i] + 1
            first[cell] = max(first[cell], num[i])
    first = np.cumsum(first)
    call = np.full(len(stream), _FREE, np.int64)
    for i in range(len(stream)):
        if group[stream[i]] >= 0:
            call[i] = first[group[stream[i]] * steps + step[i]] + place[i]
    return call, first[-1]


@kernel
def nearest(times: Ints, wanted: Ints) -> Ints:
    """Where in `times`, which are in order, the one nearest to each wanted time lies; of two as near the earlier."""
    at = np.empty(len(wanted), np.int64)
    right = 0
    for k in range(len(wanted)):
        if k and wanted[k] < wanted[k - 1]:
            right = min(np.searchsorted(times, wanted[k]), len(times) - 1)
        while right < len(times) - 1 and times[right] < wanted[k]:
            right += 1
        left = max(right - 1, 0)
        at[k] = left if abs(wanted[k] - times[left]) <= abs(times[right] - wanted[k]) else right
    return at


@kernel
def bound_groups(number: Ints, count: int, values: Ints) -> tuple[Ints, Ints]:
    """The least and the greatest value of each group."""
    least, most = np.full(count, 2**62, np.int64), np.full(count, -(2**62), np.int64)
    for i in range(len(number)):
        k = number[i]
        least[k], most[k] = min(least[k], values[i]), max(most[k], values[i])
    return least, most


@kernel
def begin_together(call: Ints, count: int, start: Ints, end: Ints, begin: Ints, final: Ints) -> None:
    """Records of one call that all are under way when the last one starts begin there and end with the last one."""
    last, first = np.full(count, -(2**62), np.int64), np.full(count, 2**62, np.int64)
    longest = np.full(count, -(2**62), np.int64)
    for i in range(len(call)):
        k = call[i]
        if k >= 0:
            last[k], first[k] = max(last[k], start[i]), min(first[k], end[i])
            longest[k] = max(longest[k], end[i])
    for i in range(len(call)):
        k = call[i]
        if k >= 0 and first[k] > last[k]:
            begin[i], final[i] = last[k], longest[k]


@kernel
def mark_repeated(numbers: Ints, count: int, start: Ints, end: Ints, size: Ints) -> NDArray[np.bool_]:
    """Records that equal the one before of the same number in every way."""
    before = np.full(count, _FREE, np.int64)
    repeated = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        k = before[numbers[i]]
        repeated[i] = k >= 0 and start[k] == start[i] and end[k] == end[i] and size[k] == size[i]
        before[numbers[i]] = i
    return repeated


@kernel
def mark_exported_twice(
    numbers: Ints, count: int, start: Ints, end: Ints, size: Ints, tolerance: float, apart_ns: int
) -> NDArray[np.bool_]:
    """Records that almost equal the one before on the same connection: a second exporter's, whose clock is another."""
    before = np.full(count, _FREE, np.int64)
    twice = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        k = before[numbers[i]]
        if k >= 0 and abs(size[k] - size[i]) <= tolerance * size[k]:
            apart = max(abs(start[i] - start[k]), abs(end[i] - end[k]))
            twice[i] = 0 < apart <= max(apart_ns, 0.05 * (end[k] - start[k]))
        if not twice[i]:
            before[numbers[i]] = i
    return twice


@kernel
def mark_overlapping(
    numbers: Ints, count: int, start: Ints, end: Ints, left_out: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Records that begin before an earlier one on the same connection has ended, those `left_out` aside.

    One exporter ends a record before it begins the next one of a connection.
    """
    reach = np.full(count, -(2**62), np.int64)
    overlaps = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        if left_out[i]:
            continue
        overlaps[i] = start[i] < reach[numbers[i]]
        if not overlaps[i]:
            reach[numbers[i]] = end[i]
    return overlaps


@kernel
def find_runs(numbers: Ints, count: int, start: Ints, end: Ints, size: Ints, close: float, tolerance: float) -> Ints:
    """For each record the first one of its run: records of one size on one connection that follow each other at once.

    `close` is the share of a record's length that may pass until the next; records are in order of start.
    """
    before = np.full(count, _FREE, np.int64)
    first = np.arange(len(numbers))
    for i in range(len(numbers)):
        k = before[numbers[i]]
        alike = k >= 0 and abs(size[k] - size[i]) <= tolerance * size[k] + 1
        if alike and 0 <= start[i] - end[k] <= close * (end[k] - start[k]):
            first[i] = first[k]
        before[numbers[i]] = i
    return first


@kernel
def group_by_number(numbers: Ints, count: int) -> tuple[Ints, Ints]:
    """Row numbers grouped by number, each group in the old order, and where each group begins."""
    order, begin = group_values(np.arange(len(numbers)), numbers, count)
    return order, begin


@kernel
def group_values(values: NDArray[Any], numbers: Ints, count: int) -> tuple[NDArray[Any], Ints]:
    """Values grouped by number, each group in the old order, and where each group begins."""
    begin = np.zeros(count + 1, np.int64)
    for i in range(len(numbers)):
        begin[numbers[i] + 1] += 1
    for k in range(count):
        begin[k + 1] += begin[k]
    fill = begin[:-1].copy()
    grouped = np.empty(len(values), values.dtype)
    for i in range(len(numbers)):
        k = numbers[i]
        grouped[fill[k]] = values[i]
        fill[k] += 1
    return grouped, begin


@kernel
def classify_sizes(sizes: Ints, order: Ints, begin: Ints, tolerance: float, quantum: float) -> tuple[Ints, Ints]:
    """A class for every record, numbered group by group, and each class's group: sizes within the tolerance share one.

    The records of group g are order[begin[g]:begin[g + 1]].

    Sampled sizes are counts of `quantum` bytes and off by chance, as the root of the count; 0 where all is seen.
    Where a group has more sizes than can be distinguished they form one class, as those of routed tokens do.
    """
    classes = np.zeros(len(sizes), np.int64)
    group = np.empty(len(sizes), np.int64)
    total = 0
    centre = np.empty(_MOST_CLASSES)
    held = np.empty(_MOST_CLASSES, np.int64)
    merged = np.empty(_MOST_CLASSES, np.int64)
    for g in range(len(begin) - 1):
        count = 0
        last = 0
        for i in order[begin[g] : begin[g + 1]]:
            size = np.log(1.0 + max(sizes[i], 0))
            near = _tolerance_at(size, tolerance, quantum)
            if count and abs(size - centre[last]) <= near:
                classes[i] = last
                held[last] += 1
                continue
            best = -1
            nearest = np.inf
            for k in range(count):
                distance = abs(size - centre[k])
                if distance < nearest:
                    nearest = distance
                    best = k
            if best < 0 or (nearest > near and count < _MOST_CLASSES):
                best = count
                centre[best] = size
                held[best] = 0
                count += 1
            classes[i] = best
            held[best] += 1
            last = best
        different = _merge_classes(centre, held, merged, count, tolerance, quantum)
        for i in order[begin[g] : begin[g + 1]]:
            classes[i] = total + merged[classes[i]]
        group[total : total + different] = g
        total += different
    return classes, group[:total].copy()


@kernel
def number_parallel(classes: Ints, count: int, start: Ints, end: Ints) -> Ints:
    """A slot for every record: like ones of one pair that are under way at once, as often as not, are in several.

    Records of a class are in order of start. Several ranks behind one NIC send side by side, one message each.
    """
    busy = np.full((count, _MOST_SLOTS), -(2**62), np.int64)
    held = np.zeros((count, _MOST_SLOTS), np.int64)
    slots = np.empty(len(classes), np.int64)
    for i in range(len(classes)):
        c = classes[i]
        slot = 0
        while slot < _MOST_SLOTS - 1 and busy[c, slot] > start[i]:
            slot += 1
        busy[c, slot] = end[i]
        held[c, slot] += 1
        slots[i] = slot
    for i in range(len(classes)):
        c = classes[i]
        if slots[i] and held[c, slots[i]] < _AS_OFTEN * held[c, 0]:
            slots[i] = 0
    return slots


@kernel
def _tolerance_at(log_size: float, tolerance: float, quantum: float) -> float:
    if quantum <= 0.0:
        return tolerance
    return float(max(tolerance, 4.0 / np.sqrt(max(np.exp(log_size) / quantum, 1.0))))


@kernel
def _merge_classes(
    centre: NDArray[np.float64], held: Ints, merged: Ints, count: int, tolerance: float, quantum: float
) -> int:
    """Number classes by size, joining neighbours that noise or chance alone keeps apart; how many are left."""
    order = np.argsort(centre[:count], kind="mergesort")
    total = 0
    for k in range(count):
        total += held[k]
    crowded = count >= _MOST_CLASSES or (count > 6 and total < 6 * count)
    close = 0
    for j in range(1, count):
        close += centre[order[j]] - centre[order[j - 1]] <= 3.0 * tolerance
    # A few tensors differ in size; many sizes side by side are one that varies.
    wide = 4.0 if count >= 6 and close >= 0.7 * (count - 1) else 1.5
    number = 0
    for j in range(count):
        k = order[j]
        if j:
            before = order[j - 1]
            gap = centre[k] - centre[before]
            few = min(held[k], held[before]) < max(2, 0.02 * total)
            near = gap <= wide * _tolerance_at(centre[before], tolerance, quantum)
            if not (near or (few and gap <= 0.1) or (crowded and gap <= 0.5)):
                number += 1
        merged[k] = number
    return number + 1 if count else 0
