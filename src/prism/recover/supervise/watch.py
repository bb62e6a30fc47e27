"""Reads the progress of a trainer: from its reports, or from its logs if it writes no reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.recover.progress import BEAT_INTERVAL_S, BEATS, STEPS_FILE
from prism.recover.supervise import events
from prism.recover.supervise.log_progress import LogFormats

_CHUNK_BYTES = 4 << 20
_MISSED_BEATS = 2.5


@dataclass(slots=True, kw_only=True)
class Tail:
    """How far a file has been read."""

    path: Path
    offset: int = 0
    in_line: bool = False  # it ends with the beginning of a line, which is not a state of a bar

    def lines(self) -> Iterator[bytes]:
        """New complete lines."""
        try:
            with self.path.open("rb") as handle:
                handle.seek(self.offset)
                while chunk := handle.read(_CHUNK_BYTES):
                    end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1  # bars end their states with \r
                    if end:
                        self.in_line = end < len(chunk) and chunk[end - 1 : end] == b"\n"
                    if end == 0 and len(chunk) < _CHUNK_BYTES:
                        return
                    for line in chunk[: end or None].splitlines(keepends=True):
                        self.offset += len(
                            line
                        )  # counted line by line: the saved offset is that of the last line that was handled
                        yield line.rstrip()
                    handle.seek(self.offset)
        except OSError:
            return


class Watch:
    """Turns an attempt's reports into events, or its logs while there are no reports."""

    def __init__(self, folder: Path, read_bytes: int = 0, last_step: int = -1) -> None:
        self._reports = Tail(path=folder / STEPS_FILE, offset=read_bytes)
        self._logs: dict[Path, tuple[Tail, LogFormats]] = {}
        self._folder = folder
        self._last_logged = self._known_step = last_step
        self.bad_lines = 0

    @property
    def read_bytes(self) -> int:
        """How much of the reports has been turned into events."""
        return self._reports.offset

    def poll(self, now_s: float) -> Iterator[events.Event]:
        """The events since the last call."""
        for line in self._reports.lines():
            event = parse_report(line, now_s)
            if event is None:
                self.bad_lines += 1
            else:
                yield event
        if not self._reports.path.exists():
            yield from self._poll_logs(now_s)

    def _poll_logs(self, now_s: float) -> Iterator[events.Event]:
        """Read steps from every log of the attempt, because any host may print them."""
        for path in sorted(self._folder.glob("*.log")):
            tail, formats = self._logs.setdefault(path, (Tail(path=path), LogFormats()))
            before = tail.offset
            for line in tail.lines():
                for logged in formats.read(line):
                    if logged.step > self._known_step and logged.step >= self._last_logged:
                        self._last_logged = logged.step
                        yield events.StepDone(now_s=now_s, step=logged.step, loss=logged.loss, logged=True)
            if tail.offset > before:
                yield events.OutputSeen(now_s=now_s, in_line=any(tail.in_line for tail, _ in self._logs.values()))


def find_frozen_host(folder: Path) -> str | None:
    """The host where a hang began: that of the rank whose heartbeat stopped first, if others continued."""
    beats = {path: path.stat().st_mtime for path in folder.glob(BEATS)}
    # The times are compared with each other: the file server's clock may differ from ours, and may jump.
    if not beats or max(beats.values()) - min(beats.values()) < _MISSED_BEATS * BEAT_INTERVAL_S:
        return None
    try:
        return str(json.loads(min(beats, key=lambda path: beats[path]).read_text())["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def parse_report(line: bytes, now_s: float) -> events.Event | None:
    """The event of a line of the reports; None if the line is not a report."""
    try:
        return event_of(json.loads(line), now_s)
    except (ValueError, RecursionError):
        return None


def event_of(fields: Any, now_s: float) -> events.Event | None:
    """The event of a parsed report; None if it is not a report."""
    try:
        return _PARSERS[fields["kind"]](fields, now_s)
    except (ValueError, KeyError, TypeError):
        return None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _step(fields: dict[str, Any], now_s: float) -> events.Event:
    return events.StepDone(
        now_s=now_s,
        step=int(fields["step"]),
        loss=_number(fields.get("loss")),
        grad_norm=_number(fields.get("grad_norm")),
        batch=None if fields.get("batch") is None else int(fields["batch"]),
        trainer_s=_number(fields.get("monotonic")),
    )


def _corruption(fields: dict[str, Any], now_s: float) -> events.Event:
    return events.Corrupted(
        now_s=now_s,
        step=int(fields["step"]),
        last_clean_step=int(fields["last_clean_step"]),
        hosts=tuple(map(str, fields["hosts"])),
        proven=fields["proven"] is True,
        why=str(fields["why"]),
    )


_PARSERS: dict[str, Callable[[dict[str, Any], float], events.Event]] = {
    "step": _step,
    "opened": lambda f, now: events.FolderOpened(now_s=now, folder=str(f["folder"]), memory=str(f["memory"])),
    "restored": lambda f, now: events.Restored(now_s=now, step=int(f["step"]), source=str(f["source"])),
    "saved": lambda f, now: events.Saved(now_s=now, step=int(f["step"]), healthy=bool(f.get("healthy", True))),
    "save_failed": lambda f, now: events.SaveFailed(now_s=now, step=int(f["step"]), why=str(f["why"])),
    "degraded": lambda f, now: events.Degraded(now_s=now, why=str(f["why"])),
    "broken": lambda f, now: events.CheckpointBroken(now_s=now, step=int(f["step"]), why=str(f["why"])),
    "paused": lambda f, now: events.Paused(now_s=now, what=str(f.get("what", ""))),
    "resumed": lambda f, now: events.Resumed(now_s=now),
    "corruption": _corruption,
    "preempted": lambda f, now: events.Preempted(now_s=now),
}
