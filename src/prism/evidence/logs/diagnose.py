"""The tiers in order, cheapest first: rules, ranks, resolved cases, and an agent if one is configured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from prism.evidence.logs.cases import CaseStore, Neighbour, is_held_back, nearest
from prism.evidence.logs.compress import compress
from prism.evidence.logs.finish import SILENT_CONFIDENCE, Finish, find_finish
from prism.evidence.logs.hits import EXCEPTION_DEPTH, Hit, blames_host, find_hits
from prism.evidence.logs.joblog import JobLog, LogLine
from prism.evidence.logs.ranks import Suspect, choose_root, find_suspect, may_isolate
from prism.evidence.logs.routine import Family
from prism.evidence.logs.rules import LAYERS, RuleBook, shipped_rules
from prism.evidence.logs.secrets import mask
from prism.records.causes import CATEGORY_OF_REASON, NO_FAILURE, UNKNOWN, Cause, cause_of, cause_of_code
from prism.records.verdict import Action, EvidenceLine, Verdict

LAST_LINES = 40  # of the log; an agent always gets them
MAX_EVIDENCE = 12
ONCE = "it failed before its first step: restart once; if it fails again, stop and page"
_KILLED = (
    "A rank was killed while it trained, by the kernel's memory killer or by a person; its launcher lives, so its host "
    "is up. Look in the kernel log of that host for oom-kill, and ask who else may end processes there. Restart from "
    "the last checkpoint; if it is killed there again, test the host."
)
_ENDS_SILENTLY = "the log tells no trouble and not how the run ended: its exit code or the kernel log of its host would"
MAX_EVIDENCE_CHARS = 600
# The confidence of a verdict by the layer of its root cause; checked against the scoreboard in
# proving/benchmarks/explain.py.
CONFIDENCE = {
    "hardware": 0.97,
    "cause": 0.93,
    "exception": 0.88,
    "message": 0.75,
    "symptom": 0.8,
    "exit": 0.5,
    "wrapper": 0.0,
}
RIVAL_PENALTY = 0.1
HEARSAY_CONFIDENCE = 0.3  # of a claim about a host that only the job's own output contains
RETRIEVAL_CONFIDENCE = 0.5


class Adviser(Protocol):
    """The last tier, used if the others have no answer; it must cite lines that exist."""

    def advise(self, lines: list[LogLine], neighbours: list[Neighbour]) -> Verdict | None:
        """A verdict grounded in `lines`, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What diagnosis may use: rules, the job family's routine lines, resolved cases, an adviser."""

    rules: RuleBook = field(default_factory=shipped_rules)
    family: Family = field(default_factory=lambda: Family("none"))
    cases: CaseStore = field(default_factory=CaseStore)
    adviser: Adviser | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A verdict and what led to it: the compressed log, the hits, the nearest resolved cases."""

    verdict: Verdict
    kept: list[LogLine]
    hits: list[Hit]
    neighbours: list[Neighbour]


def diagnose(job: JobLog, knowledge: Knowledge | None = None, exit_code: int | None = None) -> Diagnosis:
    """From a job's log to its outcome and then to the root cause; an exit code beats any text."""
    know = knowledge or Knowledge()
    hits = find_hits(job, know.rules, know.family.templates)
    kept = compress(job, hits, know.rules, know.family.templates)
    root = choose_root([h for h in hits if h.explains_end])
    neighbours: list[Neighbour] = []
    finish = find_finish(job, hits, know.rules, exit_code)
    if finish is not None:
        verdict = _no_failure(job, finish, know.rules)
    elif root is not None:
        verdict = _verdict_of(job, hits, root, know.rules)
    else:
        # Lines that explain nothing, such as a launcher's last lines, resemble every case that ended the same way.
        wrappers = {h.line.text for h in hits}
        neighbours = nearest(know.cases, [ln.text for ln in kept if ln.text not in wrappers])
        verdict = _unknown(job, kept, neighbours, know.rules)
        if know.adviser is not None:
            shown = [n for n in neighbours if not is_held_back(n.case)]
            advised = know.adviser.advise(_with_last_lines(kept, job), shown)
            verdict = verdict if advised is None else replace(advised, log=job.name)
    verdict = _with_end(verdict, hits, exit_code)
    verdict = replace(verdict, lines_read=job.num_lines, lines_kept=len(kept))
    return Diagnosis(verdict=verdict, kept=kept, hits=hits, neighbours=neighbours)


