"""DOCUMENT: the one codec of every file that one command writes and another reads.

A document is a frozen dataclass with a name and a version. Writer and reader share it, so what one writes the
other reads. A key that a newer version added is left out; a word that it added to a `Literal` with "unknown" in it
is read as "unknown"; an older version is brought up to date or refused by name.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from prism.errors import BadFileError
from prism.machine.files import write_durably

T = TypeVar("T")
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(Generic[T]):
    """What a file holds; `upgrades` by version say how a document of that version becomes one of the next."""

    name: str  # prism.checkpoint
    version: int
    kind: type[T]
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """The value of the document's first key."""
        return f"{self.name}/{self.version}"

    def to_mapping(self, value: T) -> dict[str, Any]:
        """The document as plain values, `schema` first."""
        return {"schema": self.schema, **cast("dict[str, Any]", to_plain(value))}

    def encode(self, value: T) -> bytes:
        """The document as one line of JSON; a number that is not finite is text ("nan")."""
        return msgspec.json.encode(self.to_mapping(value))

    def decode(self, data: bytes | str, where: object) -> T:
        """The value of a JSON text; errors name `where` and the key."""
        try:
            found = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFileError(f"{where}: not JSON ({_reason(error)}); {self._remedy}") from None
        return self.of_mapping(found, where)

    def of_mapping(self, found: object, where: object) -> T:
        """The value of a decoded document."""
        if not isinstance(found, dict):
            raise BadFileError(f"{where}: not a {self.name}, expected a JSON object; {self._remedy}")
        values = self._up_to_date({str(key): value for key, value in found.items()}, where)
        try:
            return convert(_soften(self.kind, values), self.kind)
        except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
            raise BadFileError(f"{where}: not a whole {self.name} ({_reason(error)}); {self._remedy}") from None

    def write(self, path: Path, value: T) -> None:
        """Replace a file; a crash leaves the old content or the new one."""
        write_durably(path, self.encode(value) + b"\n")

    def read(self, path: Path) -> T:
        """The value of a file."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadFileError(f"{path}: cannot be read ({error.strerror}); {self._remedy}") from None
        return self.decode(data, path)

    @property
    def _remedy(self) -> str:
        return "have it written again, or name another"

    def _up_to_date(self, values: dict[str, Any], where: object) -> dict[str, Any]:
        name, _, number = str(values.pop("schema", None)).partition("/")
        if name != self.name or not number.isascii() or not number.isdigit() or len(number) > 9:
            raise BadFileError(f"{where}: expected a {self.schema} of Prism, found another schema; name another file")
        version = int(number)
        if version > self.version:
            raise BadFileError(
                f"{where}: written by a newer Prism ({self.name} version {version}, this one reads {self.version}); "
                "upgrade"
            )
        for step in range(version, self.version):
            if step not in self.upgrades:
                raise BadFileError(
                    f"{where}: {self.name} version {version} is no longer read (this is version {self.version}); "
                    "have it written again"
                )
            values = self.upgrades[step](values)
        return values


def convert(value: object, kind: type[T]) -> T:
    """Plain values as what a dataclass declares; raises ValueError."""
    return msgspec.convert(value, kind, strict=False)  # not strict: "nan" is a float, 3.0 an integer


def to_plain(value: object) -> object:
    """Dataclasses as plain values; a number that is not finite as text."""
    return _with_finite(msgspec.to_builtins(value))


def _with_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _with_finite(part) for key, part in value.items()}
    return [_with_finite(part) for part in value] if isinstance(value, (list, tuple)) else value


def _reason(error: Exception) -> str:
    return (str(error).replace("`$.", "`").splitlines() or [type(error).__name__])[0][:300]


def _soften(kind: Any, value: Any) -> Any:
    """The value with every word that this version does not know replaced by "unknown", where that is a word."""
    if not _has_open_words(kind):
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value if value in inner or not isinstance(value, str) else _UNKNOWN
    if origin in (Union, types.UnionType):
        softened = next((k for k in inner if _has_open_words(k)), None)
        return value if value is None else _soften(softened, value)
    if is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(cast(type, kind))
        return {key: _soften(hints[key], part) if key in hints else part for key, part in value.items()}
    if origin in (list, tuple) and isinstance(value, list):
        variadic = origin is list or inner[-1] is Ellipsis
        hints_of_parts = [inner[0 if variadic else min(place, len(inner) - 1)] for place in range(len(value))]
        return [_soften(hint, part) for part, hint in zip(value, hints_of_parts, strict=True)]
    if isinstance(value, dict) and len(inner) == 2:
        return {key: _soften(inner[1], part) for key, part in value.items()}
    return value


@cache
def _has_open_words(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return _UNKNOWN in get_args(kind)
    if is_dataclass(kind):
        hints = _hints(cast(type, kind))
        return any(_has_open_words(hints[f.name]) for f in fields(kind))
    return any(_has_open_words(inner) for inner in get_args(kind) if not isinstance(inner, (list, str)))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
