"""Waits: what each host costs the collectives of a job, had it come with the others.

A collective goes on when its last member has come. The hops that do not touch a host show when the others had: what is
between them and the last hop is what the host alone costs. Nothing depends on the algorithm (ring, tree, all-to-all),
nor on whether a hop begins with its sender or once both of its ends are ready.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.traffic.numbering import number_keys

_TOGETHER = ("dp", "ep", "embedding", "tp")
_LIKE = 20.0  # classes of sizes in a factor of e


@dataclass(frozen=True)
class Waits:
    """By host and step: seconds that all others wait for it alone; `seen` are steps with collectives to judge by."""

    hosts: list[str]
    cost_s: Floats
    seen: NDArray[np.bool_]


def measure_waits(case: Case) -> Waits | None:
    """What each host costs every step; None where no collective has hops between other hosts to compare with."""
    columns = ("kind", "stream", "src", "dst", "step", "place", "start_ns", "end_ns")
    steady = (pl.col("step") >= 0) & (pl.col("role") != "rare") & pl.col("kind").is_in(list(_TOGETHER))
    size = (pl.col("bytes").log1p().median().over("stream") * _LIKE).round().cast(pl.Int64).alias("size")
    known = case.messages.lazy().filter(steady).select(*columns, size).collect()
    if known.is_empty():
        return None
    names, number = np.unique(np.array(case.hosts, dtype=str), return_inverse=True)
    host = number.astype(np.int64)
    src, dst = known["src"].to_numpy().astype(np.int64), known["dst"].to_numpy().astype(np.int64)
    stage = np.full(len(host), -1, np.int64)
    stage[list(case.stages.stage)] = list(case.stages.stage.values())
    step, place = (known[c].to_numpy().astype(np.int64) for c in ("step", "place"))
    kind = known["kind"].rank("dense").to_numpy().astype(np.int64)
    group, _ = number_keys((known["size"].to_numpy() * 8 + kind) * (stage.max() + 2) + stage[src] + 1)
    call, _ = number_keys((group * (place.max() + 1) + place) * case.steps.height + step)
    order = np.argsort(call, kind="stable")
    cost, seen = _sum_costs(
        call[order], host[src][order], host[dst][order], step[order], known["start_ns"].to_numpy()[order],
        known["end_ns"].to_numpy()[order], (len(names), case.steps.height),
    )  # fmt: skip
    return Waits(names.tolist(), cost / 1e9, seen) if seen.any() else None


@numba.njit(cache=True, nogil=True)
def _sum_costs(
    call: Ints, src: Ints, dst: Ints, step: Ints, start: Ints, end: Ints, shape: tuple[int, int]
) -> tuple[Floats, NDArray[np.bool_]]:
    """By host and step the time between the last hop of each collective and the last one that does not touch a host."""
    cost = np.zeros(shape)
    seen = np.zeros(shape[1], np.bool_)
    low = 0
    while low < len(call):
        high = low + 1
        while high < len(call) and call[high] == call[low]:
            high += 1
        last = low + np.argmax(start[low:high])
        for side in range(2):
            late = src[last] if side == 0 else dst[last]
            others, until = np.int64(-1), np.int64(-1)
            for i in range(low, high):
                if src[i] != late and dst[i] != late and start[i] > others:
                    others, until = start[i], end[i]
            if others >= 0:
                seen[step[low]] = True
                # Those that were done before it began did not wait for it: they are of another collective.
                if until > start[last] and src[last] != dst[last]:
                    cost[late, step[low]] += start[last] - others
        low = high
    return cost, seen
