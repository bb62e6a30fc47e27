"""A site's settings for its own tables: the meaning of columns, its clock and its cluster."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism.datacenter.characterize.columns import Choices, parse_choices
from prism.errors import BadConfigError, BadFileError

_KEYS = {"map": list, "columns": list, "time_zone": str, "cluster": str, "gpus": float, "gpus_per_node": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What `--profile` reads and `--save-profile` writes; a flag beats the profile."""

    choices: Choices = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    time_zone: str | None = None
    cluster: str | None = None
    gpus: float | None = None
    gpus_per_node: int | None = None


def read_profile(path: Path) -> Profile:
    """Read a profile, or raise and name the wrong key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error.strerror}); check --profile") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFileError(f"{path}: is no profile ({error}); write one with --save-profile") from None
    for key, value in values.items():
        if key not in _KEYS:
            raise BadConfigError(f"{path}: there is no setting {key!r}; the settings are {', '.join(_KEYS)}")
        fits = isinstance(value, int | float) if _KEYS[key] in (float, int) else isinstance(value, _KEYS[key])
        if not fits or isinstance(value, bool) or (_KEYS[key] is list and not all(isinstance(v, str) for v in value)):
            raise BadConfigError(f"{path}: {key!r} is {value!r}, expected a {_KEYS[key].__name__}; fix it")
    return Profile(
        choices=parse_choices(values.get("map", [])),
        columns=tuple(values.get("columns", [])),
        time_zone=values.get("time_zone"),
        cluster=values.get("cluster"),
        gpus=float(values["gpus"]) if "gpus" in values else None,
        gpus_per_node=int(values["gpus_per_node"]) if "gpus_per_node" in values else None,
    )


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as TOML."""
    chosen = [f"{name}={c.column}{':' + c.unit if c.unit else ''}" for name, c in profile.choices.items()]
    values: dict[str, Any] = {
        "map": chosen,
        "columns": list(profile.columns),
        "time_zone": profile.time_zone,
        "cluster": profile.cluster,
        "gpus": profile.gpus,
        "gpus_per_node": profile.gpus_per_node,
    }
    # JSON's strings, numbers and lists of strings are TOML's, but for one control character.
    texts = {key: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for key, value in values.items()}
    lines = [f"{key} = {text}" for key, text in texts.items() if values[key] not in (None, [])]
    try:
        path.write_text("# How `prism characterize` reads this site's job table.\n" + "\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise BadFileError(f"{path}: cannot be written ({error.strerror}); choose another --save-profile") from None
