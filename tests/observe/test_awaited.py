"""First parts of rings tell whom they wait for, where an idle timeout merges all that follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from prism.observe.findings.awaited import find_awaited
from prism.records.findings import Culprit

MS, MB = 10**6, 10**6
STEP_MS, WORK_MS, NUM = 200, 100, 12
HOSTS = [f"h{i}" for i in range(4)]


def write_messages(first: list[list[int]], wait_ms: float) -> list[dict[str, int]]:
    """Steps of a ring of four: what each hop sends first, a wait, and the rest in one long record."""
    rows = []
    for step in range(NUM):
        begin = step * STEP_MS + WORK_MS
        for hop, part in enumerate(first[step % len(first)]):
            whole = [(begin + hop / 10, 1.0, part)] if part else []
            for at, took, size in [*whole, (begin + 2 + wait_ms, 30.0, 100)]:
                start = round(at * MS)
                rows.append({
                    "stream": hop, "src": hop, "dst": (hop + 1) % 4, "bytes": size * MB,
                    "start_ns": start, "end_ns": start + round(took * MS),
                })  # fmt: skip
    return rows


def name_awaited(first: list[list[int]], wait_ms: float = 40.0, kind: str = "dp") -> list[str]:
    messages = pl.DataFrame(write_messages(first, wait_ms))
    case: Any = SimpleNamespace(
        hosts=HOSTS,
        own_by_host={host: {e} for e, host in enumerate(HOSTS)},
        steps=pl.DataFrame({"start_ns": np.arange(NUM) * STEP_MS * MS, "end_ns": (np.arange(NUM) + 1) * STEP_MS * MS}),
        length_s=np.full(NUM, STEP_MS / 1000),
        streams=pl.DataFrame({"stream": range(4), "unit": range(4), "role": ["oneway"] * 4, "kind": [kind] * 4}),
        messages=messages,
        by_start=messages["start_ns"].arg_sort().to_numpy(),
        name_worker=lambda members: Culprit(type="host", id=HOSTS[members[0]]),
        finding=lambda kind, who, first, last, **_: who.id,
    )
    return [str(found) for found in find_awaited(case)]


def late_at(host: int) -> list[int]:
    """What the four hops send before a late rank of a host comes: more with every hop after it."""
    return [1 + (hop - host) % 4 for hop in range(4)]


@pytest.mark.parametrize("host", range(4))
def test_the_host_that_keeps_most_and_passes_on_least_is_awaited(host: int) -> None:
    assert name_awaited([late_at(host)]) == [HOSTS[host]]


def test_full_buffers_ahead_make_the_host_before_keep_something_too() -> None:
    assert name_awaited([[20, 35, 25, 5]]) == ["h3"]


@pytest.mark.parametrize(
    ("first", "wait_ms", "kind"),
    [
        ([late_at(host) for host in range(4)], 40.0, "dp"),
        ([[3, 3, 3, 0]], 40.0, "dp"),
        ([late_at(2)], 8.0, "dp"),
        ([late_at(2)], 40.0, "pp"),
    ],
    ids=["another one each time", "a broadcast", "late by less than chance", "a pipeline"],
)
def test_nobody_is_awaited(first: list[list[int]], wait_ms: float, kind: str) -> None:
    assert name_awaited(first, wait_ms, kind) == []
