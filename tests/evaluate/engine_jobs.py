"""Jobs for tests of engines; they must be importable by workers."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from prism.errors import BadFileError


@dataclass(frozen=True)
class Act:
    """Does one simple thing."""

    word: str
    value: Any = None

    def run(self, place: Any) -> Any:
        if self.word == "echo":
            return self.value
        if self.word == "keep":
            return place.cache.keep("model", self.value, lambda: os.getpid())
        if self.word == "sleep":
            time.sleep(self.value)
        if self.word == "die":
            os._exit(9)
        if self.word == "raise":
            raise {
                "memory": MemoryError("too large"),
                "disk": OSError(28, "No space left on device", "/full"),
                "file": BadFileError("x: broken"),
                "bug": ZeroDivisionError("oops"),
            }[self.value]
        return os.getpid()
