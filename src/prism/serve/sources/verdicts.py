"""Verdicts that `prism explain --json` printed, and the log lines around their evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from prism.errors import BadRowError
from prism.evidence.logs.secrets import mask
from prism.records import Verdict
from prism.serve.folder import Folder, NotInFolderError
from prism.serve.shapes.runs import Context, ContextLine

_MOST_LINES_BYTES = 64 << 20
_MOST_LOG_BYTES = 256 << 20
_MOST_LINE_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFile:
    """The verdicts of one file of JSON Lines."""

    path: str
    verdicts: tuple[Verdict, ...]
    updated_ns: int


def read_verdicts(folder: Folder, path: str, mtime_ns: int) -> VerdictFile:
    """Read verdicts, without lines that are no verdict or are still being written."""
    found: list[Verdict] = []
    for line in folder.read(path, most=_MOST_LINES_BYTES).splitlines():
        try:
            found.append(mask_verdict(Verdict.from_json(json.loads(line), path)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadRowError):
            continue
    return VerdictFile(path=path, verdicts=tuple(found), updated_ns=mtime_ns)


def mask_verdict(verdict: Verdict) -> Verdict:
    """A verdict whose texts hold no secrets: its lines come from logs, and are masked as logs are."""
    lines = tuple(replace(line, text=mask(line.text)) for line in verdict.evidence)
    return replace(verdict, evidence=lines, mitigation=mask(verdict.mitigation), notes=tuple(map(mask, verdict.notes)))


def read_context(folder: Folder, verdict: Verdict, place: str, around: int = 3) -> list[Context]:
    """The cited lines of each log, with the lines around them if the log is in the folder."""
    files = list(dict.fromkeys(line.file for line in verdict.evidence))
    out = []
    for name in files:
        cited = {line.line: line.text for line in verdict.evidence if line.file == name}
        path = find_log(folder, verdict.log, name, place)
        lines = list(_read_around(folder, path, cited, around)) if path else []
        if not lines:
            path, lines = "", [ContextLine(line=n, text=t, cited=True) for n, t in sorted(cited.items())]
        out.append(Context(file=path or "", lines=tuple(lines)))
    return out


def find_log(folder: Folder, log: str, name: str | None, place: str) -> str | None:
    """The path within the folder of a log that a verdict names by another path; None if it is not there."""
    given = PurePosixPath(log) / name if name else PurePosixPath(log)
    # The command ran elsewhere, so that the path contains the served folder, or the folder was moved since.
    tails = [
        PurePosixPath(*given.parts[i + 1 :]) for i, part in enumerate(given.parts[:-1]) if part == folder.root.name
    ]
    starts = [PurePosixPath(".")]
    if given.is_absolute():
        with suppress(ValueError):
            tails.insert(0, given.relative_to(folder.root))
    else:
        # Commands are often run in the served folder, or in the parent of their output.
        tails.insert(0, given)
        starts = [PurePosixPath(place), *starts, *PurePosixPath(place).parents]
    for start in dict.fromkeys(starts):
        for tail in tails:
            path = str(start / tail)
            if folder.exists(path):
                return path
    return None


def _read_around(folder: Folder, path: str, cited: dict[int, str], around: int) -> Iterator[ContextLine]:
    """Lines near a cited one; none if the file does not contain what the verdict cites."""
    if Path(path).suffix in (".gz", ".zst"):
        return
    try:
        lines = folder.read(path, most=_MOST_LOG_BYTES).split(b"\n")
    except NotInFolderError:
        return
    if not all(_holds(lines, number, text) for number, text in cited.items()):
        return  # another file of that name, or it was rewritten since
    wanted = sorted({n for line in cited for n in range(line - around, line + around + 1) if 1 <= n <= len(lines)})
    for number in wanted:
        text = lines[number - 1].decode(errors="replace").rstrip("\r")[:_MOST_LINE_CHARACTERS]
        if text or number in cited:
            yield ContextLine(line=number, text=mask(text), cited=number in cited)


def _holds(lines: list[bytes], number: int, text: str) -> bool:
    """Whether the file has the cited line at that number; its ends may be cut off and secrets masked."""
    if not 1 <= number <= len(lines):
        return False
    found = mask(lines[number - 1].decode(errors="replace")).strip()
    given = mask(text).strip()
    return given in found or found in given or found[:40] == given[:40]
