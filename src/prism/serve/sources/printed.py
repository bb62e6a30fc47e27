"""What `investigate`, `compare`, `predict` and `goodput` printed with --json, kept as a file of any name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from prism.errors import BadFileError
from prism.serve.folder import Folder, FoundFile
from prism.serve.sources.place import read_object

PrintedKind = Literal["investigation", "comparison", "prediction", "goodput"]
# The schema is the first field that these commands print, so the beginning of a file is enough to recognise it.
SNIFF_BYTES = 256
_SCHEMA = re.compile(rb'\A\s*\{\s*"schema"\s*:\s*"prism\.(investigation|comparison|prediction|goodput)/1"')
_NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "investigation": {"verdict": dict, "evidence": list},
    "comparison": {"expected_ms": (int, float), "observed_ms": (int, float), "parts": list},
    "prediction": {"risks": list, "at_ns": int},
    "goodput": {"gpu_hours": (int, float), "goodput": (int, float)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One printed document."""

    path: str
    kind: PrintedKind
    document: Mapping[str, Any]
    updated_ns: int


def kind_of_start(start: bytes) -> str:
    """Which document begins so; "" for none of these."""
    found = _SCHEMA.match(start)
    return found[1].decode() if found else ""


def read_printed(folder: Folder, file: FoundFile, kind: str) -> Printed:
    """Read a document and check the fields that its page needs."""
    document = read_object(folder, file.path)
    for name, type_ in _NEEDED[kind].items():
        if not isinstance(document.get(name), type_) or isinstance(document.get(name), bool):
            raise BadFileError(
                f"{file.path}: not a whole {kind}, '{name}' is missing or of another type; print it again"
            )
    return Printed(path=file.path, kind=cast(PrintedKind, kind), document=document, updated_ns=file.mtime_ns)
