"""Stacks of a job's ranks: from the collector of a live job, and from the files that `prism supervise` writes.

Nothing here knows names of functions. What is known of a frame is whose file it stands in: the communication library's,
the framework's, or the program's (which includes what the program calls in Python's own library).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from prism.errors import BadFileError

Place = Literal["communication", "framework", "program", "unknown"]

_COMMUNICATION, _FRAMEWORK = "torch/distributed/", "torch/"
_LIBRARY = re.compile(r"(?:/lib/python3\.\d{1,3})?/(?:site|dist)-packages/|/lib/python3\.\d{1,3}/")
_FRAME = re.compile(r"^\s{4}(\S.{0,200}?) \(([^()]{1,500}?):(\d{1,7})\)$", re.MULTILINE)
_TRACED = re.compile(r'^\s*File "([^"\n]{1,500})", line (\d{1,7}), in ([\w<>.]{1,200})', re.MULTILINE)
_PROCESS = re.compile(r"^== process (\d{1,10})(?: rank (\d{1,7}))?: ", re.MULTILINE)
_STATE = re.compile(r"^state: (.{1,40})$", re.MULTILINE)
_THREAD = re.compile(r'^Thread \w{1,20} \(([\w+ ]{1,30})\)(?:: "([^"\n]{0,200})")?$', re.MULTILINE)
_LARGEST_BYTES = 64 << 20
_MAIN = "MainThread"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    name: str
    file: str  # below site-packages or the standard library where it is from there
    line: int
    is_library: bool  # no part of the user's program


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread of a rank."""

    name: str
    frames: tuple[Frame, ...] = ()  # innermost first
    doing: str = ""  # what it asked of the kernel, such as "reads /data/shard-7"
    holds_lock: bool = False  # the interpreter's, so that no other Python thread of the process can run


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """Where one rank stood when it was looked at."""

    rank: int
    pid: int
    state: str = ""  # of the process, such as S (sleeping); empty where unknown
    host: str = ""
    threads: tuple[Thread, ...] = ()
    moved: bool | None = None  # whether the stack differed at the second look; None: looked at once

    @property
    def training(self) -> Thread | None:
        """The thread that trains: the main one, unless only others have frames of the framework."""
        main = next((t for t in self.threads if t.name == _MAIN), self.threads[0] if self.threads else None)
        if main is None or any(f.file.startswith(_FRAMEWORK) for f in main.frames):
            return main
        deep = [t for t in self.threads if any(f.file.startswith(_COMMUNICATION) for f in t.frames)]
        named = [t for t in deep if len({f.file for f in t.frames if not f.is_library})]
        return named[0] if named and not _own_frames(main) else main

    @property
    def doing(self) -> str:
        """What the kernel does for its training thread."""
        return self.training.doing if self.training else ""

    @property
    def place(self) -> Place:
        """Whose code the training thread stands in."""
        frames = self.training.frames if self.training else ()
        if not frames:
            return "unknown"
        if frames[0].file.startswith(_COMMUNICATION):
            return "communication"
        return "framework" if frames[0].file.startswith(_FRAMEWORK) else "program"

    @property
    def functions(self) -> tuple[str, ...]:
        """The training thread's functions, outermost first, without lines."""
        frames = self.training.frames if self.training else ()
        return tuple(f"{f.file}:{f.name}" for f in reversed(frames)) or ((self.doing,) if self.doing else ())

    @property
    def line(self) -> str:
        """The innermost line of the user's own program."""
        own = _own_frames(self.training) if self.training else ()
        return f"{own[0].file}:{own[0].line}" if own else ""

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal or a debugger."""
        return self.state[:1] in ("T", "t")

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone or waits to be reaped."""
        return self.state[:1] in ("Z", "X") or self.state == "gone"

    @property
    def is_running(self) -> bool:
        """Whether it uses a processor rather than waiting in the kernel."""
        return self.state[:1] == "R" or bool(self.training and self.training.holds_lock)


def _own_frames(thread: Thread) -> tuple[Frame, ...]:
    return tuple(f for f in thread.frames if not f.is_library)


