"""Diagnose a log that is still growing: each part is read once, and the verdict comes when no more lines arrive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prism.evidence.logs.diagnose import Diagnosis, Knowledge, diagnose
from prism.evidence.logs.envelopes import Unwrapper, is_wrapped
from prism.evidence.logs.joblog import assemble_job, trigger_words
from prism.evidence.logs.scan import HEAD_LINES, LogScan, scan_plain
from prism.evidence.logs.sources import CHUNK_BYTES, STREAM, LogSource, find_logs
from prism.evidence.logs.triggers import TROUBLE_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowConfig:
    """How often to check the file, and after how long without a new byte the job counts as ended."""

    poll_s: float = 0.5
    quiet_s: float = 30.0


@dataclass(slots=True)
class GrowingLog:
    """One file, read as it grows; memory stays bounded however long that takes."""

    source: LogSource
    words: tuple[str, ...] = TROUBLE_WORDS
    scan: LogScan = field(default_factory=LogScan)
    offset: int = 0
    _rest: bytes = b""
    _begun: bool = False
    _unwrapper: Unwrapper | None = None

    def read_on(self) -> int:
        """Read what was written since the last call; returns the number of bytes."""
        path = Path(self.source.path)
        size = path.stat().st_size if path.exists() else 0
        if size < self.offset:
            self.offset, self._rest = 0, b""  # The file was replaced: begin at its start, and keep earlier lines.
        grown = 0
        with path.open("rb") as stream:
            stream.seek(self.offset)
            while chunk := stream.read(CHUNK_BYTES):
                self.feed(chunk)
                grown += len(chunk)
        self.offset += grown
        return grown

    def feed(self, chunk: bytes) -> None:
        """Scan the whole lines of `chunk`, and keep its last part until its line ends."""
        data = self._rest + chunk
        end = data.rfind(b"\n") + 1
        if not end and len(data) > CHUNK_BYTES:
            end = len(data)
        self._rest = data[end:]
        if end and not self._begun:
            self._begun = True
            if is_wrapped(data[:end]):
                self._unwrapper, self.scan.is_wrapped = Unwrapper(), True
        if end:
            self._take(data[:end] if self._unwrapper is None else self._unwrapper.feed(data[:end]), closed=True)

    def finish(self) -> None:
        """Scan the last line, which has no end."""
        rest, self._rest = self._rest, b""
        if self._unwrapper is not None:
            rest = self._unwrapper.feed(rest) + self._unwrapper.finish()
        self._take(rest, closed=self._unwrapper is not None)

    def _take(self, lines: bytes, *, closed: bool) -> None:
        if lines:
            head = HEAD_LINES if self.scan.num_lines == 0 else 0
            self.scan.take(lines, scan_plain(lines, head, self.words), closed=closed)


def follow(
    place: str, config: FollowConfig, knowledge: Knowledge | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Diagnosis]:
    """Verdicts on a growing log: one each time the answer changes, and one when no more lines arrive."""
    words = trigger_words(knowledge.rules if knowledge is not None else None)
    logs = [GrowingLog(source, words) for source in find_logs(place)]
    last_growth = clock()
    said: tuple[str, int] | None = None
    while True:
        grown = sum(_read_stream(log) if log.source.path == STREAM else log.read_on() for log in logs)
        now = clock()
        last_growth = now if grown else last_growth
        ended = now - last_growth >= config.quiet_s or (place == STREAM and not grown)
        if ended:
            for log in logs:
                log.finish()
        if grown or ended:
            diagnosis = diagnose(assemble_job(place, [(log.source, log.scan) for log in logs]), knowledge)
            key = (diagnosis.verdict.reason, len(diagnosis.hits))
            if ended or (diagnosis.hits and key != said):
                said = key
                yield diagnosis
        if ended:
            return
        if place != STREAM:
            time.sleep(config.poll_s)


def _read_stream(log: GrowingLog) -> int:
    """The bytes that the pipe holds now; waits for the first one; empty at the end."""
    chunk = os.read(0, CHUNK_BYTES)
    log.feed(chunk)
    log.offset += len(chunk)
    return len(chunk)
