"""Undo what a run did to the user's files: overwritten and removed ones come back, new ones are set aside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prism.emulate.inside.plan import STEPPED

ASIDE = "emulated-files"
_STORE = ".prism-emulate"  # in the working folder, so that keeping a file is a link


def _is_left_by_us(journal: Path) -> bool:
    """Whether an emulation of this user left a journal when it was killed; one of other users could name any file."""
    try:
        return journal.lstat().st_uid == os.getuid() and not Path("/proc", journal.name).exists()
    except FileNotFoundError:
        return False  # Another emulation has just ended.


class Journals:
    """The journals of one emulation; files of an earlier one that was killed are brought back first."""

    def __init__(self, aside: Path | None = None) -> None:
        self._aside = aside or Path(ASIDE)
        self._store = Path(_STORE).resolve()
        self._own = self._store / str(os.getpid())
        self._runs = 0
        self.set_aside: set[str] = set()  # what runs wrote and where it is now
        self._unread: list[Path] = []  # journals that are damaged; nothing in them is touched
        found: list[Path] = []
        with contextlib.suppress(OSError):  # there is none, or it is not for us to read
            found = list(self._store.iterdir())
        for left in found:
            if _is_left_by_us(left):
                try:
                    self._undo(left)
                except (OSError, ValueError, KeyError, TypeError):
                    self._unread.append(left)

    @contextmanager
    def open(self) -> Iterator[str]:
        """A journal for a run; at the end all that it notes is undone."""
        self._runs += 1
        run = self._own / str(self._runs)
        try:
            yield str(run)
        finally:
            self._undo(run)
            with contextlib.suppress(OSError):
                self._own.rmdir()
                self._store.rmdir()

    def describe(self, note: Callable[[str], None]) -> None:
        """Say where the script's files are, and what an earlier emulation kept that could not be brought back."""
        for left in self._unread:
            note(f"{left}: what a killed emulation kept there could not be brought back; see the files kept in it")
        if self.set_aside:
            names = sorted(self.set_aside)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            note(
                f"the script wrote {', '.join(names[:3])}{more}, from emulated values: they are in {self._aside}/, and "
                "files that it overwrote or removed are as they were"
            )

    def _undo(self, run: Path) -> None:
        notes = [(json.loads(path.read_text()), path.parent) for path in run.glob("**/note.json")]
        stepped = run / STEPPED
        stepped_ns = stepped.stat().st_mtime_ns if stepped.exists() else 0
        for note, entry in sorted(notes, key=lambda pair: -pair[0]["at"]):
            path, kept = Path(note["path"]), Path(note["moved"] or entry / "kept")
            if note["moved"] and _inode(kept) != note["inode"]:
                continue  # the script failed to move it
            if note["early"] and _inode(path) and _is_prepared(path, stepped_ns, note["calls"]):
                continue
            if _inode(path) not in (0, note["inode"]):
                self._set_aside(path)
            if _inode(kept):
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(kept, path)
        shutil.rmtree(run, ignore_errors=True)

    def _set_aside(self, path: Path) -> None:
        here = Path.cwd()
        name = str(path.relative_to(here) if path.is_relative_to(here) else path.relative_to("/"))
        target: Any = self._aside / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        shutil.move(path, target)
        self.set_aside.add(name)


def _is_prepared(path: Path, stepped_ns: int, num_calls: int) -> bool:
    """Whether a file that was made before the first step was complete then, such as a cache of data.

    A log that is opened then is not, nor what a program without steps writes after its ranks have communicated.
    """
    return path.lstat().st_mtime_ns <= stepped_ns if stepped_ns else num_calls == 0


def _inode(path: Path) -> int:
    """The number of a file, to tell whether it is still the same one; 0 if there is none."""
    return path.lstat().st_ino if os.path.lexists(path) else 0
