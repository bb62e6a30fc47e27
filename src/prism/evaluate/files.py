"""Files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Put a file in place whole, or leave what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with aside.open("w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
