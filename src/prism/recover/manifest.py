"""The manifest of a committed checkpoint: its step, its health, and the checksum of every file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

from prism.errors import BadFileError
from prism.records.documents import Document, convert, to_plain

FORMAT = "prism.checkpoint"
VERSION = 2  # 2 added `epoch`, `token` and what was found in the tensors; 1 is still read
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a state when it was saved; None if a value was not reported or not measured."""

    loss: float | None = None
    grad_norm: float | None = None
    num_not_finite: int | None = None  # tensors that hold NaN or infinity now and did not when training began
    num_outliers: int | None = None  # tensors whose largest value grew implausibly since the previous save
    worst: str = ""  # the name of one such tensor

    @property
    def good(self) -> bool:
        """False if a number or a tensor is NaN or infinite: such a state must never be restored."""
        told = all(value is None or math.isfinite(value) for value in (self.loss, self.grad_norm))
        return told and not self.num_not_finite

    @property
    def doubtful(self) -> bool:
        """Usable after a crash, but not for a rollback after a loss spike."""
        return bool(self.num_outliers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """One file of a checkpoint, as it was meant to be written."""

    name: str
    num_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Refuse a name that leads out of the folder."""
        if PurePath(self.name).name != self.name or self.name in ("", ".", ".."):
            raise ValueError(f"file name {self.name!r} leads elsewhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One committed checkpoint."""

    step: int
    attempt: int
    world_size: int
    time_ns: int  # wall clock, when the state was taken
    health: Health
    files: tuple[FileSum, ...]
    epoch: int = 0  # counts the processes that have written to the folder, one after the other
    token: int = 0  # random; the same in the staged copies of this save on every rank

    @property
    def num_bytes(self) -> int:
        """Size on storage."""
        return sum(file.num_bytes for file in self.files)

    def to_document(self) -> dict[str, Any]:
        """The JSON document; NaN and infinity are text."""
        return MANIFEST.to_mapping(self)

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        return MANIFEST.encode(self).decode()


MANIFEST = Document(name=FORMAT, version=VERSION, kind=Manifest, upgrades={1: dict})  # 2 only added


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest; raises BadFileError if it is not one of Prism."""
    return MANIFEST.read(folder / MANIFEST_NAME)


def check_schema(schema: object, name: str, version: int, path: Path) -> None:
    """Refuse a file that another tool or a newer Prism wrote."""
    found, _, number = str(schema).partition("/")
    if found != name or not number.isdigit():
        raise BadFileError(f"{path}: written by something else than Prism (schema {schema!r}); name another folder")
    if int(number) > version:
        raise BadFileError(f"{path}: written by a newer Prism (version {number}, this one reads {version}); upgrade")


def parse_manifest(document: Mapping[str, Any]) -> Manifest:
    """The manifest of a JSON document."""
    return MANIFEST.of_mapping(document, "manifest")


def parse_file_sum(document: Mapping[str, Any]) -> FileSum:
    """One file of a manifest; raises ValueError for what is none."""
    return convert(document, FileSum)


def health_document(health: Health) -> dict[str, Any]:
    """Health as a JSON document."""
    return cast("dict[str, Any]", to_plain(health))


def parse_health(document: Mapping[str, Any]) -> Health:
    """Health from a JSON document; raises ValueError for what is none."""
    return convert(document, Health)
