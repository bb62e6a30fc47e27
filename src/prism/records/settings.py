"""Settings read from YAML: every key checked against the dataclass it fills, every mistake reported in one line."""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from prism.errors import BadConfigError, BadFileError


def number(default: Any, low: float, high: float) -> Any:
    """A field that must lie in [low, high]; both ends are part of the error a user reads."""
    return field(default=default, metadata={"low": low, "high": high})


def one_of(words: Any) -> dict[str, Any]:
    """The metadata of a field that must be one of the words of a Literal."""
    return {"choices": get_args(words)}


class Checked:
    """Refuses a value outside the bounds that its field declares."""

    def __post_init__(self) -> None:
        for spec in fields(self):  # type: ignore[arg-type]
            value, bounds = getattr(self, spec.name), spec.metadata
            if value is None:
                continue
            if "choices" in bounds and value not in bounds["choices"]:
                hint = nearest(str(value), bounds["choices"])
                raise BadConfigError(
                    f"'{spec.name}' is {value!r}{hint}; expected one of {', '.join(bounds['choices'])}"
                )
            if "low" in bounds and (value == math.inf or not bounds["low"] <= value <= bounds["high"]):
                raise BadConfigError(
                    f"'{spec.name}' is {describe(value)}, expected {bounds['low']:g} to {bounds['high']:g}"
                )


def read_text(path: Path) -> str:
    """The text of a settings file."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: cannot be read as text ({error})") from None


def parse_mapping(text: str, where: str, such_as: str) -> dict[str, Any]:
    """The keys and values of a YAML text; `such_as` names keys that were expected."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise BadFileError(f"{where}{line}: not YAML ({problem})") from None
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{where}: expected keys such as {such_as}, found {describe(document)}")
    return dict(document)


def build(kind: type, document: Any, where: str, *, prefix: str = "", base: Any = None) -> Any:
    """A dataclass from a mapping, on top of `base` where given; errors name `where` and the key with its `prefix`."""
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{where}: '{prefix.rstrip('.')}' is {describe(document)}, expected keys and values")
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    values = {name: getattr(base, name) for name in known} if base is not None else {}
    for key, value in document.items():
        if key not in known:
            hint = nearest(str(key), known)
            raise BadConfigError(f"{where}: '{prefix}{key}' is not a key here{hint}; keys: {', '.join(known)}")
        values[key] = _convert(hints[key], value, where, f"{prefix}{key}", values.get(key))
    for spec in fields(kind):
        if spec.name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise BadConfigError(f"{where}: '{prefix}{spec.name}' is missing")
    try:
        return kind(**values)
    except BadConfigError as error:
        # The dataclass names its field; the file and the section are known only here.
        raise BadConfigError(f"{where}: {str(error).replace(chr(39), chr(39) + prefix, 1)}") from None


def _convert(hint: Any, value: Any, where: str, key: str, base: Any) -> Any:
    """One value as the type its field declares."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(h for h in get_args(hint) if h is not type(None))
    if is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value  # already read by its own reader
        return build(hint, value, where, prefix=f"{key}.", base=base)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise BadConfigError(f"{where}: '{key}' is {describe(value)}, expected a list")
        return tuple(_convert(get_args(hint)[0], v, where, f"{key}[{i}]", None) for i, v in enumerate(value))
    if get_origin(hint) is Literal:
        return str(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**53 else math.inf
    if hint is float and isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", value):
        value = float(value)  # YAML 1.1 takes 1.0e9 for text: it wants a sign in the exponent
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    raise BadConfigError(f"{where}: '{key}' is {describe(value)}, expected {wanted}")


def nearest(wrong: str, known: Iterable[Any]) -> str:
    """A hint: the known word that is most similar to a wrong one."""
    close = difflib.get_close_matches(wrong, [str(k) for k in known], 1)
    return f", did you mean '{close[0]}'?" if close else ""


def describe(value: Any) -> str:
    """A YAML value in a user's words."""
    if isinstance(value, Mapping):
        return "a set of keys"
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else repr(value)[:80]
