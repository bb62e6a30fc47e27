"""Read a log once and keep the few segments that may matter; memory stays bounded for any log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.evidence.logs.triggers import PROGRESS_WORDS, TROUBLE_WORDS, build_automaton

# Below this the plain scanner is faster than loading the compiled one.
COMPILED_FROM_BYTES = 24 << 20
MAX_LINE_BYTES = 1 << 20  # A longer line is examined in pieces of this size.
MAX_TEXT_BYTES = 4096  # What is kept of one segment, around its first trigger.
HEAD_LINES, MIN_HEAD_LINES = 40, 4
SMALL_LOG_LINES = 500  # Every line of a log this short is examined.
TAIL_BYTES = 128 << 10
MAX_TAIL_LINES, MIN_TAIL_LINES = 1000, 16  # of one log, and of each of very many
BEFORE, AFTER = 3, 3  # Neighbours kept with a hit: the code lines of a traceback, the fields of a launcher's summary.
SAME_TEMPLATE_LIMIT = 24  # Limit for lines that differ only in digits, per chunk and per log.
MAX_SEGMENTS = 20_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of one line; `progress` counts the progress lines before it, `hit` means that it contains a trigger."""

    line: int
    text: bytes
    progress: int
    hit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkScan:
    """Offsets of the segments kept of one chunk, and how far the chunk moved the counters."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lines: NDArray[np.int64]
    triggers: NDArray[np.int64]
    progress: NDArray[np.int64]
    templates: NDArray[np.int64]
    num_lines: int
    num_progress: int


@dataclass(slots=True)
class LogScan:
    """What was kept of one log so far; `take` adds the next chunk's scan."""

    segments: list[Segment] = field(default_factory=list)
    tail: deque[Segment] = field(default_factory=lambda: deque(maxlen=2 * SAME_TEMPLATE_LIMIT * 100))
    num_lines: int = 0
    num_progress: int = 0
    is_wrapped: bool = False  # lines have the headers that envelopes.py writes
    share: int = 1  # number of logs of the job: the more logs, the fewer lines of each are examined
    _seen: Counter[int] = field(default_factory=Counter)
    _end: bytes = b""
    _end_open: bool = False

    def take(self, chunk: bytes, scan: ChunkScan, *, closed: bool) -> None:
        """Keep what `scan` found in `chunk`; `closed` means that the chunk ends at the end of a line."""
        for start, end, line, trigger, progress, template in zip(
            scan.starts.tolist(),
            scan.ends.tolist(),
            scan.lines.tolist(),
            scan.triggers.tolist(),
            scan.progress.tolist(),
            scan.templates.tolist(),
            strict=True,
        ):
            hit = trigger >= 0
            if hit:
                self._seen[template] += 1
                if self._seen[template] > SAME_TEMPLATE_LIMIT:
                    continue
            text = _cut(chunk, start, end, trigger)
            segment = Segment(self.num_lines + line + 1, text, self.num_progress + progress, hit)
            # All early evidence is kept; a flood of lines can only replace those in the middle.
            (self.segments if len(self.segments) < MAX_SEGMENTS else self.tail).append(segment)
        self.num_lines += scan.num_lines
        self.num_progress += scan.num_progress
        self._end = (self._end + chunk)[-TAIL_BYTES:] if len(chunk) < TAIL_BYTES else chunk[-TAIL_BYTES:]
        self._end_open = not closed

    def close(self) -> list[Segment]:
        """All kept segments in order, always with the log's last lines."""
        if self._end_open:
            self.num_lines += 1
            self._end_open = False
        kept = {(s.line, s.text): s for s in (*self.segments, *self.tail)}
        for segment in self._last_lines():
            kept.setdefault((segment.line, segment.text), segment)
        ordered = sorted(kept.values(), key=lambda s: s.line)
        if self.num_lines <= SMALL_LOG_LINES // self.share:
            return [replace(s, hit=True) for s in ordered]
        return ordered

    def _last_lines(self) -> Iterator[Segment]:
        end = self._end.removesuffix(b"\n")
        pieces = end.rsplit(b"\n", max(MIN_TAIL_LINES, MAX_TAIL_LINES // self.share))
        first = self.num_lines - len(pieces) + 1
        whole = pieces if first <= 1 else pieces[1:]
        for offset, piece in enumerate(whole, start=first if first <= 1 else first + 1):
            for part in piece.split(b"\r")[-4:]:
                if part:
                    yield Segment(max(1, offset), part[:MAX_TEXT_BYTES], self.num_progress, False)


def scan_log(
    chunks: Iterable[bytes],
    words: tuple[str, ...] = TROUBLE_WORDS,
    pool: ThreadPoolExecutor | None = None,
    expected_bytes: int = 0,
    share: int = 1,
) -> LogScan:
    """Scan a log's chunks, on the pool's threads where there is one, and gather what is kept in order.

    `expected_bytes` is what this and its sister logs hold together: large ones begin with the compiled scanner.
    `share` is the number of logs of the job.
    """
    log = LogScan(share=share)
    waiting: deque[tuple[bytes, Future[ChunkScan], bool]] = deque()
    first = True
    num_bytes = expected_bytes
    for piece, closed in whole_lines(chunks):
        num_bytes += len(piece)
        scan = scan_compiled if num_bytes >= COMPILED_FROM_BYTES else scan_plain
        head = max(MIN_HEAD_LINES, HEAD_LINES // share) if first else 0
        first = False
        if pool is None:
            log.take(piece, scan(piece, head, words), closed=closed)
            continue
        waiting.append((piece, pool.submit(scan, piece, head, words), closed))
        if len(waiting) > 3:
            done, future, was_closed = waiting.popleft()
            log.take(done, future.result(), closed=was_closed)
    for done, future, was_closed in waiting:
        log.take(done, future.result(), closed=was_closed)
    return log


def whole_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Re-cut chunks at line ends; a line beyond the limit is cut in pieces that are not closed."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end], True
        rest = data[end:]
        if len(rest) > MAX_LINE_BYTES:
            yield rest, False
            rest = b""
    if rest:
        yield rest, False


def _cut(chunk: bytes, start: int, end: int, trigger: int) -> bytes:
    """A segment's bytes; of a long one only its beginning and the part around its trigger."""
    if end - start <= MAX_TEXT_BYTES:
        return chunk[start:end]
    around = max(start, trigger - MAX_TEXT_BYTES // 4)
    if trigger < 0 or around - start < MAX_TEXT_BYTES // 4:
        return chunk[start : start + MAX_TEXT_BYTES]
    return chunk[start : start + 256] + b" ... " + chunk[around : min(end, around + MAX_TEXT_BYTES - 300)]


def scan_compiled(chunk: bytes, head: int, words: tuple[str, ...] = TROUBLE_WORDS) -> ChunkScan:
    """One chunk through the compiled automaton; it holds no interpreter lock, so threads share the work."""
    from prism.evidence.logs.automaton import run

    machine = build_automaton(words)
    data = np.frombuffer(chunk, np.uint8)
    out = np.empty((6, MAX_SEGMENTS), np.int64)
    count, num_lines, num_progress = run(
        data, machine.classes, machine.table, out, head, BEFORE, AFTER, SAME_TEMPLATE_LIMIT
    )
    return ChunkScan(
        starts=out[0, :count], ends=out[1, :count], lines=out[2, :count], triggers=out[3, :count],
        progress=out[4, :count], templates=out[5, :count], num_lines=int(num_lines), num_progress=int(num_progress),
    )  # fmt: skip


def scan_plain(chunk: bytes, head: int, words: tuple[str, ...] = TROUBLE_WORDS) -> ChunkScan:
    """The same scan without the compiler, for logs too small to be worth loading it."""
    data = np.frombuffer(chunk, np.uint8)
    breaks = np.flatnonzero((data == 10) | (data == 13))
    ends = breaks if breaks.size and breaks[-1] == data.size - 1 else np.append(breaks, data.size)
    starts = np.concatenate(([0], ends[:-1] + 1))
    newline = np.append(data, 0)[ends] == 10
    lines = np.cumsum(newline) - newline
    # Latin-1 maps every byte to one character, so any bytes can be searched.
    text = pl.Series([chunk.replace(b"\r", b"\n").decode("latin-1")]).str.split("\n").explode().head(starts.size)
    trouble = text.str.contains_any(list(words), ascii_case_insensitive=True).to_numpy()
    moved = text.str.contains_any(list(PROGRESS_WORDS), ascii_case_insensitive=True) & text.str.contains("[0-9]")
    advances = moved.to_numpy() & ~trouble
    progress = np.cumsum(advances) - advances
    num_head = int(np.searchsorted(lines, head))
    rows = _keep(chunk, starts.tolist(), ends.tolist(), trouble.tolist(), num_head, words)
    kept = np.array([row for row, _, _ in rows[:MAX_SEGMENTS]], np.int64)
    triggers = np.array([trigger for _, trigger, _ in rows[:MAX_SEGMENTS]], np.int64)
    templates = np.array([template for _, _, template in rows[:MAX_SEGMENTS]], np.int64)
    return ChunkScan(
        starts=starts[kept], ends=ends[kept], lines=lines[kept], triggers=triggers, progress=progress[kept],
        templates=templates, num_lines=int(newline.sum()), num_progress=int(advances.sum()),
    )  # fmt: skip


def _keep(
    chunk: bytes, starts: list[int], ends: list[int], trouble: list[bool], num_head: int, words: tuple[str, ...]
) -> list[tuple[int, int, int]]:
    """(segment, trigger, template) of hits and their neighbours; of similar hits only the first few."""
    rows: list[tuple[int, int, int]] = []
    seen: Counter[int] = Counter()
    recent: deque[int] = deque(maxlen=BEFORE)
    after = 0
    for row, (start, end, hit) in enumerate(zip(starts, ends, trouble, strict=True)):
        near = row < num_head or after > 0
        after = max(0, after - 1)
        if hit:
            template = template_of(chunk, start, end)
            seen[template] += 1
            if seen[template] <= SAME_TEMPLATE_LIMIT:
                rows.extend((r, -1, 0) for r in recent)
                rows.append((row, _trigger(chunk, start, end, words), template))
                recent.clear()
                after = AFTER
        elif end > start and near:
            rows.append((row, -1, 0))
            recent.clear()
        elif end > start:
            recent.append(row)
    return rows


def _trigger(chunk: bytes, start: int, end: int, words: tuple[str, ...]) -> int:
    """The position of the first trigger; needed only for a segment that will be cut."""
    if end - start <= MAX_TEXT_BYTES:
        return start
    lowered = chunk[start:end].lower()
    return start + min(at for word in words if (at := lowered.find(word.encode())) >= 0)


def template_of(chunk: bytes, start: int, end: int) -> int:
    """A number shared by lines that differ only in digits (FNV-1a over the first 160 bytes)."""
    value = 2166136261
    for byte in chunk[start : min(end, start + 160)]:
        if not 48 <= byte <= 57:
            value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value
