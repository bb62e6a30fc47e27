"""One folder, read-only: nothing outside it can be opened, not by a path with dots and not by a link."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from prism.errors import BadFileError

# Written by Prism in great number and never shown: checkpoints, ranks' folders, flow windows, graphs, CSV copies.
_LEFT_OUT = ("step-", "discarded-", "broken-", "beat-")
_LEFT_OUT_FOLDERS = frozenset({"__pycache__", "node_modules", "csv", "chakra", "graph", "ranks", "window"})


class NotInFolderError(BadFileError):
    """A file that is not in the folder, or reached only through a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file of the folder; `path` is relative, with slashes."""

    path: str
    num_bytes: int
    mtime_ns: int
    inode: int = 0  # another one where the file was replaced

    @property
    def place(self) -> str:
        """The folder it lies in; "." for the top."""
        return self.path.rpartition("/")[0] or "."

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """How much of a folder is looked at."""

    depth: int = 6
    files: int = 200_000
    # In a tree of more files than this, a folder in which nothing changed for `quiet_s` is listed at every
    # `quiet_turns`-th look, and at once where a file was added, removed or replaced in it.
    quiet_from: int = 5_000
    quiet_s: float = 600.0
    quiet_turns: int = 30


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one folder held when it was listed."""

    files: tuple[FoundFile, ...]
    folders: tuple[str, ...]
    mtime_ns: int  # of the folder itself
    is_quiet: bool  # nothing in it had changed for long


class Folder:
    """What `prism serve` may read. Paths are opened part by part without following links."""

    def __init__(self, root: Path, limits: ScanLimits | None = None) -> None:
        self.root = root.resolve()
        self.limits = limits or ScanLimits()
        self._listings: dict[str, _Listing] = {}
        self._found: tuple[list[FoundFile], bool] = ([], False)
        self._turn = 0
        if not self.root.is_dir():
            raise BadFileError(f"{root}: not a folder; name the one that other commands wrote to")

    def scan(self) -> list[FoundFile]:
        """Every plain file up to the depth and number allowed, in order of path; links are not followed."""
        return self.scan_all()[0]

    def scan_all(self) -> tuple[list[FoundFile], bool]:
        """The files of `scan`, the same list where nothing changed, and whether there are more than are allowed."""
        before = self._listings
        now: dict[str, _Listing] = {}
        is_large = len(self._found[0]) >= self.limits.quiet_from
        self._turn += 1
        num_files, waiting = 0, [(".", 0)]
        while waiting and num_files <= self.limits.files:
            place, depth = waiting.pop()
            listing = now[place] = self._look(place, before.get(place), is_large=is_large)
            num_files += len(listing.files)
            if depth < self.limits.depth:
                waiting += [(inner, depth + 1) for inner in listing.folders]
        self._listings = now
        if len(now) != len(before) or any(before.get(place) is not listing for place, listing in now.items()):
            found = [file for listing in now.values() for file in listing.files]
            left_out = len(found) > self.limits.files
            self._found = sorted(found[: self.limits.files], key=attrgetter("path")), left_out
        return self._found

    def _look(self, place: str, old: _Listing | None, *, is_large: bool) -> _Listing:
        """List a folder. In a large tree a quiet one is listed only in its turn, or when its own time has changed."""
        path = str(self.root) if place == "." else f"{self.root}/{place}"
        try:
            mtime_ns = os.stat(path, follow_symlinks=False).st_mtime_ns  # noqa: PTH116 (a Path takes twice as long)
            is_same = is_large and old is not None and old.is_quiet and old.mtime_ns == mtime_ns
            if is_same and old is not None and (hash(place) + self._turn) % self.limits.quiet_turns:
                return old
            listing = self._list(place, path, mtime_ns)
        except OSError:  # It may have gone since its parent was listed.
            listing = _Listing((), (), 0, False)
        return old if old == listing else listing

    def _list(self, place: str, path: str, mtime_ns: int) -> _Listing:
        files: list[FoundFile] = []
        folders: list[str] = []
        newest_ns = mtime_ns
        with os.scandir(path) as found:
            entries = sorted(found, key=attrgetter("name"))
        for entry in entries:
            if entry.name.startswith((".", *_LEFT_OUT)) or entry.is_symlink():
                continue
            relative = entry.name if place == "." else f"{place}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _LEFT_OUT_FOLDERS:
                    folders.append(relative)
            elif entry.is_file(follow_symlinks=False):
                with suppress(OSError):  # It may have gone since it was listed.
                    status = entry.stat(follow_symlinks=False)
                    newest_ns = max(newest_ns, status.st_mtime_ns)
                    files.append(
                        FoundFile(
                            path=relative,
                            num_bytes=status.st_size,
                            mtime_ns=status.st_mtime_ns,
                            inode=status.st_ino,
                        )
                    )
        is_quiet = newest_ns < time.time_ns() - int(self.limits.quiet_s * 1e9)
        return _Listing(tuple(files), tuple(folders), mtime_ns, is_quiet)

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A descriptor of a plain file inside the folder."""
        parts = path.split("/")
        if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise NotInFolderError(f"{path}: no such file in the folder that is served")
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for index, part in enumerate(parts):
                kind = os.O_DIRECTORY if index < len(parts) - 1 else os.O_NONBLOCK  # a pipe must not stop us
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotInFolderError(f"{path}: not a plain file")
            yield descriptor
        except OSError as error:
            raise NotInFolderError(f"{path}: cannot be read ({error.strerror})") from None
        finally:
            os.close(descriptor)

    def read(self, path: str, *, most: int, offset: int = 0) -> bytes:
        """At most so many bytes of a file, from an offset."""
        with self.open(path) as descriptor:
            parts: list[bytes] = []
            while most > 0:
                wanted = min(most, 1 << 20)
                chunk = os.pread(descriptor, wanted, offset)
                parts.append(chunk)
                if len(chunk) < wanted:  # a plain file gives less only at its end
                    break
                offset += wanted
                most -= wanted
            return b"".join(parts)

    def read_whole(self, path: str, *, most: int) -> bytes:
        """A file that must not be larger than so many bytes."""
        data = self.read(path, most=most + 1)
        if len(data) > most:
            raise BadFileError(f"{path}: larger than the {most >> 20} MiB that are read; make it smaller")
        return data

    def exists(self, path: str) -> bool:
        """Whether it can be opened."""
        try:
            with self.open(path):
                return True
        except BadFileError:
            return False
