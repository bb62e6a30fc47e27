"""Find the lines that are evidence for a failure, and drop exceptions that only pass on others."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import dataclass, replace

from prism.evidence.logs.exceptions import (
    CAUSE_MARK,
    HANDLING_MARK,
    exception_below,
    exception_on,
    is_known_class,
    reason_on,
    starts_with_exception,
)
from prism.evidence.logs.frames import is_victim, place_reason, reason_of_frames
from prism.evidence.logs.joblog import JobLog, LogLine
from prism.evidence.logs.origins import strip_level
from prism.evidence.logs.routine import template_of
from prism.evidence.logs.rules import LAYERS, Rule, RuleBook
from prism.evidence.logs.triggers import is_progress
from prism.records.causes import CATEGORY_OF_REASON, UNKNOWN

EXCEPTION_DEPTH = LAYERS.index("exception")
SYMPTOM_DEPTH = LAYERS.index("symptom")
FAMILIAR_DEPTH = LAYERS.index("exit")
HEARSAY_DEPTH = LAYERS.index("wrapper")  # the rank of a job's own claims about hosts among other evidence
_FRAME = re.compile(
    r"^\s*(?:[│└┌╭╰❱]|-{2,}> \d+|-> \d+|\d{1,5} {2,}(?:raise|assert|except|return|if|elif|with|for|f?[\"'])"
    r'|File ".*?", line \d+|frame #\d+:|#\d+\s+0x|\[\w+\] \*\*\* |at \S+\(\S+:\d+\))'
)
_SOURCE = re.compile(
    r"^\s*(?:raise\b|assert\b.*[^:]$|except\b|return\b|with\b|for\b|if\b|elif\b|while\b|def\b|class\b|from\b|import\b"
    r"|[~^ ]+$|\w[\w.\[\]'\"]* = |[\w.]+\(.*\)?$|#)"
)
_TRACEBACK = ("Traceback (most recent call last)", "Exception Group Traceback")
# What Python and its logging print above a traceback of which the program does not end.
_GOES_ON = re.compile(
    r"^Exception ignored (?:in|on|while)|^--- Logging error|^Error in (?:atexit|sys\.excepthook)"
    r"|^Exception in thread \S*"
    r"(?:Tensorboard|wandb|resource|QueueFeeder|asyncio)|^Exception in callback|was never (?:retrieved|awaited)"
)
_TOP_LEVEL = re.compile(r", in <module>|<frozen runpy>|[/\\]runpy\.py")
# Classes that name the mistake themselves: words in their messages are only quotations.
_SELF_TOLD = frozenset(
    {"AttributeError", "ImportError", "IndentationError", "IndexError", "KeyError", "ModuleNotFoundError", "NameError",
     "SyntaxError", "UnboundLocalError", "ZeroDivisionError"}
)  # fmt: skip
MAX_FRAMES = 40
SNIPPET_LINES = 40
TOLD_WITHIN = 4  # lines after an exception that still belong to its message
_TELLS_ON = ("Last error:", "what():", "CUDA error", "HIP error", "Cuda failure")
# Failed look-ups that a later exception reports with a clearer message: the later exception is the answer.
_LOOKUPS = frozenset(
    {"KeyError", "IndexError", "AttributeError", "TypeError", "ValueError", "NameError", "RuntimeError"}
)
EXPLAINS_WITHIN_LINES = 60
# Launchers copy stdout and stderr separately, so a last exception may come before the last steps of its own rank.
SURVIVED_SHARE = 0.05
SURVIVED_PER_RANK = 3  # so many progress lines per rank after a message show that the run survived it
_NO_CLASS = frozenset({"NVLinkError", "ECCError", "NodeFailure", "NetworkError", "S3StorageError", "NCCLTimeoutError"})
# Program errors that no host fault causes: next to them, a host fault in the job's own output is a quotation.
_OF_PROGRAM = frozenset(
    {reason for reason, category in CATEGORY_OF_REASON.items() if category == "script" and reason != "OSError"}
    | {"AttributeError", "AssertionError", "ValueError", "ZeroDivisionError", "RuntimeError", "DatasetLoadingError"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line that is evidence for a reason; `order` is its position among the kept lines.

    `raised` means that it belongs to an exception's message below a traceback, `reported` that an exception, a runtime
    logger or a launcher wrote it, not the program's own prints. `uncaught` means that its traceback begins at the
    program's top level, which is how Python ends a program; one that a program logs begins where it was caught.
    """

    line: LogLine
    order: int
    reason: str
    depth: int
    rule: Rule | None = None
    exception: str | None = None
    raised: bool = False
    reported: bool = False
    uncaught: bool = False

    @property
    def cause(self) -> str | None:
        """What the rule says beyond the reason; None if it says no more."""
        return self.rule.cause if self.rule is not None and self.rule.reason == self.reason else None

    @property
    def explains_end(self) -> bool:
        """Whether it says why the run ended."""
        return self.reason != UNKNOWN or self.cause is not None


