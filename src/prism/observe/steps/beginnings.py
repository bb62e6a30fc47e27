"""Who begins the step after the last whole one: a rank that is killed while it computes sends nothing in the next.

Of a job that is killed so, records hold no transfer that broke off. The others announce the next collective to their
neighbours, a few numbers on the connections that carry its data, and then end, one after the other. In a job that ends
they all send, such as for a barrier, or none does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels

Ints = NDArray[np.int64]

_QUIET = levels.SHARE_HALF  # of the longest silence of a usual step: the next one begins after it
_MAIN = levels.SHARE_HALF  # of what a host sends goes to its neighbour in a ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A step that some hosts began and others did not; `suspects` are two neighbours, one of which has stopped."""

    start_ns: int
    began: int
    hosts: int
    suspects: tuple[int, ...]  # empty where data takes no ring


def find_beginning(messages: pl.DataFrame, pairs: pl.DataFrame, host: Ints, steps: pl.DataFrame) -> Beginning | None:
    """The step that only some hosts of a job began at its end, if records show one.

    `messages` (pair start_ns end_ns bytes) are single ones, not bursts; `pairs` are src dst by pair, `host` is by
    endpoint.
    """
    if steps.height < levels.MIN_STATISTICS:
        return None
    ordered = messages.select("pair", "start_ns", "end_ns", "bytes").sort("start_ns")
    pair, start, size = (ordered[c].to_numpy() for c in ("pair", "start_ns", "bytes"))
    src, dst = (host[pairs[c].to_numpy()[pair]] for c in ("src", "dst"))
    # An exporter may have stopped earlier.
    late = start >= steps["start_ns"][-levels.MIN_SAMPLES]
    load = pl.DataFrame({"src": src[late], "dst": dst[late], "bytes": size[late]})
    load = load.group_by("src", "dst").agg(pl.col("bytes").sum())
    reach = np.maximum.accumulate(ordered["end_ns"].to_numpy())
    silent = start[1:] - reach[:-1]
    step = np.searchsorted(steps["start_ns"].to_numpy(), start[1:], side="right")
    inside = (step > 0) & (step < steps.height)
    longest = (
        pl.DataFrame({"step": step[inside], "silent": silent[inside]}).group_by("step").agg(pl.col("silent").max())
    )
    # What was sent before is of the last whole step; in the next a neighbour that still runs may take a part.
    large = np.flatnonzero((size >= levels.SMALL_MESSAGE_BYTES) & (start < steps["end_ns"][-1]))
    if not longest.height or not len(large):
        return None
    after = large[-1] + np.flatnonzero(silent[large[-1] :] > _QUIET * float(longest["silent"].median())) + 1  # type: ignore[arg-type]
    if not len(after):
        return None
    first = int(after[0])
    main = load.filter(pl.col("bytes") >= _MAIN * pl.col("bytes").sum().over("src")).select("src", "dst")
    ways = {*main.iter_rows(), *((d, s) for s, d in main.iter_rows())}
    began = {int(s) for s, d in zip(src[first:], dst[first:], strict=True) if (s, d) in ways}
    everyone = set(load["src"].to_list())
    if not began or everyone <= set(src[first:].tolist()):
        return None
    missing = everyone - set(src[first:].tolist())
    suspects = _find_suspects(dict(main.select("dst", "src").iter_rows()), everyone, missing)
    return Beginning(start_ns=int(start[first]), began=len(began), hosts=len(everyone), suspects=suspects)


def _find_suspects(before: dict[int, int], everyone: set[int], missing: set[int]) -> tuple[int, ...]:
    """The host of which others wait and the one that sends to it, in a ring in which data goes from `before`.

    A host cannot receive from one that was killed, and sends nothing either; what it announced just before, the others
    have seen.
    """
    around, at = [], min(everyone)
    while at in before and at not in around:
        around.append(at)
        at = before[at]
    if set(around) != everyone or len(before) != len(everyone) or len(everyone) <= levels.MIN_TWO:
        return ()
    heads = [host for host in missing if before[host] not in missing]
    return (heads[0], before[heads[0]]) if len(heads) == 1 else ()
