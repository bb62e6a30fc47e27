"""One folder, read-only: nothing outside it can be opened, neither through ".." nor through a link."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from sys import intern

from prism.errors import BadFileError

# Prism writes many of these and no page shows them: checkpoints, ranks' folders, flow windows, graphs, CSV copies.
_LEFT_OUT = ("step-", "discarded-", "broken-", "beat-")
_LEFT_OUT_FOLDERS = frozenset({"__pycache__", "node_modules", "csv", "chakra", "graph", "ranks", "window"})


class NotInFolderError(BadFileError):
    """A file that is not in the folder, or reached only through a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file of the folder. All files of a place share the text of its path, which saves memory with 100,000 runs."""

    place: str  # the folder it lies in, relative, with slashes; "." for the top
    name: str
    num_bytes: int
    mtime_ns: int
    inode: int = 0  # changes when the file is replaced

    @property
    def path(self) -> str:
        """Relative to the served folder, with slashes."""
        return self.name if self.place == "." else f"{self.place}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """How deep, how many files and how often a folder is listed."""

    depth: int = 6
    files: int = 200_000
    # In a tree of more files than this, a folder in which nothing changed for `quiet_s` is listed at every
    # `quiet_turns`-th look, and at once where a file was added, removed or replaced in it.
    quiet_from: int = 5_000
    quiet_s: float = 600.0
    quiet_turns: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at the folder found."""

    changed: frozenset[str]  # places whose files changed, and places that are gone
    num_files: int
    left_out: bool  # the folder holds more files than are allowed


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one folder held when it was listed."""

    files: tuple[FoundFile, ...]
    folders: tuple[str, ...]
    mtime_ns: int  # of the folder itself
    is_quiet: bool  # nothing in it changed for `quiet_s`
    is_cut: bool = False  # more files lie in it than are allowed in all


_NOTHING = _Listing((), (), 0, False)


class Folder:
    """What `prism serve` may read. Paths are opened without following links."""

    def __init__(self, root: Path, limits: ScanLimits | None = None) -> None:
        self.root = root.resolve()
        self.limits = limits or ScanLimits()
        self._listings: dict[str, _Listing] = {}
        self.unreadable: dict[str, tuple[str, int]] = {}  # by place: why it cannot be listed, and since when
        self._raw_names: dict[str, str] = {}  # by shown name, of files and folders whose names are not UTF-8
        self._num_files = 0
        self._turn = 0
        if not self.root.is_dir():
            raise BadFileError(f"{root}: not a folder; name the one that other commands wrote to")

    def look(self, only: Set[str] | None = None) -> Look:
        """List every place up to the depth and number of files allowed, or `only` these; links are not followed."""
        before = self._listings
        if only is not None:  # the listing of its parent shows that a place is new or gone
            only = {around for place in only for around in (place, *_places_around(place))}
        now: dict[str, _Listing] = {}
        is_large = self._num_files >= self.limits.quiet_from
        self._turn += 1
        num_files, waiting, left_out = 0, [(".", 0)], False
        while waiting and not left_out:
            place, depth = waiting.pop()
            old = before.get(place)
            if only is None or old is None or place in only:
                listing = self._look(place, old, room=self.limits.files - num_files, is_large=is_large and only is None)
            else:
                listing = old
            now[place] = listing
            num_files += len(listing.files)
            left_out = listing.is_cut
            if depth < self.limits.depth:
                waiting += [(inner, depth + 1) for inner in listing.folders]
        changed = {place for place, listing in now.items() if before.get(place, _NOTHING).files is not listing.files}
        changed |= before.keys() - now.keys()
        self.unreadable = {place: why for place, why in self.unreadable.items() if place in now}
        self._listings, self._num_files = now, num_files
        return Look(changed=frozenset(changed), num_files=num_files, left_out=left_out)

    def files_in(self, place: str) -> tuple[FoundFile, ...]:
        """The plain files directly in a place, by name, as they were last listed."""
        return self._listings.get(place, _NOTHING).files

    def folders_in(self, place: str) -> tuple[str, ...]:
        """The places directly in a place, as they were last listed."""
        return self._listings.get(place, _NOTHING).folders

    def places(self) -> Iterable[str]:
        """Every place that was last listed."""
        return self._listings

    def find(self, path: str) -> FoundFile | None:
        """A file as it was last listed."""
        place, _, name = path.rpartition("/")
        return next((file for file in self.files_in(place or ".") if file.name == name), None)

    def _look(self, place: str, old: _Listing | None, *, room: int, is_large: bool) -> _Listing:
        """List a folder. In a large tree a quiet one is listed only in its turn, or when its own timestamp changed."""
        path = str(self.root) if place == "." else f"{self.root}/{self._raw(place)}"
        try:
            mtime_ns = os.stat(path, follow_symlinks=False).st_mtime_ns  # noqa: PTH116 (a Path takes twice as long)
            is_same = is_large and old is not None and old.is_quiet and old.mtime_ns == mtime_ns
            if is_same and old is not None and (hash(place) + self._turn) % self.limits.quiet_turns:
                return old
            listing = self._list(place, path, mtime_ns)
            self.unreadable.pop(place, None)
        except OSError as error:
            listing = _NOTHING
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # It may have gone since its parent was listed.
                self.unreadable.setdefault(place, (error.strerror or str(error), time.time_ns()))
        if len(listing.files) > room:
            listing = replace(listing, files=listing.files[:room], is_cut=True)
        if old is not None and old.files == listing.files:
            listing = replace(listing, files=old.files)  # the same object: nothing changed
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
            name = self._shown(entry.name)
            if entry.is_dir(follow_symlinks=False):
                if name not in _LEFT_OUT_FOLDERS:
                    folders.append(name if place == "." else f"{place}/{name}")
            elif entry.is_file(follow_symlinks=False):
                with suppress(OSError):  # It may have gone since it was listed.
                    status = entry.stat(follow_symlinks=False)
                    newest_ns = max(newest_ns, status.st_mtime_ns)
                    files.append(
                        FoundFile(
                            place=place,
                            name=intern(name),  # many files share few names
                            num_bytes=status.st_size,
                            mtime_ns=status.st_mtime_ns,
                            inode=status.st_ino,
                        )
                    )
        is_quiet = newest_ns < time.time_ns() - int(self.limits.quiet_s * 1e9)
        return _Listing(tuple(files), tuple(folders), mtime_ns, is_quiet)

    def _shown(self, name: str) -> str:
        """A name that any encoding can hold: bytes that are not UTF-8 are written as \\xe9."""
        if name.isascii():
            return name
        shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        if shown != name:
            self._raw_names[shown] = name
        return shown

    def _raw(self, path: str) -> str:
        """The path on disk of a shown path."""
        if not self._raw_names:
            return path
        return "/".join(self._raw_names.get(part, part) for part in path.split("/"))

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A descriptor of a plain file inside the folder."""
        parts = path.split("/")
        if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise NotInFolderError(f"{path}: no such file in the folder that is served")
        descriptor, raw = -1, self._raw(path)
        try:
            descriptor = self._open_whole(raw)
            if descriptor < 0:
                descriptor = self._open_parts(raw.split("/"))
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotInFolderError(f"{path}: not a plain file")
            yield descriptor
        except OSError as error:
            raise NotInFolderError(f"{path}: cannot be read ({error.strerror})") from None
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open_whole(self, path: str) -> int:
        """Open in one call and ask the kernel for its path: another one means that a link led there. -1: unknown."""
        wanted = f"{self.root}/{path}"
        descriptor = os.open(wanted, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") == wanted:  # noqa: PTH115 (a Path takes twice as long)
                return descriptor
        except OSError:
            pass  # this system has no /proc
        os.close(descriptor)
        return -1

    def _open_parts(self, parts: list[str]) -> int:
        """Open part by part, so that no part is a link."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for index, part in enumerate(parts):
                kind = os.O_DIRECTORY if index < len(parts) - 1 else os.O_NONBLOCK  # opening a pipe must not block
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, path: str, *, most: int, offset: int = 0) -> bytes:
        """At most so many bytes of a file, from an offset."""
        with self.open(path) as descriptor:
            parts: list[bytes] = []
            # The size of the file and one byte more: allocating a megabyte takes longer than reading a small file.
            room = max(0, os.fstat(descriptor).st_size - offset) + 1
            while most > 0:
                wanted = min(most, room, 1 << 20)
                chunk = os.pread(descriptor, wanted, offset)
                parts.append(chunk)
                if len(chunk) < wanted:  # a plain file returns fewer bytes only at its end
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


def _places_around(place: str) -> Iterator[str]:
    """The places that a place lies in, up to the top."""
    while place != ".":
        place = place.rpartition("/")[0] or "."
        yield place
