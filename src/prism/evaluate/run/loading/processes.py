"""A process named so that a later one of the same number is not taken for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """Number and start time of a process."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """The mark of a process that runs now."""
        return cls(pid=pid, start_ticks=_start_ticks(pid) or 0)

    @classmethod
    def parse(cls, text: str) -> ProcessMark:
        """From `PID-TICKS...`; what cannot be read names no living process."""
        parts = [*text.split("-"), "", ""]
        return cls(pid=int(parts[0]) if parts[0].isdecimal() else -1, start_ticks=int(parts[1] or 0))

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; a zombie does not."""
        return self.pid > 0 and _start_ticks(self.pid) == self.start_ticks


def _start_ticks(pid: int) -> int | None:
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])
