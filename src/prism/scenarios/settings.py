"""Settings read from YAML: every key checked against the dataclass it fills, every mistake told in one line."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from prism.errors import BadConfigError


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
            if "low" in bounds and not (math.isfinite(value) and bounds["low"] <= value <= bounds["high"]):
                raise BadConfigError(f"'{spec.name}' is {value!r}, expected {bounds['low']:g} to {bounds['high']:g}")


def build(kind: type, document: Any, where: str) -> Any:
    """A dataclass from a mapping; `where` names the file and the section in errors."""
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{where}: is {describe(document)}, expected keys and values")
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    values = {}
    for key, value in document.items():
        if key not in known:
            raise BadConfigError(
                f"{where}: '{key}' is not a key here{nearest(str(key), known)}; keys: {', '.join(known)}"
            )
        values[key] = _convert(hints[key], value, f"{where}: '{key}'")
    for spec in fields(kind):
        if spec.name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise BadConfigError(f"{where}: '{spec.name}' is missing")
    try:
        return kind(**values)
    except BadConfigError as error:
        raise BadConfigError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, where: str) -> Any:
    """One value as the type its field declares."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(h for h in get_args(hint) if h is not type(None))
    if is_dataclass(hint) and isinstance(value, hint):  # type: ignore[arg-type]
        return value  # read by its own reader before
    if is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise BadConfigError(f"{where} is {describe(value)}, expected a list")
        return tuple(_convert(get_args(hint)[0], v, f"{where} entry {i + 1}") for i, v in enumerate(value))
    if get_origin(hint) is Literal:
        return str(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**53 else math.inf
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    raise BadConfigError(f"{where} is {describe(value)}, expected {wanted}")


def nearest(wrong: str, known: Any) -> str:
    """A hint at the known word that looks most like a wrong one."""
    close = difflib.get_close_matches(wrong, [str(k) for k in known], 1)
    return f", did you mean '{close[0]}'?" if close else ""


def describe(value: Any) -> str:
    """A YAML value in a user's words."""
    if isinstance(value, Mapping):
        return "a set of keys"
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else repr(value)[:80]
