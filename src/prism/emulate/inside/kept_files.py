"""Keep the user's files: what the script would overwrite or remove is kept aside, what it creates is noted.

Each change is noted in the run's journal before it happens, once for all ranks; `prism.emulate.journal` undoes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import site
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from prism.emulate.inside.after_import import change_after_import
from prism.emulate.inside.plan import STEPPED
from prism.emulate.inside.session import Session

_WAIT_S = 60.0  # for another rank that keeps a copy of a large file
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_CREATES = ("os.mkdir", "os.symlink", "os.link")


class FileKeeper:
    """Watches this process and those that it forks."""

    def __init__(self, session: Session, script: str) -> None:
        self._session = session
        self._inside = threading.local()
        places = {Path.cwd(), Path(script).resolve().parent} - {Path(tempfile.gettempdir()).resolve()}
        self._own = tuple(f"{place}/" for place in places)
        passing = ("/dev", "/proc", "/sys", tempfile.gettempdir(), sys.prefix, sys.base_prefix, *site.getsitepackages())
        self._passing = tuple(f"{os.path.realpath(place)}/" for place in passing)
        sys.addaudithook(self._look)
        # These two write without Python's knowledge.
        import torch.serialization

        writer: Any = torch.serialization._open_zipfile_writer_file
        writer.__init__ = _announcing(writer.__init__, 1)
        change_after_import("safetensors.torch", _announce_safetensors)

    def _look(self, event: str, values: tuple[Any, ...]) -> None:
        if event not in _WATCHED or getattr(self._inside, "busy", False) or not self._session.plan.journal:
            return
        self._inside.busy = True
        try:
            # What cannot be kept must not stop the script, which may have caught the same error.
            with contextlib.suppress(OSError, ValueError, TypeError):
                self._note(event, values)
        finally:
            self._inside.busy = False

    def _note(self, event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = values
            if isinstance(path, int) or not flags & (os.O_TRUNC | os.O_CREAT):
                return
            path = os.path.realpath(os.fsdecode(path))
            if os.path.lexists(path) and not flags & os.O_TRUNC:
                return  # what is appended destroys nothing
            self._keep(path, truncates=True)
        elif event == "os.mkdir" and not self._session.step:
            return  # folders that are prepared before the first step stay
        elif event in _CREATES:
            self._keep(_resolve(values[0 if event == "os.mkdir" else 1], values[-1]))
        elif event == "os.remove":
            self._keep(_resolve(*values))
        else:
            source, target = _resolve(values[0], values[2]), _resolve(values[1], values[3])
            moved = Path(source).is_dir() and self._keep(source, moved=target)
            if not moved:
                self._keep(source)
                self._keep(target)

    def _keep(self, path: str, *, truncates: bool = False, moved: str = "") -> bool:
        """Note a path that is about to change, unless it is noted already; whether a folder's move was noted."""
        journal = Path(self._session.plan.journal)
        if not self._is_watched(path) or any(_entry(journal, str(p)).exists() for p in Path(path).parents):
            return False
        entry = _entry(journal, path)
        exists = os.path.lexists(path)
        if Path(path).is_dir() and not moved:
            return False
        try:
            entry.mkdir(parents=True)
        except FileExistsError:
            _wait_for(entry / "note.json")
            return False
        kept = entry / "kept"
        if exists and not moved:
            try:
                os.link(path, kept, follow_symlinks=False)
            except OSError:  # another file system
                shutil.copy2(path, kept, follow_symlinks=False)
        inode = os.lstat(path).st_ino if exists else 0
        early = not exists and self._session.step == 0
        note = {"path": path, "moved": moved, "inode": inode, "at": time.time_ns(), "early": early}
        note["calls"] = self._session.recorder.num_ops
        (entry / "draft").write_text(json.dumps(note))
        (entry / "draft").rename(entry / "note.json")
        if truncates and exists and kept.samefile(path):
            Path(path).unlink()  # so that what is written now does not go into the file that is kept
        return bool(moved)

    def _is_watched(self, path: str) -> bool:
        if path.startswith((self._session.plan.journal, str(Path(self._session.plan.output).parent))):
            return False
        home = next((place for place in self._own if path.startswith(place)), "")
        hidden = "/." in f"/{path.removeprefix(home)}" or "/__pycache__" in path
        return not hidden and (bool(home) or not path.startswith(self._passing))


_WATCHED = frozenset({"open", "os.remove", "os.rename", *_CREATES})


def note_first_step(session: Session) -> None:
    """Note when the first rank ended its first step: what is written after it depends on emulated values."""
    with contextlib.suppress(OSError):
        Path(session.plan.journal).mkdir(parents=True, exist_ok=True)
        Path(session.plan.journal, STEPPED).touch(exist_ok=False)


def _entry(journal: Path, path: str) -> Path:
    return journal / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def _resolve(path: Any, folder: int = -1) -> str:
    """The path without links in its folders; a link at its end is what changes."""
    where, name = os.path.split(os.fsdecode(path))
    base = Path(f"/proc/self/fd/{folder}").readlink() if folder >= 0 else Path()
    return f"{os.path.realpath(base / where)}/{name}"


def _wait_for(path: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while path.parent.exists() and not path.exists() and time.monotonic() < until:
        time.sleep(0.005)


def _announcing(plain: Any, position: int) -> Any:
    """A function that writes to the path at this position, announced as `open` would."""

    def announced(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position and isinstance(args[position], str | os.PathLike):
            sys.audit("open", os.fspath(args[position]), "w", _NEW)
        return plain(*args, **kwargs)

    return announced


def _announce_safetensors(module: ModuleType) -> None:
    module.serialize_file = _announcing(module.serialize_file, 1)  # type: ignore[attr-defined]
