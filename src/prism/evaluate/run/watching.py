"""A folder that training writes checkpoints into: each is handed on once, as soon as it is whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.folder import inspect_folder
from prism.evaluate.run.checkpoints.kinds import UnsupportedCheckpoint, find_manifest
from prism.evaluate.schedule.trials import Checkpoint

# Writers put what is not finished under names like these (Prism, Hugging Face, orbax, cp and rsync).
_UNFINISHED = (".", "tmp", "discarded-", "broken-")
_UNFINISHED_ENDS = (".tmp", ".incomplete", ".partial")
_FILE_ENDS = (".ckpt", ".safetensors")

State = Literal["whole", "settling", "half written", "unsupported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Where one entry of the folder stands, and why."""

    state: State
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class CheckpointWatch:
    """Looks at a folder again and again.

    Prism's own checkpoints appear whole, by a rename. Others are whole when every file is as long as its header says,
    every file of the index is there, and nothing has changed between two looks `settle_s` apart.
    """

    folder: Path
    settle_s: float = 5.0
    idle_s: float | None = None  # give up after so long without a change; None: watch for ever
    say: Callable[[str], None] = lambda text: None
    seen: dict[str, Checkpoint] = field(default_factory=dict)
    states: dict[str, Seen] = field(default_factory=dict)
    _looks: dict[str, tuple[tuple[object, ...], float]] = field(default_factory=dict)
    _last_news_s: float = field(default_factory=time.monotonic)
    _ended: bool = False

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise BadFileError(f"{self.folder}: no such folder; name the one that training writes checkpoints into")

    def look(self) -> list[Checkpoint] | None:
        """Checkpoints that have become whole since the last look, by step; None when nothing changed for too long."""
        found = []
        for path in sorted(self.folder.iterdir()):
            if _may_be_checkpoint(path) and path.name not in self.seen:
                checkpoint, state = self._inspect(path)
                if checkpoint is not None:
                    self.seen[path.name] = checkpoint
                    found.append(checkpoint)
                self._note(path.name, state)
        now_s = time.monotonic()
        if found:
            self._last_news_s = now_s
        elif self.idle_s is not None and now_s - self._last_news_s > self.idle_s:
            self._tell_end()
            return None
        return sorted(found, key=lambda c: (c.step is None, c.step or 0, c.name))

    def _inspect(self, path: Path) -> tuple[Checkpoint | None, Seen]:
        try:
            changed = self._has_changed(path)
            checkpoint = inspect_folder(path)
            is_committed = find_manifest(path) is not None
        except UnsupportedCheckpoint as error:
            return None, Seen(state="unsupported", reason=str(error))
        except (BadFileError, OSError) as error:
            return None, Seen(state="half written", reason=str(error))
        since_s = time.monotonic() - self._looks[path.name][1]
        if is_committed or (not changed and since_s >= self.settle_s):
            return checkpoint, Seen(state="whole")
        return None, Seen(state="settling", reason=f"{path}: changed a moment ago")

    def _has_changed(self, path: Path) -> bool:
        """Whether anything of an entry is new since the last look; then a program still writes there."""
        state = _state_of(path)
        if path.name in self._looks and self._looks[path.name][0] == state:
            return False
        self._looks[path.name] = (state, time.monotonic())
        self._last_news_s = time.monotonic()
        return True

    def _note(self, name: str, seen: Seen) -> None:
        """Report what is not scored, once for each reason."""
        before = self.states.get(name)
        self.states[name] = seen
        if seen.state in ("half written", "unsupported") and (before is None or before.state != seen.state):
            self.say(f"{name}: {seen.state}, not scored: {seen.reason}")

    def _tell_end(self) -> None:
        if self._ended:
            return
        self._ended = True
        left = [f"{name} is {seen.state}" for name, seen in self.states.items() if seen.state != "whole"]
        more = f"; left out: {', '.join(left)}" if left else ""
        self.say(f"{self.folder}: nothing new for {self.idle_s:g} s, so the watch ends{more}")


def _may_be_checkpoint(path: Path) -> bool:
    name = path.name
    if name.startswith(_UNFINISHED) or name.endswith(_UNFINISHED_ENDS):
        return False
    return path.is_dir() or name.endswith(_FILE_ENDS)


def _state_of(path: Path) -> tuple[object, ...]:
    """Sizes and times of all files, which change while something is written."""
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(entry), entry.stat()) for entry in paths]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
