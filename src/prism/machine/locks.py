"""A folder that one process works in: its lock, and whether that process lives, which others can see."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_FILE = "lock"


class FolderLock:
    """Held by one process at a time; the kernel lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises BlockingIOError where another process holds it, OSError where none can be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise
        self.say(f"process {os.getpid()} on {os.uname().nodename}")

    def say(self, words: str) -> None:
        """What others read in it."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, words.encode(), 0)

    def close(self, words: str = "") -> None:
        """Let go; the words say how the work ended."""
        if words:
            self.say(words)
        os.close(self._file)


def is_process_alive(words: str) -> bool | None:
    """Whether the process that a lock names lives; None where it is on another host, or none is named."""
    match words.split():
        case ["process", pid, "on", host] if pid.isdecimal() and host == os.uname().nodename:
            return Path(f"/proc/{pid}").exists()
    return None
