"""The manifest of a committed checkpoint: its step, its health, and the checksum of every file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from prism.errors import BadFileError

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
        return {"schema": f"{FORMAT}/{VERSION}", **asdict(self), "health": health_document(self.health)}

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        return json.dumps(self.to_document(), allow_nan=False)


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest; raises BadFileError if it is not one of Prism."""
    path = folder / MANIFEST_NAME
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadFileError(f"{path}: not a readable manifest ({_first_line(error)})") from None
    if not isinstance(document, dict):
        raise BadFileError(f"{path}: not a manifest, expected a JSON object")
    check_schema(document.get("schema"), FORMAT, VERSION, path)
    try:
        return parse_manifest(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadFileError(f"{path}: field missing or wrong ({error!r})") from None


def check_schema(schema: object, name: str, version: int, path: Path) -> None:
    """Refuse a file that another tool or a newer Prism wrote."""
    found, _, number = str(schema).partition("/")
    if found != name or not number.isdigit():
        raise BadFileError(f"{path}: written by something else than Prism (schema {schema!r}); name another folder")
    if int(number) > version:
        raise BadFileError(f"{path}: written by a newer Prism (version {number}, this one reads {version}); upgrade")


def parse_manifest(document: Mapping[str, Any]) -> Manifest:
    """The manifest of a JSON document; raises KeyError, TypeError or ValueError if it is malformed."""
    return Manifest(
        step=int(document["step"]),
        attempt=int(document["attempt"]),
        world_size=int(document["world_size"]),
        time_ns=int(document["time_ns"]),
        health=parse_health(document["health"]),
        files=tuple(parse_file_sum(f) for f in document["files"]),
        epoch=int(document.get("epoch", 0)),
        token=int(document.get("token", 0)),
    )


def parse_file_sum(document: Mapping[str, Any]) -> FileSum:
    """One file of a manifest; a name that leads out of the folder is refused."""
    name = str(document["name"])
    if PurePath(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"file name {name!r} leads elsewhere")
    return FileSum(name=name, num_bytes=int(document["num_bytes"]), sha256=str(document["sha256"]))


def health_document(health: Health) -> dict[str, Any]:
    """Health as a JSON document."""
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(health).items()}


def parse_health(document: Mapping[str, Any]) -> Health:
    """Health from a JSON document."""
    return Health(
        loss=_number(document.get("loss")),
        grad_norm=_number(document.get("grad_norm")),
        num_not_finite=_count(document.get("num_not_finite")),
        num_outliers=_count(document.get("num_outliers")),
        worst=str(document.get("worst", "")),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