def find_hits(job: JobLog, book: RuleBook, routine: Container[str] = frozenset()) -> list[Hit]:
    """Lines that a rule matches or that report an exception, unless the job survived them or healthy runs print them.

    `routine` holds templates learned from healthy runs of the same job family.
    """
    lines_by_source: dict[tuple[str, int | None], dict[int, LogLine]] = defaultdict(dict)
    ranks_of_file: dict[str, set[int | None]] = defaultdict(set)
    for order, line in enumerate(job.lines):
        lines_by_source[line.file, line.rank][order] = line
        ranks_of_file[line.file].add(line.rank)
    book.prepare(text for line in job.lines if line.hit for text in (line.text, strip_level(line.text)))
    hits: list[Hit] = []
    survived: Counter[str] = Counter()
    # An excerpt of a log shows neither steps nor the traceback above its exception.
    is_snippet = job.num_lines <= SNIPPET_LINES and not job.saw_progress
    for (file, _), lines in lines_by_source.items():
        limit = SURVIVED_PER_RANK * len(ranks_of_file[file])
        found = _hits_of_writer(lines, book, routine, is_snippet=is_snippet)
        found = _fold_chains(_without_unrelated(found), lines)
        alone = len(ranks_of_file[file]) == 1
        # In an interleaved log, progress of other ranks says nothing about this one: its own last lines must show some.
        went_on = -1 if alone or not found else max((o for o, ln in lines.items() if is_progress(ln.text)), default=-1)
        for hit in found:
            if (alone or hit.order < went_on) and _survived(hit, job.progress[file], limit):
                survived[template_of(hit.line.text)] += 1
            else:
                hits.append(hit)
    hits = _weigh_writers(_demote_familiar(hits, survived), book)
    return sorted(_raise_explaining(hits, book), key=lambda h: h.order)


def blames_host(hit: Hit, book: RuleBook) -> bool:
    """Whether this hit is a claim about a host: its rule, or its reason by default, isolates one."""
    action = hit.rule.action if hit.rule is not None else None
    return "isolate_and_restart" in (action, book.advice[hit.reason].action)


def _weigh_writers(hits: list[Hit], book: RuleBook) -> list[Hit]:
    """A job's own claims about hosts count least, and not at all next to an error of the program itself."""
    found = {h.reason for h in hits if h.depth >= EXCEPTION_DEPTH}
    of_program = bool(found & _OF_PROGRAM)
    # A runtime that warns of the network often ends with a plain RuntimeError.
    beside_runtime = bool(found & (_OF_PROGRAM - {"RuntimeError"}))
    out = []
    for hit in hits:
        quoted = beside_runtime if hit.reported else of_program or hit.line.writer == "application"
        proven = hit.line.trusted or hit.raised
        if blames_host(hit, book) and quoted and not proven:
            hit = replace(hit, depth=HEARSAY_DEPTH)
        out.append(hit)
    return out


def _demote_familiar(hits: list[Hit], survived: Counter[str]) -> list[Hit]:
    """A message that the job printed earlier and survived explains its failure only if nothing else does."""
    if not survived:
        return hits
    return [
        replace(h, depth=FAMILIAR_DEPTH) if h.depth > FAMILIAR_DEPTH and survived[template_of(h.line.text)] >= 2 else h
        for h in hits
    ]


