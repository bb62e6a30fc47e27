"""The flows that `prism watch` keeps: the latest minute or so, bounded in time and rows, saved as it grows."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from prism.errors import BadFileError
from prism.records import FLOWS
from prism.records.files import Format, collect, scan

_KEPT = ("start_ns", "end_ns", "src", "dst", "bytes")
_KEPT_OF_SAMPLES = ("src_port", "dst_port", "qp", "packets", "sampling_rate", "exporter")  # for joining samples
_LONGEST_NS = 24 * 3600 * 10**9  # No transfer lasts a day: such a record is damaged.
_FAR_AHEAD_NS = 3600 * 10**9
_SEGMENTS = 32  # that a full window is made of, at least
_LOOK_S = 4.0  # so that two looks, and the wait for the first one, take less than 15 s
_SHRINK, _GROW = 0.6, 1.2  # times the last length, at most
_STEPS = 12
_MANY = 20  # flows that must agree before the clock counts as having jumped
_moment = pl.coalesce("end_ns", "start_ns")


def _columns_of(flows: pl.DataFrame) -> list[str]:
    """The columns to keep: packet samples need those that identify a connection, other flows do not."""
    rate = flows["sampling_rate"].max() if "sampling_rate" in flows.columns else None
    more = _KEPT_OF_SAMPLES if isinstance(rate, int) and rate > 1 else ()
    return [*_KEPT, *(c for c in more if c in flows.columns)]


def fit_length(length_ns: int, held_ns: int, took_s: float, longest_step_s: float) -> int:
    """How far to look back, after a look at `held_ns` of what may be `length_ns` took so long.

    A late report is useless, but findings need several steps of the slowest job, however long a look takes.
    """
    if took_s > _LOOK_S:
        wanted = min(length_ns, held_ns) * max(_LOOK_S / took_s, _SHRINK)
    else:
        wanted = length_ns * min(_LOOK_S / max(took_s, 1e-3), _GROW)
    return int(max(wanted, _STEPS * longest_step_s * 1e9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Flows added between two looks, and the file that holds them."""

    flows: pl.DataFrame
    last_ns: int
    path: Path | None


