"""A checkpoint in a folder of a file system, local or mounted; or a single safetensors file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.kinds import find_manifest
from prism.evaluate.run.loading.source import SourceFile, add_sums

_SAMPLE_BYTES = 4096


class FolderSource:
    """Files of a folder (not of folders in it), or one file."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._path = path

    def files(self) -> tuple[SourceFile, ...]:
        """All files that are not hidden, with the checksums of Prism's manifest where there is one."""
        if not self._path.exists():
            raise BadFileError(f"{self._path}: no such checkpoint; check the path")
        if self._path.is_file():
            return (_describe(self._path),)
        found = {p.name: _describe(p) for p in sorted(self._path.iterdir()) if p.is_file() and not _is_state(p.name)}
        if not found:
            raise BadFileError(f"{self._path}: the folder holds no files; is the checkpoint being written?")
        add_sums(found, find_manifest(self._path))
        return tuple(found.values())

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Read a range of one file."""
        path = self._path if self._path.is_file() else self._path / name
        with path.open("rb", buffering=0) as handle:
            handle.seek(start)
            while buffer:
                count = handle.readinto(buffer)
                if not count:
                    raise OSError(f"{path}: ends {len(buffer)} bytes early; is the checkpoint being written?")
                buffer = buffer[count:]


def _is_state(name: str) -> bool:
    """Files that a trainer goes on from and a model does not need, often larger than the model itself."""
    return name[0] == "." or name.startswith(("rng_state", "optimizer.", "scheduler.", "training_args.", "scaler."))


def _describe(path: Path) -> SourceFile:
    stat = path.stat()
    return SourceFile(
        name=path.name, num_bytes=stat.st_size, version=f"{stat.st_mtime_ns}-{_sample(path, stat.st_size)}"
    )


def _sample(path: Path, num_bytes: int) -> str:
    """A word for some of a file's bytes: files written one after the other can have one size and one time."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        with path.open("rb", buffering=0) as handle:
            for start in (0, num_bytes // 2, max(num_bytes - _SAMPLE_BYTES, 0)):
                handle.seek(start)
                digest.update(handle.read(_SAMPLE_BYTES))
    except OSError:
        return ""  # reading the content will report the error
    return digest.hexdigest()