def parse_stacks(text: str, where: str) -> list[RankStack]:
    """Ranks in a file of stacks; processes without a rank are launchers or workers and are left out."""
    heads = list(_PROCESS.finditer(text))
    if not heads:
        raise BadFileError(f"{where}: holds no stacks; prism supervise writes each as '== process PID rank N: ...'")
    found: dict[int, RankStack] = {}
    for head, after in zip_longest(heads, heads[1:]):
        part = text[head.end() : after.start() if after else len(text)]
        state = _STATE.search(part)
        if head.group(2) is None:
            continue
        one = RankStack(
            rank=int(head[2]), pid=int(head[1]), state=state[1] if state else "", threads=parse_threads(part)
        )
        # Workers of a rank carry its number too; the first process of a rank, by number, is the rank itself.
        if one.rank not in found or one.pid < found[one.rank].pid:
            found[one.rank] = one
    return [found[r] for r in sorted(found)]


def read_stacks(paths: Iterable[Path]) -> list[RankStack]:
    """Ranks in several files; of two stacks of one rank the first counts."""
    found: dict[int, RankStack] = {}
    for path in paths:
        with path.open("rb") as handle:
            text = handle.read(_LARGEST_BYTES).decode("utf-8", "replace")
        for stack in parse_stacks(text, str(path)):
            found.setdefault(stack.rank, stack)
    return [found[r] for r in sorted(found)]


def parse_threads(text: str) -> tuple[Thread, ...]:
    """Threads as py-spy prints them."""
    heads = list(_THREAD.finditer(text))
    threads = []
    for head, after in zip_longest(heads, heads[1:]):
        part = text[head.end() : after.start() if after else len(text)]
        frames = tuple(_read_frame(name, file, int(line)) for name, file, line in _FRAME.findall(part))
        threads.append(Thread(name=head[2] or "", frames=frames, holds_lock="+gil" in head[1]))
    return tuple(threads)


def parse_look(document: Mapping[str, Any], *, host: str = "") -> RankStack:
    """A rank as the collector saw it: several looks at its threads, its state, and its call of the kernel."""
    looks = [tuple(_parse_thread(t) for t in look) for look in document.get("looks", [])]
    one = RankStack(
        rank=int(document["rank"]),
        pid=int(document["pid"]),
        state=str(document.get("state", "")),
        host=host,
        threads=looks[-1] if looks else (Thread(name=_MAIN, doing=str(document.get("doing", ""))),),
    )
    if len(looks) < 2:
        return one
    trains = [replace(one, threads=look).training for look in looks]
    return replace(one, moved=len({t.frames for t in trains if t is not None}) > 1)


def _parse_thread(told: Mapping[str, Any]) -> Thread:
    frames = tuple(_read_frame(str(f[0]), str(f[1]), int(f[2])) for f in told.get("frames", []))
    return Thread(
        name=str(told.get("name", "")),
        frames=frames,
        doing=str(told.get("doing", "")),
        holds_lock=bool(told.get("lock")),
    )


def find_last_line(text: str) -> str:
    """The innermost line of the user's program in the last traceback of a log; empty where there is none."""
    _, found, last = text.rpartition("Traceback (most recent call last)")
    frames = [_read_frame(name, file, int(line)) for file, line, name in _TRACED.findall(last)] if found else []
    return next((f"{f.file}:{f.line}" for f in reversed(frames) if not f.is_library), "")


def same_line(one: str, other: str) -> bool:
    """Whether two places, of which one may have a shorter path, are one line of the program."""
    return bool(one and other) and (one == other or one.endswith("/" + other) or other.endswith("/" + one))


def _read_frame(name: str, file: str, line: int) -> Frame:
    """Files may come with their whole path, or without the part that leads to a library."""
    short = _LIBRARY.split(file)[-1]
    standard = short.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names
    return Frame(name, short, line, short != file or standard or file.startswith((_FRAMEWORK, "<")))


def describe_place(one: RankStack) -> str:
    """Where a rank stands, in words: its line, the function that it is in, and what the kernel does for it."""
    frame = one.training.frames[0] if one.training and one.training.frames else None
    holds = bool(one.training and one.training.holds_lock)
    words = [f"at {one.line}" if one.line else "at an unknown line"]
    if frame is not None and frame.is_library:
        words.append(f"in {frame.name} ({frame.file})")
    if one.is_stopped or one.has_ended:
        words.append("is stopped" if one.is_stopped else "has ended")
    elif one.doing or one.is_running:
        words.append(one.doing or "computes")
    return ", ".join([*words, *(["holds the interpreter's lock"] if holds and one.is_running else [])])