@dataclass(slots=True)
class FlowWindow:
    """A sliding window over flows by their end time; `folder` keeps it across restarts."""

    length_ns: int
    max_rows: int
    folder: Path | None = None
    newest_ns: int = 0
    begin_ns: int = 0  # Nothing was observed before this: silence there is not the jobs'.
    dropped: Counter[str] = field(default_factory=Counter)
    _segments: deque[Segment] = field(default_factory=deque)
    _open: list[pl.DataFrame] = field(default_factory=list)
    _open_rows: int = 0
    _num_rows: int = 0
    _next_file: int = 0

    @property
    def num_rows(self) -> int:
        """Flows held."""
        return self._num_rows

    @property
    def held_ns(self) -> int:
        """The approximate time that the flows cover."""
        return self.newest_ns - self._segments[0].last_ns if self._segments else 0

    def add(self, flows: pl.DataFrame) -> int:
        """Add flows, without impossible and too old ones; returns how many were kept."""
        kept = self._leave_out(flows.select(_columns_of(flows)))
        if kept.height:
            self._open.append(kept)
            self._open_rows += kept.height
            self._num_rows += kept.height
            self.newest_ns = max(self.newest_ns, int(kept.select(_moment.max()).item()))
            # Small segments, because flows leave the window by whole segments.
            if self._open_rows > self.max_rows // _SEGMENTS:
                self.seal()
        return kept.height

    def seal(self) -> None:
        """Close the open segment, write it, and drop the segments that have left the window."""
        if self._open:
            flows = pl.concat(self._open, how="diagonal").rechunk()
            self._open, self._open_rows = [], 0
            self._keep(flows, self._write(flows))
        horizon = self.newest_ns - self.length_ns
        while self._segments and self._segments[0].last_ns < horizon:
            self._let_go(self._segments.popleft())
        self._shrink_to_limit()

    def flows(self, until_ns: int, length_ns: int | None = None) -> pl.DataFrame:
        """FLOWS that ended inside the window that ends at `until_ns`, or in a shorter one that does."""
        begin_ns = max(until_ns - min(length_ns or self.length_ns, self.length_ns), self.begin_ns)
        held = [s.flows for s in self._segments if s.last_ns >= begin_ns]
        if not held:
            return FLOWS.empty()
        return pl.concat(held, how="diagonal").filter(_moment.is_between(begin_ns, until_ns))

    @property
    def next_segment(self) -> int:
        """The number of the next segment to be written."""
        return self._next_file

    def restore(self, before: int | None = None) -> None:
        """Read what an earlier run wrote, up to a segment; later segments and unreadable ones are removed."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob("*.parquet")):
            if before is not None and int(path.stem) >= before:  # The source will deliver it again.
                path.unlink()
                continue
            try:
                flows = FLOWS.conform(collect(scan(path, Format.PARQUET), path))
            except BadFileError:  # The run was killed while it wrote this segment.
                path.unlink()
                self.dropped["segments cut by a kill"] += 1
                continue
            self._next_file = int(path.stem) + 1
            self._num_rows += flows.height
            self._keep(flows, path)
            self.newest_ns = max(self.newest_ns, self._segments[-1].last_ns)
        self.seal()

    def _keep(self, flows: pl.DataFrame, path: Path | None) -> None:
        last = flows.select(_moment.max()).item()
        self._segments.append(Segment(flows=flows, last_ns=int(last or 0), path=path))

    def _leave_out(self, flows: pl.DataFrame) -> pl.DataFrame:
        odd = (
            (pl.col("start_ns") < 0)
            | (pl.col("bytes") < 0)
            | (pl.col("end_ns") < pl.col("start_ns"))
            | (pl.col("end_ns") - pl.col("start_ns") > _LONGEST_NS)
        ).fill_null(False)
        kept = self._count_out(flows, odd, "flows with impossible times or sizes")
        if not kept.height:
            return kept
        usual = int(kept.select(_moment.median()).item())
        ahead = _moment > (self.newest_ns or usual) + _FAR_AHEAD_NS
        num_ahead = int(kept.select(ahead.sum()).item())
        if num_ahead < _MANY or 2 * num_ahead <= kept.height:
            kept = self._count_out(kept, ahead, "flows from a clock far ahead")
        else:  # The clock itself jumped: the flows are in the majority.
            kept = self._count_out(kept, (_moment - usual).abs() > _FAR_AHEAD_NS, "flows from a clock far ahead")
        return self._count_out(kept, _moment < self.newest_ns - self.length_ns, "flows that came too late")

    def _count_out(self, flows: pl.DataFrame, bad: pl.Expr, why: str) -> pl.DataFrame:
        kept = flows.filter(~bad)
        if kept.height < flows.height:
            self.dropped[why] += flows.height - kept.height
        return kept

    def _shrink_to_limit(self) -> None:
        while self._num_rows > self.max_rows and len(self._segments) > 1:
            oldest = self._segments.popleft()
            self.dropped["flows beyond the limit of the window"] += oldest.flows.height
            self._let_go(oldest)
        if self._num_rows > self.max_rows:
            only = self._segments.pop()
            kept = only.flows.sort(_moment).tail(self.max_rows)
            self.dropped["flows beyond the limit of the window"] += only.flows.height - kept.height
            self._num_rows = kept.height
            self._segments.append(Segment(flows=kept, last_ns=only.last_ns, path=only.path))

    def _let_go(self, segment: Segment) -> None:
        self._num_rows -= segment.flows.height
        if segment.path is not None:
            segment.path.unlink(missing_ok=True)

    def _write(self, flows: pl.DataFrame) -> Path | None:
        if self.folder is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self._next_file:08d}.parquet"
        self._next_file += 1
        flows.write_parquet(path, compression="lz4", statistics=False)
        return path
