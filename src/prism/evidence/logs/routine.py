"""Learned filters: templates of lines that healthy runs of a job family print, stored in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from prism.errors import BadConfigError
from prism.evidence.logs.joblog import JobLog
from prism.evidence.logs.secrets import mask
from prism.machine.files import write_durably

MAX_TEMPLATES = 20_000
_FAMILY_NAME = re.compile(r"^[\w][\w.-]{0,99}$")
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@lru_cache(maxsize=20_000)
def template_of(text: str) -> str:
    """A line without its numbers and addresses, so that lines of one print statement are equal."""
    return _VARIABLE.sub("#", text[:400]).strip()


@dataclass(frozen=True, slots=True)
class Family:
    """Lines that look like trouble but that healthy runs of a job family print."""

    name: str
    templates: frozenset[str] = frozenset()

    def learn(self, jobs: Iterable[JobLog]) -> Family:
        """This family with the lines of more healthy runs."""
        seen = {mask(template_of(line.text)) for job in jobs for line in job.lines if line.hit}
        return Family(self.name, frozenset(sorted(self.templates | seen)[:MAX_TEMPLATES]))


def load_family(memory: Path, name: str) -> Family:
    """The stored family; empty if it is new."""
    path = _path_of(memory, name)
    if not path.exists():
        return Family(name)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["templates"]
        return Family(name, frozenset(str(row) for row in rows))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadConfigError(
            f"{path}: not a family file ({error}); delete it and learn again from healthy logs"
        ) from error


def save_family(memory: Path, family: Family) -> Path:
    """Write the family; after a crash the old file is still complete."""
    path = _path_of(memory, family.name)
    write_durably(path, json.dumps({"templates": sorted(family.templates)}, indent=0))
    return path


def _path_of(memory: Path, name: str) -> Path:
    if not _FAMILY_NAME.match(name):
        raise BadConfigError(f"family '{name}': use letters, digits, dot, dash and underscore, at most 100")
    return memory / "families" / f"{name}.json"
