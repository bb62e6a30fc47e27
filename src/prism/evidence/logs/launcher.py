"""What a launcher wrote about the processes that failed: torchrun's list of failures."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prism.evidence.logs.joblog import JobLog, LogLine

SIGTERM, SIGABRT, SIGKILL = -15, -6, -9
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.*)$")
_PID = re.compile(r"\(pid: (\d+)\)")
_MAX_LINES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailure:
    """One process in the launcher's list."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    pid: int | None = None
    traceback: str = ""

    @property
    def was_killed(self) -> bool:
        """Whether it was ended by a signal that neither the launcher nor a watchdog sends."""
        return self.exit_code is not None and self.exit_code < 0 and self.exit_code not in (SIGTERM, SIGABRT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSummary:
    """The failure that the launcher observed first, and all failures in its list."""

    first: ChildFailure = ChildFailure()
    failures: tuple[ChildFailure, ...] = ()


def read_summary(job: JobLog) -> LauncherSummary:
    """Read torchrun's last list of failures; a list after which training continued is a quotation."""
    at = next((i for i in range(len(job.lines) - 1, -1, -1) if "Root Cause (first obs" in job.lines[i].text), None)
    if at is None or job.progress[job.lines[at].file] - job.lines[at].progress > 3:
        return LauncherSummary()
    mark = job.lines[at]
    before = [ln for ln in job.lines[max(0, at - _MAX_LINES) : at] if _same(ln, mark)]
    if not any("ChildFailedError" in ln.text for ln in before[-500:]):
        return LauncherSummary()  # A quotation by the program: the launcher's own list comes after its exception.
    start = max((i for i, ln in enumerate(before) if ln.text.strip() == "Failures:"), default=len(before))
    first = _blocks([ln for ln in job.lines[at + 1 : at + 60] if _same(ln, mark)])[:1]
    others = _blocks(before[start:])
    return LauncherSummary(first=first[0] if first else ChildFailure(), failures=(*first, *others))


def _same(line: LogLine, mark: LogLine) -> bool:
    return line.file == mark.file and line.rank in (mark.rank, None)


def _blocks(lines: list[LogLine]) -> list[ChildFailure]:
    """The blocks that each begin with a number in brackets."""
    blocks: list[dict[str, str]] = []
    key = ""
    for line in lines:
        if re.match(r"^\s*\[\d+\]:\s*$", line.text):
            blocks.append({})
        match = _FIELD.match(line.text)
        if match and blocks:
            key = match.group(1)
            blocks[-1].setdefault(key, match.group(2))
        elif key == "traceback" and blocks and line.text[:2] == "  ":
            blocks[-1]["traceback"] += "\n" + line.text
    return [_failure_of(block) for block in blocks if block]


def _failure_of(block: dict[str, str]) -> ChildFailure:
    pid, host = _PID.search(block.get("exitcode", "")), block.get("host", "").strip()
    return ChildFailure(
        rank=_whole(block.get("rank")),
        host=host if host and host != "localhost" else None,  # no scheduler knows a machine by that name
        exit_code=_whole(block.get("exitcode")),
        pid=int(pid.group(1)) if pid else None,
        traceback=block.get("traceback", ""),
    )


def _whole(text: str | None) -> int | None:
    match = re.match(r"-?\d{1,9}\b", text or "")
    return int(match.group(0)) if match else None
