"""Copy a checkpoint's files from a source into a folder, several ranges at once, and verify them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.folder import inspect_folder
from prism.evaluate.run.fingerprint import identify_file
from prism.evaluate.run.loading.source import Source, SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig:
    """How much is asked for at once."""

    num_streams: int = 4
    range_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    file: SourceFile
    start: int
    end: int


def pull(sources: Sequence[Source], files: Sequence[SourceFile], folder: Path, config: PullConfig) -> None:
    """Fill a folder from the first source that has a range (a neighbour may leave midway), then verify it."""
    for file in files:
        if "/" in file.name or file.name in ("", ".", ".."):
            raise BadFileError(f"{sources[-1].address}: a file named '{file.name}' would lie outside its folder")
        with (folder / file.name).open("wb") as handle:
            os.posix_fallocate(handle.fileno(), 0, file.num_bytes) if file.num_bytes else None
    with ThreadPoolExecutor(config.num_streams) as pool:
        list(pool.map(lambda part: _copy(sources, part, folder), _ranges(files, config.range_bytes)))
        if any(file.name.endswith(".safetensors") for file in files):
            _check_whole(folder, sources[-1].address)
        list(pool.map(lambda file: _check_sum(folder, file, sources[-1].address), files))


def _ranges(files: Sequence[SourceFile], size: int) -> Iterator[_Range]:
    for file in sorted(files, key=lambda f: -f.num_bytes):
        for start in range(0, file.num_bytes, size):
            yield _Range(file=file, start=start, end=min(file.num_bytes, start + size))


def _copy(sources: Sequence[Source], part: _Range, folder: Path) -> None:
    with (folder / part.file.name).open("r+b") as handle:
        # A mapping starts at a page: pull from the page's start on.
        offset = part.start - part.start % mmap.ALLOCATIONGRANULARITY
        with (
            mmap.mmap(handle.fileno(), part.end - offset, offset=offset) as mapped,
            memoryview(mapped) as whole,
            whole[part.start - offset :] as target,
        ):
            _read_from_any(sources, part, target)


def _read_from_any(sources: Sequence[Source], part: _Range, target: memoryview) -> None:
    for number, source in enumerate(sources, start=1):
        try:
            source.read_into(part.file.name, part.start, target)
            return
        except OSError as error:
            if number == len(sources):
                raise BadFileError(f"{error}; the checkpoint cannot be pulled") from None


def _check_whole(folder: Path, address: str) -> None:
    """Every weight file is as long as its header says, and every file of an index is there."""
    try:
        inspect_folder(folder)
    except BadFileError as error:
        raise BadFileError(str(error).replace(str(folder), address)) from None


def _check_sum(folder: Path, file: SourceFile, address: str) -> None:
    if file.sha256 is not None and identify_file(folder / file.name) != file.sha256:
        raise BadFileError(f"{address}/{file.name}: its checksum differs from the manifest's; write or copy it again")
