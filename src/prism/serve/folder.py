"""One folder, read-only: nothing outside it can be opened, not by a path with dots and not by a link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


class Folder:
    """What `prism serve` may read. Paths are opened part by part without following links."""

    def __init__(self, root: Path, limits: ScanLimits | None = None) -> None:
        self.root = root.resolve()
        self.limits = limits or ScanLimits()
        if not self.root.is_dir():
            raise BadFileError(f"{root}: not a folder; name the one that other commands wrote to")

    def scan(self) -> list[FoundFile]:
        """Every plain file up to the depth and number allowed, in order of path; links are not followed."""
        return self.scan_all()[0]

    def scan_all(self) -> tuple[list[FoundFile], bool]:
        """The files of `scan`, and whether there are more of them than are allowed."""
        found: list[FoundFile] = []
        waiting = [(".", 0)]
        while waiting and len(found) <= self.limits.files:
            place, depth = waiting.pop()
            for entry in self._list(place):
                relative = entry.name if place == "." else f"{place}/{entry.name}"
                if entry.name.startswith((".", *_LEFT_OUT)) or entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth < self.limits.depth and entry.name not in _LEFT_OUT_FOLDERS:
                        waiting.append((relative, depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    with suppress(OSError):  # It may have gone since it was listed.
                        status = entry.stat(follow_symlinks=False)
                        found.append(
                            FoundFile(
                                path=relative,
                                num_bytes=status.st_size,
                                mtime_ns=status.st_mtime_ns,
                                inode=status.st_ino,
                            )
                        )
        left_out = len(found) > self.limits.files
        return sorted(found[: self.limits.files], key=lambda file: file.path), left_out

    def _list(self, place: str) -> list[os.DirEntry[str]]:
        with suppress(OSError), os.scandir(self.root / place) as entries:
            return sorted(entries, key=lambda entry: entry.name)
        return []

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
            if not os.path.isfile(f"/proc/self/fd/{descriptor}"):  # noqa: PTH113 (a descriptor, not a path)
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
            while most > 0 and (chunk := os.pread(descriptor, min(most, 1 << 20), offset)):
                parts.append(chunk)
                offset += len(chunk)
                most -= len(chunk)
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
