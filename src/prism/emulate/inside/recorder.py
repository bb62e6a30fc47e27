"""The log of one emulated process: every communication call, every wait, every step, with the work before each."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from prism.emulate.inside.clocks import Clock

_TORCH_FOLDER = str(Path(torch.__file__).parent)
_PRISM_FOLDER = str(Path(__file__).parents[1])
_LIBRARIES = ("runpy", "contextlib", "threading", "functools")
_THREADS = str(Path(concurrent.futures.__file__).parent)
_BEGUN_IN = Path.cwd()  # the script may change its folder
_GIVEN = threading.local()


@dataclass(slots=True)
class Entry:
    """One line of the log; marks are numbers of the clock until the log is closed."""

    what: str  # a kind of OPS, or "wait", "record", "hold", "step", "backward"
    stream: int
    begin: int
    end: int
    op: int = -1  # number of the communication op, or of the event
    group: str = ""
    bytes: int = 0
    sizes: tuple[int, ...] = ()
    peer: int = -1  # position in the group
    lane: int = -1  # stream the op runs on
    batch: int = -1
    tag: int = 0
    source: str = ""
    takes: tuple[int, ...] = ()  # of an all-to-all: bytes that are expected from each position, where the program says
    values: str = ""  # type of the elements, and the reduction; empty for single bytes, which may be a view of others
    pickled: bool = False  # an object of which not all members run, so that its size is not the program's
    gap_ns: int = 0  # work on `stream` since the entry before
    wall_ns: int = 0  # all the time since then


@dataclass(slots=True)
class GroupEntry:
    """One process group that the program made, whether this rank is in it or not."""

    name: str
    label: str
    source: str
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Recorder:
    """Collects entries; `close` turns marks into times."""

    clock: Clock
    entries: list[Entry] = field(default_factory=list)
    groups: list[GroupEntry] = field(default_factory=list)
    step_walls_ns: list[int] = field(default_factory=list)
    unmet: list[Entry] = field(default_factory=list)  # calls that other ranks were stopped before
    num_ops: int = 0
    num_batches: int = 0
    _signed: int = 0  # entries that a sign was made of

    def sign_step(self) -> str:
        """A hash of the calls since the last one; repeated calls count once: data may decide how often loops run."""
        new = (e for e in self.entries[self._signed :] if e.op >= 0 and not self.clock.is_aside(e.stream))
        calls = [(e.what, e.group, e.bytes, e.peer, e.source) for e in new]
        self._signed = len(self.entries)
        runs = [call for i, call in enumerate(calls) if i == 0 or call != calls[i - 1]]
        return hashlib.blake2b(repr(runs).encode(), digest_size=8).hexdigest()

    def drop(self, entry: Entry) -> None:
        """Take a call out of the log that never came to its end; it is still compared with the calls of other ranks."""
        self.entries = [kept for kept in self.entries if kept is not entry]
        self.unmet.append(entry)

    def note_backward(self) -> None:
        """Log that a backward pass begins: iterations are cut there if there is no optimizer."""
        mark = self.clock.mark()
        self.entries.append(Entry("backward", self.clock.stream(), mark, mark))

    def step(self) -> Entry:
        """Note that an iteration ended here."""
        mark = self.clock.mark()
        entry = Entry("step", self.clock.stream(), mark, mark)
        self.entries.append(entry)
        self.step_walls_ns.append(time.perf_counter_ns())
        return entry

    def close(self) -> list[dict[str, Any]]:
        """The entries as plain data, each with the work since the entry before it on the same stream."""
        before: dict[int, int] = {}
        for entry in self.entries:
            if entry.stream in before:
                entry.gap_ns = self.clock.elapsed_ns(before[entry.stream], entry.begin)
                entry.wall_ns = self.clock.wall_ns(before[entry.stream], entry.begin)
            before[entry.stream] = entry.end
        return [_to_plain(entry) for entry in self.entries]

    def close_unmet(self) -> list[dict[str, Any]]:
        """The calls that were taken out of the log, as plain data."""
        return [_to_plain(entry) for entry in self.unmet]


def _to_plain(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name not in ("begin", "end")}


def find_source() -> str:
    """The file and line of the user's code that made the call, however deep in libraries it happened.

    Work that the program gave to another thread has the line that gave it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_own(frame):
            return f"{_shorten(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return getattr(_GIVEN, "source", "")


def find_place(error: BaseException) -> str:
    """The line of the user's code that an error passed last."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_own(frame)]
    return f"{_shorten(frames[-1][0].f_code.co_filename)}:{frames[-1][1]}" if frames else ""


def follow_threads() -> None:
    """Let work that is given to another thread, such as an asynchronous save, know the line that gave it."""
    submit, run = ThreadPoolExecutor.submit, threading.Thread.run

    def give(pool: Any, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(pool, _from(find_source(), work), *args, **kwargs)

    def start(thread: threading.Thread) -> None:
        thread._prism_source = find_source()  # type: ignore[attr-defined]
        begin(thread)

    def begin_run(thread: threading.Thread) -> None:
        _GIVEN.source = getattr(thread, "_prism_source", "")
        run(thread)

    begin = threading.Thread.start
    ThreadPoolExecutor.submit = give  # type: ignore[method-assign]
    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    threading.Thread.run = begin_run  # type: ignore[method-assign, assignment]


def _from(source: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def do(*args: Any, **kwargs: Any) -> Any:
        _GIVEN.source = source
        return work(*args, **kwargs)

    return do


def _is_own(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return (
        not name.startswith((_TORCH_FOLDER, _PRISM_FOLDER, _THREADS, "<"))
        and frame.f_globals.get("__name__") not in _LIBRARIES
    )


@functools.cache  # a mesh of many dimensions makes thousands of groups at one line
def _shorten(name: str) -> str:
    """Installed packages by their import path, the user's files from the folder that the command ran in."""
    _, _, installed = name.rpartition("site-packages/")
    if installed and installed != name:
        return installed
    path = Path(name).absolute()
    return str(path.relative_to(_BEGUN_IN)) if path.is_relative_to(_BEGUN_IN) else str(path)


def write_log(path: Path, document: dict[str, Any]) -> None:
    """Write the log in one move, so that a reader never sees half of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document))
    part.replace(path)