def _hits_of_writer(
    lines: dict[int, LogLine], book: RuleBook, routine: Container[str], *, is_snippet: bool
) -> list[Hit]:
    hits = []
    after_frame = False
    frames: list[str] = []
    since_exception = TOLD_WITHIN + 1
    traced = ignored = False
    before = ""
    for order, line in lines.items():
        text, previous, before = line.text, before, line.text
        tells = starts_with_exception(strip_level(text)) or text.lstrip().startswith(_TELLS_ON)
        since_exception = 0 if tells else since_exception + 1
        traced = is_snippet or (traced and since_exception <= TOLD_WITHIN) or "terminate called" in text
        if _FRAME.match(text):
            after_frame = text.lstrip().startswith("File ")
            frames = [*frames[-MAX_FRAMES:], text] if after_frame else frames
            continue
        if (after_frame and text[:1] == " ") or ((after_frame or text[:4] == "    ") and _SOURCE.match(text)):
            rule = book.claim(text.strip()) if text.lstrip().startswith("assert ") else None
            if rule is not None and rule.explains:  # The failed condition may name the cause, such as a missing file.
                hits.append(Hit(line=line, order=order, reason=rule.reason, depth=rule.depth, rule=rule))
            continue
        after_frame = False
        if text.lstrip(" |+").startswith(_TRACEBACK):
            frames, ignored = [], _GOES_ON.search(previous) is not None
            continue
        named = exception_below(strip_level(text)) if frames else None
        if ignored and frames:  # Python printed it and went on.
            frames, ignored = ([], False) if named or starts_with_exception(strip_level(text)) else (frames, True)
            continue
        hit = _hit_of(line, order, book, named) if line.hit or named else None
        if hit is None:
            continue
        if since_exception and since_exception <= TOLD_WITHIN and hits and _only_quotes(hit, hits[-1]):
            continue
        if template_of(text) not in routine:
            told = since_exception <= TOLD_WITHIN
            traced = traced or bool(frames)
            reported = told or line.writer in ("framework", "launcher")
            hits.append(
                _placed(replace(hit, raised=told and traced, reported=reported, uncaught=_is_uncaught(frames)), frames)
            )
        frames = []
    return [*hits, *_cut_traceback(lines, frames)]


def _only_quotes(hit: Hit, before: Hit) -> bool:
    """Whether it is a note below an error of the program, which names its own mistake."""
    is_note = hit.exception is None and hit.line.writer == "application"
    return is_note and before.uncaught and before.reason in _OF_PROGRAM - {"RuntimeError", "DatasetLoadingError"}


def _is_uncaught(frames: list[str]) -> bool:
    return bool(frames) and _TOP_LEVEL.search(frames[0]) is not None


def _cut_traceback(lines: dict[int, LogLine], frames: list[str]) -> list[Hit]:
    """The last traceback of a log that ends before its exception: the innermost frames show what failed."""
    last = max(lines)
    if not frames or not (_FRAME.match(lines[last].text) or lines[last].text[:2] == "  "):
        return []
    reason = reason_of_frames(frames)
    return [Hit(line=lines[last], order=last, reason=reason, depth=SYMPTOM_DEPTH)] if reason is not None else []


def _placed(hit: Hit, frames: list[str]) -> Hit:
    """The hit; if its message gives no reason, with the reason from its place in the program."""
    if hit.depth == EXCEPTION_DEPTH and is_victim(hit.exception, hit.line.text, frames):
        reason = "NCCLRemoteError" if hit.reason == "RuntimeError" else hit.reason
        return replace(hit, depth=SYMPTOM_DEPTH, reason=reason)
    bare = hit.rule is None and hit.line.text.strip() == "AssertionError"
    return replace(hit, reason=place_reason(hit.exception, frames, bare=bare) or hit.reason)


