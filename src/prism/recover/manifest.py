"""What a committed checkpoint says of itself: its step, its health, and the checksum of every file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadFileError

FORMAT = "prism.checkpoint"
VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What training looked like when the state was taken; None where it was not told."""

    loss: float | None = None
    grad_norm: float | None = None

    @property
    def good(self) -> bool:
        """False when a number is NaN or infinite: such a state must never be trained on."""
        return all(value is None or math.isfinite(value) for value in (self.loss, self.grad_norm))


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

    @property
    def num_bytes(self) -> int:
        """Size on storage."""
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> str:
        """The text of `manifest.json`; numbers that JSON cannot hold are written as words."""
        document = asdict(self)
        document["health"] = {k: _word(v) for k, v in document["health"].items()}
        return json.dumps({"schema": f"{FORMAT}/{VERSION}", **document}, allow_nan=False)


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest; raises BadFileError on what is not one of ours."""
    path = folder / MANIFEST_NAME
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadFileError(f"{path}: not a readable manifest ({_first_line(error)})") from None
    if not isinstance(document, dict):
        raise BadFileError(f"{path}: not a manifest, expected a JSON object")
    check_schema(document.get("schema"), FORMAT, VERSION, path)
    try:
        return _parse(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFileError(f"{path}: field missing or wrong ({error!r})") from None


def check_schema(schema: object, name: str, version: int, path: Path) -> None:
    """Refuse what another tool, or a newer Prism, wrote."""
    found, _, number = str(schema).partition("/")
    if found != name or not number.isdigit():
        raise BadFileError(f"{path}: written by something else than Prism (schema {schema!r}); name another folder")
    if int(number) > version:
        raise BadFileError(f"{path}: written by a newer Prism (version {number}, this one reads {version}); upgrade")


def _parse(document: Mapping[str, Any]) -> Manifest:
    health = {k: None if v is None else float(v) for k, v in document["health"].items()}
    return Manifest(
        step=int(document["step"]),
        attempt=int(document["attempt"]),
        world_size=int(document["world_size"]),
        time_ns=int(document["time_ns"]),
        health=Health(loss=health.get("loss"), grad_norm=health.get("grad_norm")),
        files=tuple(
            FileSum(name=str(f["name"]), num_bytes=int(f["num_bytes"]), sha256=str(f["sha256"]))
            for f in document["files"]
        ),
    )


def _word(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