def _verdict_of(job: JobLog, hits: list[Hit], root: Hit, book: RuleBook) -> Verdict:
    suspect = find_suspect(job, hits, root)
    reason = root.reason
    advice = _advice_of(root, reason, book)
    cause = cause_of(root.cause or reason)
    if suspect.vanished and job.saw_progress and root.depth < EXCEPTION_DEPTH:
        # A rank that stops in the middle of training without a message has lost its process or its node.
        reason = UNKNOWN if suspect.killed else "NodeFailure"
        cause = cause_of("SIGKILL" if suspect.killed else reason)
        advice = ("restart", _KILLED) if suspect.killed else _advice_of(root, reason, book)
    action, mitigation = advice
    # If only the job itself printed something about a host, the host should be checked, not isolated.
    hearsay = reason == root.reason and blames_host(root, book) and not may_isolate(root, hits)
    action = decide(action, reason, job)
    action = "restart" if hearsay and action == "isolate_and_restart" else action
    confidence = HEARSAY_CONFIDENCE if hearsay else _confidence(hits, root)
    return Verdict(
        log=job.name,
        reason=reason,
        category=CATEGORY_OF_REASON[reason],
        action=action,
        confidence=confidence,
        evidence=_evidence(job, hits, root),
        hosts=() if hearsay or _is_excused(root, reason, book) else _hosts(suspect, root, cause, action),
        first_rank=suspect.rank,
        outcome=_outcome_of(cause, action),
        cause=cause,
        mitigation=mitigation,
        notes=(*suspect.notes, *_note_attempts(action, job)),
    )


def _with_end(verdict: Verdict, hits: list[Hit], exit_code: int | None) -> Verdict:
    """What an exit code or a launcher's last word adds where no line gives a cause."""
    if verdict.cause.kind != "unknown":
        return verdict
    if exit_code is not None and exit_code != 0:
        cause = cause_of_code(exit_code)
        return replace(verdict, outcome=cause.outcome, cause=cause)
    return replace(verdict, outcome="failed") if any(hit.reason == UNKNOWN for hit in hits) else verdict


def _outcome_of(cause: Cause, action: Action) -> str:
    """What became of the run; a node is lost only where it should be left out of the next attempt."""
    return "failed" if cause.outcome == "lost_node" and action != "isolate_and_restart" else cause.outcome


def _with_last_lines(kept: list[LogLine], job: JobLog) -> list[LogLine]:
    """The relevant lines and the job's last ones, which are often the most useful if no rule matches."""
    last = job.lines[-LAST_LINES:]
    known = {(line.file, line.line, line.text) for line in last}
    return [*(line for line in kept if (line.file, line.line, line.text) not in known), *last]


def _no_failure(job: JobLog, finish: Finish, book: RuleBook) -> Verdict:
    several = len(job.progress) > 1
    silent = finish.confidence == SILENT_CONFIDENCE
    return Verdict(
        log=job.name,
        reason=NO_FAILURE,
        category=CATEGORY_OF_REASON[NO_FAILURE],
        action="none",
        confidence=finish.confidence,
        evidence=tuple(as_evidence(line, with_file=several) for line in finish.lines),
        mitigation="" if silent else book.advice[NO_FAILURE].mitigation,
        notes=(_ENDS_SILENTLY,) if silent else (),
    )


def decide(action: Action, reason: str, job: JobLog) -> Action:
    """The action for this job: after an unknown failure it is restarted if training had begun."""
    return "restart" if reason == "Unknown" and job.saw_progress else action


