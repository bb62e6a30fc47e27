"""Awaited hosts: which host rings wait for, if an exporter's idle timeout splits or merges the records of their hops.

Until its last member arrives, every hop of a ring sends a first part and waits. Each rank that has arrived adds its own
piece to what it passes on, so every host sends more than it receives. Two do not: the host of the missing rank, which
passes on the least, and the one before it, which waits once the buffers ahead are full. The rest follows when the rank
arrives: the silence before is how late it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.findings.cost import settle
from prism.observe.findings.windows import Window
from prism.observe.traffic.numbering import group_by_number
from prism.records.findings import Finding

_FIRST = levels.SHARE_HALF  # of what follows: a first part is smaller
_SAME_HOST = levels.SHARE_LARGE  # of the waits that are for one host
_IN_STEPS = levels.SHARE_HALF  # of the steps that must have such a wait
_LATE = levels.SHARE_SMALL  # of the work before: ranks differ by less by design and by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """What a job sends between silences that are longer than those inside its records."""

    begin_ns: Ints
    end_ns: Ints
    sent: Floats  # by burst and host, bytes
    kept: Floats  # the same: what it receives beyond what it sends
    before: NDArray[np.bool_]  # by host and host: whether the second sends to the first


def find_awaited(case: Case) -> list[Finding]:
    """The host for which collectives wait in most steps, by a large part of the work before them."""
    names = list(case.own_by_host)
    number = {name: i for i, name in enumerate(names)}
    if case.steps.height < levels.MIN_EVENTS or len(names) < levels.MIN_COMPARED:
        return []
    bursts = _list_bursts(case, np.array([number.get(h, -1) for h in case.hosts], np.int64), len(names))
    if bursts is None:
        return []
    at, whom = _find_missing(bursts)
    if not len(at):
        return []
    host = int(np.bincount(whom).argmax())
    own = at[whom == host]
    share, steps = len(own) / len(at), case.steps["start_ns"].to_numpy()
    work = (bursts.begin_ns[own] - bursts.end_ns[own - 1]).astype(np.float64)
    wait = (bursts.begin_ns[own + 1] - bursts.end_ns[own]).astype(np.float64)
    held_up = len(np.unique(np.searchsorted(steps, bursts.begin_ns[own], side="right")))
    if share < _SAME_HOST or np.median(wait / work) < _LATE or held_up < _IN_STEPS * len(steps):
        return []
    return [_tell(case, names[host], wait / 1e9, len(at))]


def _tell(case: Case, host: str, wait_s: Floats, num_waits: int) -> Finding:
    share, last = len(wait_s) / num_waits, case.steps.height - 1
    late = min(float(wait_s.sum() / case.length_s.sum()), levels.SHARE_HALF)
    cost = settle(case, Window(0, last, late / (1 - late), share), None)
    evidence = (
        f"{len(wait_s)} of {num_waits} times when every hop of a ring had sent a first part and waited, this host had "
        f"taken in most beyond what it passed on; they waited {1000 * np.median(wait_s):.1f} ms for it; {cost.words}"
    )
    who = case.name_worker(sorted(case.own_by_host[host]))
    return case.finding("slow_compute", who, 0, last, lost_s=cost.lost_s, score=share, evidence=evidence)


def _find_missing(bursts: Bursts) -> tuple[Ints, Ints]:
    """Bursts, except the first and last, that are first parts of rings, and the host that each of them waits for."""
    whom = bursts.kept.argmax(axis=1)
    gives = (bursts.kept < 0) | bursts.before[whom]
    gives[np.arange(len(whom)), whom] = True
    total = bursts.sent.sum(axis=1)
    first = gives.all(axis=1) & (whom == bursts.sent.argmin(axis=1)) & (bursts.kept.max(axis=1) > 0)
    first[1:-1] &= total[1:-1] < _FIRST * total[2:]
    first[[0, -1]] = False
    at = np.flatnonzero(first)
    return at, whom[at]


def _list_bursts(case: Case, host: Ints, num_hosts: int) -> Bursts | None:
    """The bursts of a job that only sums gradients; of a transfer that was joined, what it sent before it waited."""
    if not (case.streams.filter(pl.col("role") != "rare")["kind"] == "dp").all():
        return None
    rows = np.flatnonzero(case.messages["bytes"].to_numpy() >= levels.SMALL_MESSAGE_BYTES)
    units, unit = np.unique(case.streams["unit"].to_numpy(), return_inverse=True)
    unit_of = np.zeros(int(case.streams["stream"].max()) + 1, np.int64)  # type: ignore[arg-type]
    unit_of[case.streams["stream"].to_numpy()] = unit
    # Messages come pair by pair, so those of one connection are in order of start.
    stream, start, end = (case.messages[c].to_numpy()[rows] for c in ("stream", "start_ns", "end_ns"))
    silence = _find_idle_timeout(unit_of[stream], len(units), start, end)
    if silence is None:
        return None
    size = case.messages["bytes"].to_numpy()[case.by_start]
    rows, size = case.by_start[size >= levels.SMALL_MESSAGE_BYTES], size[size >= levels.SMALL_MESSAGE_BYTES]
    start, end = (case.messages[c].to_numpy()[rows] for c in ("start_ns", "end_ns"))
    begun = case.messages["begun"].to_numpy()[rows] if "begun" in case.messages.columns else np.zeros_like(start)
    reach = np.maximum.accumulate(np.where(begun > 0, start, end))
    fresh = np.concatenate([[True], start[1:] - reach[:-1] >= silence])
    first = np.flatnonzero(fresh)
    burst = np.cumsum(fresh) - 1
    amount = np.where(begun > 0, begun, size).astype(np.float64)
    src, dst = (host[case.messages[side].to_numpy()[rows]] for side in ("src", "dst"))
    sent, taken = (
        np.bincount(burst * num_hosts + side, amount, len(first) * num_hosts).astype(np.float64).reshape(-1, num_hosts)
        for side in (src, dst)
    )
    before = np.zeros((num_hosts, num_hosts), np.bool_)
    before[dst, src] = True
    last = np.append(first[1:], len(start)) - 1
    return Bursts(begin_ns=start[first], end_ns=reach[last], sent=sent, kept=taken - sent, before=before)


def _find_idle_timeout(unit: Ints, count: int, start: Ints, end: Ints) -> int | None:
    """The shortest silence between two records of one connection: an exporter merges what follows sooner.

    None if it is shorter than any exporter's timeout: then each transfer has its own record.
    """
    order, begin = group_by_number(unit, count)
    silence = start[order][1:] - end[order][:-1]
    silence[begin[(begin > 0) & (begin < len(order))] - 1] = 0  # where the next unit begins
    shortest = int(silence[silence > 0].min(initial=2**62))
    return shortest if levels.MILLISECOND_NS <= shortest < 2**62 else None
