"""Span indexes by job, loaded once for all requests and kept while memory allows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from prism.errors import BadFileError
from prism.records import SPANS
from prism.serve.folder import Folder
from prism.serve.library import Library
from prism.serve.timeline import Overlay, SpanIndex, align_steps, build_index, index_phases
from prism.serve.timeline.raster import is_warm
from prism.serve.views.evaluation import find_evaluated, origin_of_phases
from prism.serve.views.job import TimelineSource, find_timeline, match_ranks

_MOST_SPANS = 20_000_000  # of one job; about a gigabyte
_MOST_QUICK = 2_000_000  # spans; so many are drawn in 15 ms


class NoTimelineError(BadFileError):
    """Nothing of that key has a timeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """An index, the moment that its times count from, and its steps."""

    index: SpanIndex
    origin_ns: int
    steps: pl.DataFrame
    source: TimelineSource | None

    @property
    def range_ns(self) -> tuple[int, int]:
        """From the first to the last moment to show: of spans, and of findings outside them."""
        first, last = self.index.window_ns
        more = self.source.shown_ns if self.source is not None else None
        return (first, last) if more is None else (min(first, more[0]), max(last, more[1]))


@dataclass(slots=True)
class Timelines:
    """Indexes of the jobs in a library; when the allowed memory is full, the least recently used are dropped."""

    library: Library
    most_bytes: int = 192 << 20
    _kept: OrderedDict[tuple[str, object], SpanIndex] = field(default_factory=OrderedDict)
    _locks: dict[tuple[str, object], threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, key: str) -> Timeline:
        """The timeline of a job or an evaluation."""
        snapshot = self.library.snapshot_of(key)
        source = find_timeline(snapshot, key)
        if source is not None:
            folder = self.library.folder
            index = self._get((key, folder.find(source.path)), lambda: load_spans(folder, source))
            steps = source.steps if source.steps is not None else index.steps
            origin = source.origin_ns or (index.window_ns[0] if source.steps is None else 0)
            return Timeline(index=index, origin_ns=origin, steps=steps, source=source)
        evaluated = find_evaluated(snapshot, key)
        if evaluated is None:
            raise NoTimelineError(f"{key}: no timeline of that name in the folder")
        phases = evaluated.phases
        index = self._get((key, id(phases)), lambda: index_phases(phases))
        return Timeline(index=index, origin_ns=origin_of_phases(phases), steps=index.steps, source=None)

    def is_quick(self, key: str) -> bool:
        """Whether a window of it is drawn in milliseconds: its spans are in memory, and not very many."""
        source = find_timeline(self.library.snapshot, key)
        if source is None or not is_warm():
            return False
        index = self._kept.get((key, self.library.folder.find(source.path)))
        return index is not None and index.num_spans <= _MOST_QUICK

    def overlay(self, observed: Timeline, key: str) -> Overlay:
        """A prediction laid over an observed job."""
        predicted = self.find(key)
        if observed.source is None or predicted.source is None:
            raise NoTimelineError(f"{key}: only jobs can be laid over each other")
        ranks = match_ranks(observed.source, predicted.source)
        if ranks is not None:
            return Overlay(index=predicted.index, rank_of=ranks, aligned="clock")
        same = {int(rank): int(rank) for rank in predicted.index.ranks}
        shifts = align_steps(observed.steps, predicted.steps)
        return Overlay(index=predicted.index, rank_of=same, aligned="step", shifts=shifts)

    def _get(self, key: tuple[str, object], make: Callable[[], SpanIndex]) -> SpanIndex:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # Of two hundred simultaneous requests one loads and the others wait.
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            index = make()
            with self._lock:
                self._keep(key, index)
                self._locks.pop(key, None)
        return index

    def _keep(self, key: tuple[str, object], index: SpanIndex) -> None:
        for old in [known for known in self._kept if known[0] == key[0]]:
            del self._kept[old]  # the index of an earlier version of the file
        self._kept[key] = index
        while len(self._kept) > 1 and sum(kept.num_bytes for kept in self._kept.values()) > self.most_bytes:
            self._kept.popitem(last=False)


def load_spans(folder: Folder, source: TimelineSource) -> SpanIndex:
    """Read the spans of one job from a file."""
    spans = read_spans(folder, source)
    if len(spans) > _MOST_SPANS:
        raise BadFileError(f"{source.path}: {len(spans):,} spans of one job, {_MOST_SPANS:,} are shown at most")
    return build_index(spans)


def read_spans(folder: Folder, source: TimelineSource) -> pl.DataFrame:
    """SPANS of one job from a file, without reading the other jobs."""
    with folder.open(source.path) as descriptor:
        try:
            scanned = pl.scan_parquet(f"/proc/self/fd/{descriptor}", low_memory=True)
            if source.job is not None:
                scanned = scanned.filter(pl.col("job") == source.job)
            return SPANS.conform(scanned.collect(), source.path)
        except pl.exceptions.PolarsError as error:
            message = str(error).splitlines()[0][:200]
            raise BadFileError(f"{source.path}: not a table of spans ({message})") from None
