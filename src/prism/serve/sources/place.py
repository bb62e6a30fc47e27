"""Where something was found: the files beside it, and how JSON in them is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from prism.errors import BadFileError
from prism.serve.folder import Folder, FoundFile

_MOST_JSON_BYTES = 256 << 20
_SCHEMA = re.compile(rb'\A\s{0,8}\{\s{0,8}"schema"\s{0,8}:\s{0,8}"([a-z.-]{1,64})/')


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One folder below the served one, with the files directly in it."""

    path: str  # "." for the top
    files: Mapping[str, FoundFile]  # by name

    def path_of(self, name: str) -> str:
        """The relative path of a file here."""
        return name if self.path == "." else f"{self.path}/{name}"


def read_object(folder: Folder, path: str) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        document = from_json(folder.read_whole(path, most=_MOST_JSON_BYTES))
    except ValueError as error:
        raise BadFileError(f"{path}: not JSON ({error}); it may still be being written") from None
    if not isinstance(document, dict):
        raise BadFileError(f"{path}: expected a JSON object")
    return document


def schema_of(document: Mapping[str, Any]) -> str:
    """The name of a document's schema without its version, "" where it has none."""
    schema = document.get("schema")
    return schema.partition("/")[0] if isinstance(schema, str) else ""


def schema_of_start(start: bytes) -> str:
    """The name of the schema if it is the first field, as Prism writes it; "" if the whole file must be read."""
    found = _SCHEMA.match(start)
    return found[1].decode() if found else ""
