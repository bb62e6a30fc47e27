"""A folder that training writes checkpoints into: each is handed on once, as soon as it is whole."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from prism.errors import BadFileError
from prism.evaluate.run.checkpoint_folder import MANIFEST_NAME, inspect_folder
from prism.evaluate.schedule.trials import Checkpoint

# Writers put what is not finished under names like these (Prism, Hugging Face, orbax, cp and rsync).
_UNFINISHED = (".", "tmp", "discarded-", "broken-")
_UNFINISHED_ENDS = (".tmp", ".incomplete", ".partial")


@dataclass(slots=True, kw_only=True)
class CheckpointWatch:
    """Looks at a folder again and again.

    Prism's own checkpoints appear whole, by a rename. Others are whole when every file is as long as its header says,
    every file of the index is there, and nothing has changed between two looks `settle_s` apart.
    """

    folder: Path
    settle_s: float = 5.0
    idle_s: float | None = None  # give up after so long without a new checkpoint; None: watch for ever
    seen: dict[str, Checkpoint] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)  # why each of the others is not taken yet
    _looks: dict[str, tuple[tuple[object, ...], float]] = field(default_factory=dict)
    _last_news_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise BadFileError(f"{self.folder}: no such folder; name the one that training writes checkpoints into")

    def look(self) -> list[Checkpoint] | None:
        """Checkpoints that have become whole since the last look, by step; None when it was idle for too long."""
        found = []
        self.waiting.clear()
        for path in sorted(self.folder.iterdir()):
            if _may_be_checkpoint(path) and path.name not in self.seen:
                checkpoint = self._inspect(path)
                if checkpoint is not None:
                    self.seen[path.name] = checkpoint
                    found.append(checkpoint)
        now_s = time.monotonic()
        if found or self.waiting:
            self._last_news_s = now_s
        elif self.idle_s is not None and now_s - self._last_news_s > self.idle_s:
            return None
        return sorted(found, key=lambda c: (c.step is None, c.step or 0, c.name))

    def _inspect(self, path: Path) -> Checkpoint | None:
        try:
            checkpoint = inspect_folder(path)
            state = _state_of(path)
        except (BadFileError, OSError) as error:
            self.waiting[path.name] = str(error)
            return None
        if (path / MANIFEST_NAME).is_file():
            return checkpoint
        before, since_s = self._looks.get(path.name, ((), 0.0))
        if before != state:
            self._looks[path.name] = (state, time.monotonic())
        elif time.monotonic() - since_s >= self.settle_s:
            return checkpoint
        self.waiting[path.name] = f"{path}: changed a moment ago"
        return None


def _may_be_checkpoint(path: Path) -> bool:
    name = path.name
    return path.is_dir() and not name.startswith(_UNFINISHED) and not name.endswith(_UNFINISHED_ENDS)


def _state_of(folder: Path) -> tuple[object, ...]:
    """Sizes and times of all files, which change while something is written."""
    stats = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
