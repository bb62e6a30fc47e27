"""Programs of others: their command filled in, and run with variables of their own."""

from __future__ import annotations

import os
import shlex
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism.errors import BadConfigError
from prism.evaluate.schedule.trials import Dataset

# A program must not go on and hold a GPU when its worker is stopped: it is bound to it (PR_SET_PDEATHSIG), then begun.
_BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def fill_command(dataset: Dataset, key: str, text: str, words: Mapping[str, Any]) -> list[str]:
    """The words of a command, its {names} filled in."""
    try:
        return [part.format_map(words) for part in shlex.split(text)]
    except (KeyError, ValueError, IndexError) as error:
        raise BadConfigError(f"dataset '{dataset.name}': 'settings.{key}' cannot be filled in ({error})") from None


def run_program(dataset: Dataset, command: list[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program in the plan's folder, with `more` variables; it ends with this process."""
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", _BOUND, *command],
        cwd=dataset.settings.get("folder", "."),
        capture_output=True,
        text=True,
        errors="replace",
        env=tool_environment() | more,
    )


def tool_environment() -> dict[str, str]:
    """A worker's variables without the path of its own packages: a tool in another environment must find its own."""
    ours = (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if not any(Path(path).is_relative_to(folder) for folder in ours)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(kept)}
