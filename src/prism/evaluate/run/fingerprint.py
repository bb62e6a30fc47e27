"""What a finished trial depended on, as one word: model, data, prompt, settings and code version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism.version import __version__

# Settings that change how fast a trial runs and not what it gives.
_SPEED_ONLY = frozenset(
    {"batch_size", "score_timeout_s", "folder", "confirm_run_unsafe_code", "lower_is_better", "higher_is_better"}
)


def make_fingerprint(model: str, adapter: str, task: str, data: str, settings: Mapping[str, Any]) -> str:
    """One word for everything that a result follows from."""
    kept = {key: value for key, value in settings.items() if key not in _SPEED_ONLY}
    document = [model, adapter, task, data, kept, __version__]
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def identify_file(path: Path) -> str:
    """A file's content as one word."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
