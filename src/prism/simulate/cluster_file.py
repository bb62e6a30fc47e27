"""Read a cluster file: YAML with the keys of `Cluster`, on its own or on top of a preset."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from prism.errors import BadConfigError, BadFileError
from prism.simulate.cluster import Cluster

_PRESETS = resources.files("prism.simulate") / "presets"


def preset_names() -> tuple[str, ...]:
    """The clusters that Prism brings along."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in _PRESETS.iterdir() if f.name.endswith(".yaml")))


def load_cluster(path_or_preset: str | Path, num_hosts: int | None = None) -> Cluster:
    """A preset by name, or a YAML file; `num_hosts` overrides how many hosts it has."""
    where = str(path_or_preset)
    names = preset_names()
    if where in names:
        cluster = _preset(where)
    else:
        path = Path(path_or_preset)
        if not path.is_file():
            hint = _nearest(where, names)
            raise BadFileError(f"{where}: no such cluster file or preset{hint}; presets: {', '.join(names)}")
        cluster = read_cluster(_text_of(path), where)
    return cluster if num_hosts is None else replace(cluster, num_hosts=num_hosts)


def read_cluster(text: str, where: str = "cluster") -> Cluster:
    """Parse the text of a cluster file; `where` is what errors call it."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise BadFileError(f"{where}{line}: not YAML ({getattr(error, 'problem', None) or error})") from None
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{where}: expected keys such as 'preset' or 'num_hosts', found {_describe(document)}")
    settings = dict(document)
    base = None
    if "preset" in settings:
        preset = settings.pop("preset")
        if preset not in preset_names():
            raise BadConfigError(
                f"{where}: 'preset' is {preset!r}{_nearest(str(preset), preset_names())}; "
                f"expected one of {', '.join(preset_names())}"
            )
        base = _preset(preset)
    settings.setdefault("name", base.name if base else Path(where).stem or "cluster")
    cluster: Cluster = _build(Cluster, settings, where, "", base)
    return cluster


def _preset(name: str) -> Cluster:
    return read_cluster((_PRESETS / f"{name}.yaml").read_text("utf-8"), name)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: cannot be read as text ({error})") from None


def _build(kind: type, document: Any, where: str, prefix: str, base: Any) -> Any:
    """A dataclass from a mapping, starting from `base` where given."""
    if not isinstance(document, Mapping):
        raise BadConfigError(f"{where}: '{prefix.rstrip('.')}' is {_describe(document)}, expected keys and values")
    hints = get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    values = {name: getattr(base, name) for name in known} if base is not None else {}
    for key, value in document.items():
        if key not in known:
            hint = _nearest(str(key), known)
            raise BadConfigError(f"{where}: '{prefix}{key}' is not a key here{hint}; keys: {', '.join(known)}")
        values[key] = _convert(hints[key], value, where, f"{prefix}{key}", values.get(key))
    for spec in fields(kind):
        if spec.name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise BadConfigError(f"{where}: '{prefix}{spec.name}' is missing")
    try:
        return kind(**values)
    except BadConfigError as error:
        # The dataclass names its own field; the file and the section are only known here.
        named = str(error).replace("'", f"'{prefix}", 1)
        raise BadConfigError(f"{where}: {named}") from None


def _convert(hint: Any, value: Any, where: str, key: str, base: Any) -> Any:
    """One value as the type its field declares."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(h for h in get_args(hint) if h is not type(None))
    if is_dataclass(hint):
        return _build(hint, value, where, f"{key}.", base)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise BadConfigError(f"{where}: '{key}' is {_describe(value)}, expected a list")
        return tuple(_convert(get_args(hint)[0], v, where, f"{key}[{i}]", None) for i, v in enumerate(value))
    if get_origin(hint) is Literal:
        return value if isinstance(value, str) else str(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**53 else float("inf")
    if hint is float and isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+[eE][-+]?[0-9]+", value):
        value = _float_of(value)  # YAML 1.1 takes 1.0e9 for text: it wants a sign in the exponent
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    raise BadConfigError(f"{where}: '{key}' is {_describe(value)}, expected {wanted}")


def _float_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f", did you mean '{close[0]}'?" if close else ""


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a set of keys"
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else repr(value)[:80]
