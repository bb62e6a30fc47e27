"""Runs that did not fail: how programs and launchers report a regular end, and when to believe it.

An exit code decides alone. Else a launcher or scheduler that reports the end of a process decides over everything that
was printed; a program that says that its training is done decides over all but an uncaught exception and over what
schedulers and launchers write afterwards.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from prism.evidence.logs.exceptions import starts_with_exception
from prism.evidence.logs.hits import EXCEPTION_DEPTH, Hit, blames_host
from prism.evidence.logs.joblog import JobLog, LogLine
from prism.evidence.logs.rules import RuleBook
from prism.evidence.logs.triggers import has_trouble, is_progress
from prism.records.causes import cause_of

SAID_CONFIDENCE, REACHED_CONFIDENCE, SILENT_CONFIDENCE = 0.95, 0.9, 0.5
LAST_LINES = 12  # an unknown error among these lines means that the run may not have ended well
MIN_SILENT_PROGRESS = 5
LEVEL_SHARE = 0.98  # the share of the progress lines of the longest file that every other file must have
# What programs, trainers, launchers and schedulers print last after a regular end.
_SAID = re.compile(
    r"\btrain_runtime\b|`?Trainer\.(?:fit|test|validate|predict)`? stopped: .{0,40}reached|\[after training is done\]"
    r"|\btrain(?:ing|er)? (?:run |job |has |is |was )*(?:successfully )?(?:completed?|finished|done)\b(?! (?:with"
    r"|by) (?:error|exit code [1-9]))"
    r"|\b(?:completed?|finished|done) (?:with )?(?:the )?(?:model )?training\b|\bfinished (?:successfully|all "
    r"(?:steps|epochs|iterations))"
    r"|\b(?:job|run|experiment|program|process(?: \d+)?|all (?:ranks|workers|processes)) (?:has |have |is |was "
    r")?(?:completed|finished|succeeded|done|exits?(?:ed)?) ?(?:successfully|normally|cleanly|with (?:exit "
    r")?code:? 0\b|ok\b|[.!]|$)"
    r"|exit(?:ed|s)? (?:with )?(?:code|status):? ?=?0\b|\breturn(?:ed)? code:? 0\b|ExitCode=0:0"
    r"|\bState=COMPLETED\b|JobState=COMPLETED|^\d+[\w.+]*\s.{0,200}\bCOMPLETED +0:0\b"
    r"|\"run_stop\".{0,120}\"success\"|\"event_type\": \"POINT_IN_TIME\".{0,200}run_stop|Max (?:steps|epochs) reached"
    r"|^\s*(?:All )?[Dd]one[.! ]*$|^\s*(?:FINISHED|COMPLETED|SUCCESS(?:FUL)?)[.! ]*$|wandb: (?:Run summary"
    r"|.{0,4}View run)|(?:Reason|Status|phase): +(?:Completed|Succeeded)\b",
    re.IGNORECASE,
)
# Of these, what launchers and schedulers say about a process that is over, and frameworks in the name of one.
_OVER = re.compile(
    r"exit(?:ed|s)? (?:with )?(?:exit )?(?:code|status):? ?=?0\b|\breturn(?:ed)? code:? 0\b|ExitCode=0:0"
    r"|State=COMPLETED|\bCOMPLETED +0:0\b"
    r"|(?:Reason|Status|phase): +(?:Completed|Succeeded)\b|worker group successfully finished|exits successfully",
    re.IGNORECASE,
)
_NOT_SAID = re.compile(
    r"\b(?:not|never|before|until|when|once|if|unless|epoch \d+ of|failed|stage \d|step \d+ of)\b", re.IGNORECASE
)
_OF_TOTAL = re.compile(
    r"(?:\b(?:iter(?:ation)?s?|steps?|epochs?|global_step|batch(?:es)?)\b[\s:=\[(]{1,12}|\|\s{0,3})(\d{1,12})\s?(?:/|of)\s{0,8}(\d{1,12})\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A regular end of a run: how certain it is, and the lines that show it."""

    confidence: float
    lines: tuple[LogLine, ...]


