"""Compression: of everything a job printed, the lines that can explain its failure."""

from __future__ import annotations

import re
from collections.abc import Container

from prism.evidence.logs.exceptions import CAUSE_MARK, HANDLING_MARK
from prism.evidence.logs.hits import Hit
from prism.evidence.logs.joblog import JobLog, LogLine
from prism.evidence.logs.routine import template_of
from prism.evidence.logs.rules import RuleBook
from prism.evidence.logs.triggers import has_trouble

INNER_FRAMES = 2  # of a traceback: the frames nearest to the exception
_FRAME = re.compile(r'^\s*File ".*?", line \d+')
_CPP_FRAME = re.compile(r"^\s*(?:frame #\d+:|#\d+\s+0x)")
_ORIENTATION = ("Traceback (most recent call last)", CAUSE_MARK, HANDLING_MARK)


def compress(job: JobLog, hits: list[Hit], book: RuleBook, routine: Container[str] = frozenset()) -> list[LogLine]:
    """The relevant lines: every kind of evidence once, with its innermost frames; the rest is dropped.

    Lines are of one kind if they differ only in numbers, whichever rank printed them.
    """
    evidence = {h.order for h in hits}
    framed = _frames_of(job, hits)
    seen: set[str] = set()
    kept: list[LogLine] = []
    for order, line in enumerate(job.lines):
        if not (order in evidence or order in framed or (line.hit and _may_matter(line, book, routine))):
            continue
        template = template_of(line.text)
        if template in seen:
            continue
        seen.add(template)
        kept.append(line)
    return kept


def _may_matter(line: LogLine, book: RuleBook, routine: Container[str]) -> bool:
    """A line with a trigger word that no rule explains: kept, unless healthy runs print it too."""
    text = line.text
    if not has_trouble(text):
        return False
    if _FRAME.match(text) or _CPP_FRAME.match(text) or any(mark in text for mark in _ORIENTATION):
        return False
    return template_of(text) not in routine and not book.is_routine(text)


def _frames_of(job: JobLog, hits: list[Hit]) -> set[int]:
    """Positions of the frames, and their code lines, that come last before each exception."""
    chosen: set[int] = set()
    for hit in hits:
        frames = 0
        for order in range(hit.order - 1, max(-1, hit.order - 60), -1):
            line = job.lines[order]
            if line.file != hit.line.file or (line.rank != hit.line.rank and line.rank is not None):
                continue
            if _FRAME.match(line.text):
                chosen.add(order)
                chosen.add(order + 1)
                frames += 1
            if frames == INNER_FRAMES or line.text.startswith("Traceback"):
                break
    return {order for order in chosen if order < len(job.lines)}
