"""Where compiled kernels are kept: one folder per state of the source.

Numba recompiles a cached function when its own file changes, but not when a compiled function that it calls from
another file does. A folder named after all of Prism's source files cannot go stale after an upgrade or a `git pull`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_PACKAGE = Path(__file__).parent


def choose_cache_folder(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Point numba at a folder of this source, unless the user chose one; takes effect before numba is imported."""
    if "NUMBA_CACHE_DIR" in environ:
        return
    home = environ.get("XDG_CACHE_HOME") or (str(Path(environ["HOME"]) / ".cache") if "HOME" in environ else None)
    if home is not None:
        environ["NUMBA_CACHE_DIR"] = str(Path(home) / "prism" / "kernels" / _name_source(_PACKAGE))


def _name_source(folder: Path) -> str:
    """A name that changes with any source file below a folder: its path, size or modification time."""
    stamps = []
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                status = os.stat(f"{place}/{file}")  # noqa: PTH116 - half the cost of pathlib, at every start
                stamps.append(f"{place}/{file} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(stamps)).encode()).hexdigest()[:16]
