"""The crash file of an internal error, to attach to a report: where it happened, without values or secrets."""

from __future__ import annotations

import os
import platform
import tempfile
import time
import traceback
from pathlib import Path

from prism.version import __version__


def write_crash_file(error: BaseException, arguments: list[str]) -> Path | None:
    """Write the stack of an error to a new private file; None where no file can be written."""
    from prism.evidence.logs.secrets import mask

    # Values of options and file names may be private, so only the names of commands and options are kept.
    words = [w.split("=")[0] if w.startswith("-") else (w if w.isalpha() and w.islower() else "...") for w in arguments]
    frames = traceback.TracebackException.from_exception(error, capture_locals=False)
    text = (
        f"prism {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: prism {' '.join(words)}\n\n{''.join(frames.format())}"
    )
    try:
        descriptor, name = tempfile.mkstemp(prefix=f"prism-crash-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".txt")
        with os.fdopen(descriptor, "w") as file:
            file.write(mask(text.replace(str(Path.home()), "~")))
    except OSError:
        return None
    return Path(name)
