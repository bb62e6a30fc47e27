"""Replay captured CPU ranks on this host: their calls over real gloo, their work as busy time, no rank pinned.

What gloo's threads and the kernel's scheduling take is then measured as torchrun would have it. Each rank needs a core.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prism.emulate.capture import Capture, CapturedEntry, Iterations
from prism.emulate.measuring import start_ranks
from prism.errors import PrismError

_WARMUP_ROUNDS = 1
_FEWEST_ROUNDS, _MOST_ROUNDS, _FEWEST_STEPS = 3, 40, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """How long a replay may take."""

    budget_s: float = 8.0
    timeout_s: float = 120.0
    note: Callable[[str], None] = lambda message: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the iterations took."""

    step_ns: tuple[int, ...]  # the median of each iteration
    spread_pct: float  # half of what lies between the slowest and the fastest tenth of rounds, of their median


def can_replay(captures: Mapping[int, Capture]) -> bool:
    """Whether every rank was captured on the CPU and has a core here."""
    first = next(iter(captures.values()))
    on_cpu = all(capture.device == "cpu" for capture in captures.values())
    return on_cpu and len(captures) == first.world_size > 1 and first.world_size <= len(os.sched_getaffinity(0))


def replay(
    captures: Mapping[int, Capture], measured: Mapping[int, Iterations], expected_ns: float, config: ReplayConfig
) -> Replayed | None:
    """Steps of these iterations, run over and over; None where that fails, since a model can still stand in."""
    count = min(len(parts) for parts in measured.values())
    rounds = round(config.budget_s * 1e9 / max(expected_ns * count, 1))
    rounds = max(_FEWEST_ROUNDS, -(-_FEWEST_STEPS // count), min(rounds, _MOST_ROUNDS)) + _WARMUP_ROUNDS
    plan = {**write_plan(captures, measured), "rounds": rounds}
    config.note(f"replaying {count} iterations of {len(captures)} ranks {rounds} times over gloo")
    try:
        with tempfile.TemporaryDirectory(prefix="prism-") as scratch:
            asked, answer = Path(scratch) / "plan.json", Path(scratch) / "ends"
            asked.write_text(json.dumps(plan))
            start_ranks("replay", asked, answer, len(captures), pin=False, timeout_s=config.timeout_s)
            ends = [json.loads(Path(f"{answer}.{rank}").read_text()) for rank in sorted(captures)]
    except (PrismError, OSError, ValueError) as error:
        config.note(f"the calls could not be replayed ({error}); their times are modelled")
        return None
    return read_ends(np.array(ends, np.int64), count)


def read_ends(ends: npt.NDArray[np.int64], count: int) -> Replayed:
    """Steps from the ends of every rank's iterations, round after round; the first rounds make the connections."""
    steps = np.diff(ends, axis=1).mean(axis=0)[_WARMUP_ROUNDS * count - 1 :]
    rounds = steps[: len(steps) // count * count].reshape(-1, count)
    totals = rounds.sum(axis=1)
    low, high = np.percentile(totals, [10, 90])
    return Replayed(
        step_ns=tuple(int(x) for x in np.median(rounds, axis=0)),
        spread_pct=float((high - low) / 2 / np.median(totals) * 100),
    )


def write_plan(captures: Mapping[int, Capture], measured: Mapping[int, Iterations]) -> dict[str, Any]:
    """Groups of global ranks, and every rank's iterations as work, calls and waits."""
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    world = tuple(range(next(iter(captures.values())).world_size))
    members = {g.name: g.ranks or world for c in captures.values() for g in c.groups}
    used = {e.group for parts in measured.values() for part in parts for e in part if e.is_communication}
    for name in sorted(used):
        numbers[name, members[name]] = len(numbers)
    index = {name: number for (name, _), number in numbers.items()}
    parts = _list_parts(measured, members)
    ranks = [
        [_write(rank, part, number, index, members, parts) for number, part in enumerate(measured[rank])]
        for rank in sorted(measured)
    ]
    return {"groups": [list(ranks) for _, ranks in numbers], "ranks": ranks}


_Exchange = tuple[int, str, int]  # iteration, group, number of the all-to-all in it


def _list_parts(
    measured: Mapping[int, Iterations], members: Mapping[str, tuple[int, ...]]
) -> dict[_Exchange, dict[int, list[int]]]:
    """What each rank sends to each position of every all-to-all."""
    found: dict[_Exchange, dict[int, list[int]]] = defaultdict(dict)
    for rank, parts in measured.items():
        for number, part in enumerate(parts):
            seen: Counter[str] = Counter()
            for entry in part:
                if entry.what == "all_to_all":
                    even = len(members[entry.group])
                    sizes = list(entry.sizes) or [entry.bytes // even] * even
                    found[number, entry.group, seen[entry.group]][rank] = sizes
                    seen[entry.group] += 1
    return found


def _write(
    rank: int, part: tuple[CapturedEntry, ...], number: int, index: Mapping[str, int],
    members: Mapping[str, tuple[int, ...]], parts: Mapping[_Exchange, Mapping[int, list[int]]],
) -> list[list[Any]]:  # fmt: skip
    out: list[list[Any]] = []
    seen: Counter[str] = Counter()
    for entry in part:
        if entry.gap_ns > 0:
            out.append(["work", entry.gap_ns])
        if entry.what == "wait":
            out.append(["wait", entry.op])
        if not entry.is_communication:
            continue
        inside = members[entry.group]
        sends = takes = None
        if entry.what == "all_to_all":
            table = parts[number, entry.group, seen[entry.group]]
            seen[entry.group] += 1
            if len({size for sizes in table.values() for size in sizes}) > 1 and len(table) == len(inside):
                sends, takes = table[rank], [table[other][inside.index(rank)] for other in inside]
        call = ["call", entry.op, entry.what, index[entry.group], entry.bytes, entry.peer, entry.tag, entry.lane < 0]
        out.append([*call, sends, takes])
    return out