def find_finish(job: JobLog, hits: list[Hit], book: RuleBook, exit_code: int | None = None) -> Finish | None:
    """How the run ended if it did not fail; None if it failed, or if nothing shows how it ended."""
    if exit_code is not None:
        return Finish(confidence=SAID_CONFIDENCE, lines=job.lines[-1:]) if exit_code == 0 else None
    by_file: dict[str, list[tuple[int, LogLine]]] = defaultdict(list)
    for order, line in enumerate(job.lines):
        by_file[line.file].append((order, line))
    ends = {file: _end_of_file(lines, job.progress[file]) for file, lines in by_file.items()}
    over = any(end is not None and end.over for end in ends.values())
    said_so = any(end is not None and end.said for end in ends.values())
    for hit in hits:
        end = ends[hit.line.file]
        if said_so and hit.line.trusted and hit.line.writer == "kernel":
            continue  # The run may be complete although a host is faulty.
        if not _is_noise(hit, end, by_file[hit.line.file], book, over=over):
            return None
    said = [end for end in ends.values() if end is not None]
    if said:
        if not all(end is not None or _ran_along(job, file, by_file[file], book) for file, end in ends.items()):
            return None
        sure = SAID_CONFIDENCE if said_so else REACHED_CONFIDENCE
        return Finish(confidence=sure, lines=tuple(end.line for end in said[:3]))
    return _silent_finish(job, by_file, book)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """The line that shows the regular end of a file's process: a message, or its last step."""

    order: int
    line: LogLine
    said: bool
    over: bool = False  # a launcher or scheduler says that the process is over, and well


def _end_of_file(lines: list[tuple[int, LogLine]], num_progress: int) -> _End | None:
    reached: _End | None = None
    for order, line in reversed(lines):
        if num_progress - line.progress > 3:
            break
        if _SAID.search(line.text) and not _NOT_SAID.search(line.text) and not starts_with_exception(line.text):
            return _End(order=order, line=line, said=True, over=_OVER.search(line.text) is not None)
        if reached is None and is_progress(line.text):
            totals = _OF_TOTAL.findall(line.text)
            if totals and all(done == total for done, total in totals):
                reached = _End(order=order, line=line, said=False)
    return reached


def _is_noise(hit: Hit, end: _End | None, lines: list[tuple[int, LogLine]], book: RuleBook, *, over: bool) -> bool:
    """Whether the run came to a whole end in spite of this hit."""
    told = cause_of(hit.cause).outcome if hit.cause is not None else "failed"
    tells_of_ends = hit.line.writer in ("scheduler", "launcher") or told != "failed"
    if hit.line.trusted or (tells_of_ends and not hit.raised and (end is None or hit.order > end.order)):
        return False
    if over and not tells_of_ends:
        return True
    if end is None:
        return False
    if end.said and hit.order > end.order:
        return not hit.uncaught
    return _is_past(hit, end, lines, book)


def _is_past(hit: Hit, end: _End, lines: list[tuple[int, LogLine]], book: RuleBook) -> bool:
    """Whether the run came to its end after this hit.

    Later steps show that the run survived it. Without them, a hit that is no exception is over once the program says
    that it is done: some programs catch an exception and then report success.
    """
    hearsay = not (hit.raised or hit.line.trusted) and blames_host(hit, book)
    if end.said and hit.order < end.order and (hit.depth < EXCEPTION_DEPTH or hearsay):
        return end.line.rank is None or hit.line.rank in (None, end.line.rank)
    needed = 1 if end.said else 4
    return (
        hit.order < end.order and sum(hit.order < o < end.order and is_progress(ln.text) for o, ln in lines) >= needed
    )


def _silent_finish(job: JobLog, by_file: dict[str, list[tuple[int, LogLine]]], book: RuleBook) -> Finish | None:
    """A run that took steps, shows no problem, and reached the total of every progress bar."""
    if not job.saw_progress or max(job.progress.values()) < MIN_SILENT_PROGRESS:
        return None
    if not all(_ran_along(job, file, lines, book) for file, lines in by_file.items()):
        return None
    last = [line for lines in by_file.values() for _, line in lines[-LAST_LINES:] if is_progress(line.text)]
    return Finish(confidence=SILENT_CONFIDENCE, lines=tuple(last[-1:])) if last else None


def _ran_along(job: JobLog, file: str, lines: list[tuple[int, LogLine]], book: RuleBook) -> bool:
    """Whether a file without a final message got as far as the others, shows no problem and reached all its totals."""
    count, most = job.progress[file], max(job.progress.values())
    if 0 < count < LEVEL_SHARE * most:
        return False  # It ends before the others: its process died, or its log was cut.
    last = [line for _, line in lines[-LAST_LINES:] if is_progress(line.text)][-1:]
    undone = any(done != total for line in last for done, total in _OF_TOTAL.findall(line.text))
    return not undone and _is_quiet(lines, book)


def _is_quiet(lines: list[tuple[int, LogLine]], book: RuleBook) -> bool:
    """Whether the last lines of a file contain no trouble word except in lines that healthy runs print too."""
    return not any(
        has_trouble(line.text) and not book.is_routine(line.text) and not is_progress(line.text)
        for _, line in lines[-LAST_LINES:]
    )