def _note_attempts(action: Action, job: JobLog) -> tuple[str, ...]:
    """How often to restart: for a job that never trained, nothing suggests that a restart helps."""
    return (ONCE,) if action == "restart" and job.died_before_first_step else ()


def _advice_of(root: Hit, reason: str, book: RuleBook) -> tuple[Action, str]:
    default = book.advice[reason]
    if root.rule is None or root.reason != reason:
        return default.action, default.mitigation
    return root.rule.action or default.action, root.rule.mitigation or default.mitigation


def _is_excused(root: Hit, reason: str, book: RuleBook) -> bool:
    """Whether the rule says that no host is at fault although its reason usually blames one, as after a preemption."""
    given = root.rule.action if root.rule is not None and root.reason == reason else None
    return given is not None and given != "isolate_and_restart" == book.advice[reason].action


def _hosts(suspect: Suspect, root: Hit, cause: Cause, action: Action) -> tuple[str, ...]:
    told_by_kernel = root.line.trusted and root.line.writer == "kernel"
    where_to_look = cause.category == "infrastructure" or cause.kind == "signal"
    blames_host = where_to_look or action == "isolate_and_restart" or told_by_kernel
    return (suspect.host,) if suspect.host is not None and blames_host else ()


def _confidence(hits: list[Hit], root: Hit) -> float:
    rivals = {h.reason for h in hits if h.depth == root.depth} - {root.reason}
    layer = LAYERS[min(root.depth, len(LAYERS) - 1)]
    return round(CONFIDENCE[layer] - (RIVAL_PENALTY if rivals else 0.0), 2)


def _evidence(job: JobLog, hits: list[Hit], root: Hit) -> tuple[EvidenceLine, ...]:
    """The line of the root cause, the frame above it, then the first line of every other kind of evidence."""
    chosen = [root.line]
    before = [
        line
        for line in job.lines[max(0, root.order - 12) : root.order]
        if (line.file, line.rank) == (root.line.file, root.line.rank) and line.text.lstrip().startswith("File ")
    ]
    chosen += before[-1:]
    said = {(root.reason, root.line.rank)}
    for hit in sorted(hits, key=lambda h: (-h.depth, h.order)):
        if (hit.reason, hit.line.rank) not in said:
            said.add((hit.reason, hit.line.rank))
            chosen.append(hit.line)
    several = len(job.progress) > 1
    return tuple(as_evidence(line, with_file=several) for line in chosen[:MAX_EVIDENCE])


def as_evidence(line: LogLine, *, with_file: bool) -> EvidenceLine:
    """A line for display: masked and of bounded length."""
    text = mask(line.text)
    text = text if len(text) <= MAX_EVIDENCE_CHARS else text[:MAX_EVIDENCE_CHARS] + " ..."
    return EvidenceLine(line=line.line, text=text, file=line.file if with_file else None, origin=_origin_of(line))


def _origin_of(line: LogLine) -> str:
    """Who wrote a line, as far as that is proven; a job's own output may pretend to be the kernel's."""
    claimed = line.writer in ("kernel", "scheduler") and not line.trusted
    return "application" if claimed else line.writer


def _unknown(job: JobLog, kept: list[LogLine], neighbours: list[Neighbour], book: RuleBook) -> Verdict:
    """If no rule matched: the cause of the nearest resolved case if it is similar enough, otherwise unknown."""
    best = neighbours[0] if neighbours and neighbours[0].is_close else None
    reason = best.case.reason if best is not None else "Unknown"
    advice = book.advice[reason]
    several = len(job.progress) > 1
    last = [ln for ln in kept if ln.hit][-3:] or list(job.lines[-3:])
    return Verdict(
        log=job.name,
        reason=reason,
        category=CATEGORY_OF_REASON[reason],
        action=decide(advice.action, reason, job),
        confidence=round(RETRIEVAL_CONFIDENCE * best.similarity, 2) if best is not None else 0.0,
        evidence=tuple(as_evidence(ln, with_file=several) for ln in last),
        mitigation=advice.mitigation if last else "The log is empty: look for what the job printed elsewhere.",
    )
