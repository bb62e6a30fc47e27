"""Where compiled kernels are kept: one folder per state of the source of the kernels.

Numba recompiles a cached function when its own file changes, but not when a compiled function or a constant that it
takes from another file does. A folder named after all files that kernels are made of cannot go stale after an upgrade
or a `git pull`, and a change of any other file compiles nothing anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from prism.kernel_sources import KERNEL_SOURCES

_PACKAGE = Path(__file__).parent


def choose_cache_folder(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Point numba at a folder of this source, unless the user chose one; takes effect before numba is imported."""
    if "NUMBA_CACHE_DIR" in environ:
        return
    home = environ.get("XDG_CACHE_HOME") or (str(Path(environ["HOME"]) / ".cache") if "HOME" in environ else None)
    if home is not None:
        environ["NUMBA_CACHE_DIR"] = str(Path(home) / "prism" / "kernels" / _name_source(_PACKAGE))


def _name_source(folder: Path, sources: Iterable[str] = KERNEL_SOURCES) -> str:
    """A name that changes with any of the source files: its path, size or modification time."""
    stamps = []
    for source in sources:
        try:
            status = os.stat(f"{folder}/{source}")  # noqa: PTH116 - half the cost of pathlib, at every start
        except FileNotFoundError:
            continue
        stamps.append(f"{folder}/{source} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
