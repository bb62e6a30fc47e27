"""The variables that programs of others are run with."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path


def tool_environment() -> dict[str, str]:
    """A worker's variables without the path of its own packages: a tool in another environment must find its own."""
    ours = (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if not any(Path(path).is_relative_to(folder) for folder in ours)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(kept)}