def _hit_of(line: LogLine, order: int, book: RuleBook, named: str | None) -> Hit | None:
    """What one line is evidence for; `named` is the class that it names because it follows a traceback."""
    text = line.text
    bare = strip_level(text)
    if text.lstrip().startswith(("raise ", "warnings.warn", "except ")):
        return None
    rule = book.claim(bare)
    if not starts_with_exception(bare) and book.is_routine(text):
        if rule is None or not rule.explains:
            return None
        # A warning is no failure, but may explain a later one; it is dropped if none follows.
        return Hit(line=line, order=order, reason=rule.reason, depth=rule.depth, rule=rule)
    name = exception_on(bare) or named
    reason = reason_on(bare, name) if name is not None else None
    if reason in _NO_CLASS and not starts_with_exception(bare):
        reason = (
            None  # Our names for hardware faults are no exception classes: a line that mentions one raised nothing.
        )
    self_told = name in _SELF_TOLD and starts_with_exception(bare)
    if reason is not None and (rule is None or _yields(rule) or (self_told and rule.reason != reason)):
        return Hit(line=line, order=order, reason=reason, depth=EXCEPTION_DEPTH, exception=name)
    if rule is None:
        return None
    return Hit(line=line, order=order, reason=rule.reason, depth=rule.depth, rule=rule, exception=name)


def _yields(rule: Rule) -> bool:
    """Whether the exception class on the line is a better answer than what this rule concludes from the words."""
    return rule.layer == "message" or bool(rule.explains)


def _survived(hit: Hit, num_progress: int, limit: int) -> bool:
    """Whether training continued after this line; hardware faults are kept, because their effect is often delayed."""
    after = num_progress - hit.line.progress
    lasting = hit.line.trusted and hit.depth == LAYERS.index("hardware")
    return not lasting and after >= max(limit, SURVIVED_SHARE * num_progress)


def _without_unrelated(hits: list[Hit]) -> list[Hit]:
    """If a library names what failed, such as a dataset, unknown classes inside it are dropped."""
    told = any(h.rule is not None and h.rule.depth == SYMPTOM_DEPTH and h.rule.id.endswith("-wrapper") for h in hits)
    if not told:
        return hits
    return [h for h in hits if h.rule is not None or h.exception is None or is_known_class(h.exception)]


def _fold_chains(hits: list[Hit], lines: dict[int, LogLine]) -> list[Hit]:
    """Of exceptions that Python chained, keep the root, unless a rule matches a deeper one."""
    marks = {o: ln.text for o, ln in lines.items() if CAUSE_MARK in ln.text or HANDLING_MARK in ln.text}
    if not marks:
        return hits
    out: list[Hit] = []
    for hit in hits:
        if hit.depth != EXCEPTION_DEPTH or not out:
            out.append(hit)
            continue
        between = [text for o, text in marks.items() if out[-1].order < o < hit.order]
        if not between:
            out.append(hit)
        elif CAUSE_MARK in between[-1] or not _is_lookup(out[-1]):
            continue
        else:
            out[-1] = hit
    return out


def _is_lookup(hit: Hit) -> bool:
    return hit.rule is None and hit.depth == EXCEPTION_DEPTH and hit.reason in _LOOKUPS


def _raise_explaining(hits: list[Hit], book: RuleBook) -> list[Hit]:
    """Put a hit above the later hits of the same rank that its rule explains; drop a warning that explains none."""
    out: list[Hit] = []
    for hit in hits:
        if hit.rule is None or not hit.rule.explains:
            out.append(hit)
            continue
        explained = [h.depth for h in hits if _explains(hit, h)]
        if explained:
            out.append(replace(hit, depth=max(hit.depth, max(explained) + 1)))
        elif not book.is_routine(hit.line.text):
            out.append(hit)
    return out


def _explains(hit: Hit, later: Hit) -> bool:
    return (
        hit.rule is not None
        and later.reason in hit.rule.explains
        and (later.line.file, later.line.rank) == (hit.line.file, hit.line.rank)
        and 0 <= later.line.line - hit.line.line <= EXPLAINS_WITHIN_LINES
        and later.order > hit.order
        and later.depth <= EXCEPTION_DEPTH
    )
