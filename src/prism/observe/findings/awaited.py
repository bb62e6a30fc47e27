"""Awaited hosts: whom collectives wait for, where an idle timeout merges what they send afterwards into long records.

Until its last member comes, every hop of a ring sends a first part and waits. Each rank that has come adds its own piece
to what it passes on, so the host of the one that is missing alone takes in more than it sends. The rest follows at once
when it comes: the silence before is how late it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from prism.observe import levels
from prism.observe.findings.case import Case, Floats, Ints
from prism.observe.findings.cost import settle
from prism.observe.findings.windows import Window
from prism.records.findings import Finding

_FIRST = levels.SHARE_HALF  # of what follows: a first part is less
_SAME_HOST = levels.SHARE_LARGE  # of the waits that are for one host
_IN_STEPS = levels.SHARE_HALF  # of the steps that must have such a wait
_LATE = levels.SHARE_SMALL  # of the work before: ranks differ by less by design and by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """What a job sends between silences that are longer than those inside its records."""

    begin_ns: Ints
    end_ns: Ints
    kept: Floats  # by burst and host: bytes that it takes in beyond what it sends
    total: Floats


def find_awaited(case: Case) -> list[Finding]:
    """The host for which collectives wait in most steps, by a good part of the work before them."""
    names, number = np.unique(np.array(case.hosts, dtype=str), return_inverse=True)
    bursts = _list_bursts(case, number.astype(np.int64), len(names))
    if bursts is None or case.steps.height < levels.MIN_EVENTS:
        return []
    work = (bursts.begin_ns[1:-1] - bursts.end_ns[:-2]).astype(np.float64)
    wait = (bursts.begin_ns[2:] - bursts.end_ns[1:-1]).astype(np.float64)
    first = (bursts.total[1:-1] < _FIRST * bursts.total[2:]) & ((bursts.kept[1:-1] > 0).sum(axis=1) == 1)
    at = np.flatnonzero(first)
    whom = bursts.kept[at + 1].argmax(axis=1)
    step = np.searchsorted(case.steps["start_ns"].to_numpy(), bursts.begin_ns[at + 1], side="right")
    if not len(at):
        return []
    host = int(np.bincount(whom).argmax())
    own = whom == host
    share, late = float(own.mean()), float(np.median(wait[at[own]] / work[at[own]]))
    if share < _SAME_HOST or late < _LATE or len(np.unique(step[own])) < _IN_STEPS * case.steps.height:
        return []
    window = Window(0, case.steps.height - 1, late, share)
    cost = settle(case, window, None)
    evidence = (
        f"{int(own.sum())} of {len(at)} times when every hop of a collective had sent a first part and waited, it alone "
        f"had taken in more than it sent; it came later than the others by {100 * late:.0f} % of their work; {cost.words}"
    )
    who = case.name_worker(sorted(case.own_by_host[str(names[host])]))
    return [case.finding("slow_compute", who, 0, window.last, lost_s=cost.lost_s, score=share, evidence=evidence)]


def _list_bursts(case: Case, host: Ints, num_hosts: int) -> Bursts | None:
    """The bursts of large messages between hosts; of a transfer that was joined only what it sent before it waited."""
    units = case.streams.select("stream", "unit")
    own = case.messages.filter(pl.col("bytes") >= levels.SMALL_MESSAGE_BYTES).join(units, on="stream", how="left")
    own = own.sort("start_ns")
    start, end, size = (own[c].to_numpy() for c in ("start_ns", "end_ns", "bytes"))
    begun = own["begun"].to_numpy() if "begun" in own.columns else np.zeros(len(start), np.int64)
    silence = _find_idle_timeout(own)
    if silence is None:
        return None
    reach = np.maximum.accumulate(np.where(begun > 0, start, end))
    fresh = np.concatenate([[True], start[1:] - reach[:-1] >= silence])
    first = np.flatnonzero(fresh)
    burst = np.cumsum(fresh) - 1
    amount = np.where(begun > 0, begun, size).astype(np.float64)
    kept = np.zeros((len(first), num_hosts))
    for side, sign in (("src", -1.0), ("dst", 1.0)):
        np.add.at(kept, (burst, host[own[side].to_numpy().astype(np.int64)]), sign * amount)
    last = np.append(first[1:], len(start)) - 1
    return Bursts(begin_ns=start[first], end_ns=reach[last], kept=kept, total=np.add.reduceat(amount, first))


def _find_idle_timeout(own: pl.DataFrame) -> int | None:
    """The shortest silence between two records of one connection: an exporter merges what follows sooner."""
    silence = (pl.col("start_ns") - pl.col("end_ns").shift(1)).over("unit").alias("silence")
    shortest = own.select(silence).filter(pl.col("silence") > 0)["silence"].min()
    return None if shortest is None else int(shortest)  # type: ignore[call-overload]
