"""Steps: where each one begins and ends, from the steadiest clock of a job."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe.clocks import choose_clock, list_clocks
from prism.observe.period import Times
from prism.observe.stages import find_forward_ways

STEPS = pl.Schema({"index": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64})

_MISSING = 0.15  # of a step's messages that may be lost at either end of what was observed
_PAUSE = 0.1  # of a step: silence longer than usual by this much is a pause


def find_steps(messages: pl.DataFrame, voices: pl.DataFrame, period_ns: float) -> pl.DataFrame:
    """Cut one job's messages into steps: where the last synchronisation of the one before has ended.

    `messages` are the job's with voice, start and end; `voices` carry role and kind.
    """
    table = np.full(int(voices["voice"].max() or 0) + 1, -1, np.int64)  # type: ignore[arg-type]
    steady = voices.filter(pl.col("role") != "rare")
    table[steady["voice"].to_numpy()] = np.arange(steady.height)
    row = table[messages["voice"].to_numpy()]
    start = messages["start_ns"].to_numpy()
    order = np.flatnonzero(row >= 0)
    order = order[np.argsort(start[order], kind="stable")]
    if len(order) < 4:
        return pl.DataFrame(schema=STEPS)
    start, end, row = start[order], messages["end_ns"].to_numpy()[order], row[order]
    opening = _open_steps(pl.DataFrame({"start_ns": start, "row": row}), steady)
    clock = choose_clock(list_clocks(start, end, row, steady, period_ns, opening), start, opening)
    if clock is None:
        return pl.DataFrame(schema=STEPS)
    return _to_frame(clock.marks, start, end, period_ns)


def _open_steps(sent: pl.DataFrame, voices: pl.DataFrame) -> NDArray[np.bool_]:
    """Which messages may be the first of a step: those of a forward pass, where these are known, else all."""
    pipe = voices["role"].to_numpy() == "pp"
    src, dst = (voices[c].to_numpy().astype(np.int64) for c in ("src_host", "dst_host"))
    row = sent["row"].to_numpy()
    own = pl.DataFrame({"voice": row, "start_ns": sent["start_ns"], "src": src[row], "dst": dst[row]})
    hosts = np.arange(int(max(src.max(), dst.max())) + 1)
    forward = find_forward_ways(own.filter(pl.Series(pipe[row])), hosts)
    if not forward:
        return np.ones(len(row), np.bool_)
    onward = np.array([(int(a), int(b)) in forward for a, b in zip(src, dst, strict=True)])
    return np.asarray((onward | ~pipe)[row])


def _to_frame(boundaries: Times, starts: Times, ends: Times, period_ns: float) -> pl.DataFrame:
    """Steps between boundaries, and the first and last one where all their messages were seen."""
    if len(boundaries) < 2:
        return pl.DataFrame(schema=STEPS)
    at = np.searchsorted(starts, boundaries)
    typical = float(np.median(np.diff(at)))
    # From a boundary to the next message: what passes unseen at the start of a step.
    leads = (starts[np.minimum(at[:-1], len(starts) - 1)] - boundaries[:-1]).clip(0)
    lead = float(np.median(leads))
    # A pause (an evaluation, a checkpoint, a restart) belongs to the step it follows, not to the one that it delays.
    # Slow compute delays the first message of many steps; a pause comes now and then.
    late = leads > lead + _PAUSE * period_ns
    alone = ~np.concatenate([[False], late[:-1]]) & ~np.concatenate([late[1:], [False]])
    paused = np.nonzero(late & alone)[0]
    boundaries = boundaries.copy()
    boundaries[paused] = starts[at[paused]] - int(lead)
    begin, end = boundaries[:-1].tolist(), boundaries[1:].tolist()
    if at[0] >= (1 - _MISSING) * typical:
        begin, end = [int(starts[0]) - int(lead), *begin], [int(boundaries[0]), *end]
    if len(starts) - at[-1] >= (1 - _MISSING) * typical:
        # The next step's first messages would have closed it; others show how long after as many messages they came.
        seen = len(starts) - at[-1]
        busy = np.maximum.accumulate(ends)
        rest = float(np.median(boundaries[1:] - busy[np.minimum(at[:-1] + seen, at[1:]) - 1]))
        begin, end = [*begin, int(boundaries[-1])], [*end, int(ends.max()) + int(max(rest, 0.0))]
    frame = pl.DataFrame({"start_ns": begin, "end_ns": end}).with_row_index("index")
    return frame.select(pl.col(c).cast(t) for c, t in STEPS.items())
