"""What each source says happened, in one shape, so that sources can agree or disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prism.records.findings import Finding
from prism.records.verdict import Verdict
from prism.traces.hang import Hang

SuspectType = Literal["rank", "host", "gpu", "link", "program"]
Source = Literal["flight_recorder", "flows", "log", "kineto", "counters"]

# A collective that timed out says that someone did not come, not who or why.
_SYMPTOMS = frozenset({"NCCLTimeoutError", "NCCLRemoteError", "Unknown", "none"})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Suspect:
    """Someone who may be to blame."""

    type: SuspectType
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """What one source says: what happened, who did it, and how sure that source is alone."""

    source: Source
    what: str
    text: str
    suspects: tuple[Suspect, ...]  # together; empty where the source names nobody
    since_ns: int | None
    confidence: float
    alternatives: tuple[Suspect, ...] = ()
    advice: str = ""


_WORDS = {
    "absent": "hang: a rank did not come to a collective",
    "missing_dump": "hang: a rank was gone or held, and left no dump",
    "mismatch": "hang: ranks called different collectives",
    "deadlock": "hang: ranks wait for each other in different calls",
    "stuck": "hang inside a collective that all had entered",
    "none": "no hang",
}
_ADVICE = {
    "absent": "look at its stack (py-spy dump) and its host's kernel log; if it hangs again, restart without it",
    "missing_dump": "look at its log and its host's kernel log; let TORCH_FR_DUMP_TEMP_FILE name a shared folder",
    "mismatch": "fix the program where that rank takes another branch; a restart will hang again",
    "deadlock": "let all ranks call their groups in one order; a restart will hang again",
    "stuck": "collect NCCL RAS output, kernel logs and flow records of that minute",
    "none": "",
}


def read_hang(hang: Hang) -> Clue:
    """A hang as a clue; a deadlock is the program's fault, at the ranks that show it."""
    suspects = tuple(Suspect(type="rank", id=str(r)) for r in hang.ranks)
    if hang.line and hang.what in ("mismatch", "deadlock"):
        suspects += (Suspect(type="program", id=hang.line),)
    return Clue(
        source="flight_recorder",
        what=_WORDS[hang.what],
        text=hang.text + (f" ({hang.line})" if hang.line else ""),
        suspects=suspects if hang.what != "stuck" else (),
        since_ns=hang.since_ns or None,
        confidence=hang.confidence,
        alternatives=tuple(Suspect(type="rank", id=str(r)) for r in hang.alternatives),
        advice=_ADVICE[hang.what],
    )


def read_verdict(verdict: Verdict) -> Clue:
    """A log's verdict as a clue; a symptom names what happened to everybody, so it accuses nobody."""
    symptom = verdict.reason in _SYMPTOMS
    suspects: tuple[Suspect, ...] = ()
    if not symptom:
        suspects = tuple(Suspect(type="host", id=h) for h in verdict.hosts)
        if verdict.first_rank is not None:
            suspects = (Suspect(type="rank", id=str(verdict.first_rank)), *suspects)
    lines = "; ".join(e.text for e in verdict.evidence[:2])
    return Clue(
        source="log",
        what=verdict.reason,
        text=f"{Path(verdict.log).name}: {verdict.reason} ({verdict.category}): {lines}"[:600],
        suspects=suspects,
        since_ns=None,
        confidence=verdict.confidence * (0.3 if symptom else 1.0),
        advice=verdict.mitigation,
    )


def read_findings(findings: Sequence[Finding]) -> list[Clue]:
    """What flows show: each finding is a clue about hosts and links."""
    clues = []
    for finding in findings[:5]:
        kind: SuspectType = "link" if finding.culprit.type in ("link", "switch") else "host"
        named = finding.culprit.type in ("host", "endpoint", "link", "switch")
        clues.append(
            Clue(
                source="flows",
                what=finding.kind,
                text=f"{finding.kind}: {finding.culprit.type} {finding.culprit.id}: {finding.evidence}",
                suspects=(Suspect(type=kind, id=finding.culprit.id),) if named else (),
                since_ns=finding.start_ns,
                confidence=finding.score,
            )
        )
    return clues
