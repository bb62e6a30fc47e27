"""`investigate`: a folder in, one verdict out. The only file that chains the readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from prism.errors import BadFileError
from prism.evidence.fusion.clues import Clue, Suspect, host_of
from prism.evidence.fusion.evidence import Evidence, gather, take_counters
from prism.evidence.fusion.fusion import Fused, fuse
from prism.evidence.traces.counters import PrometheusSilentError, read_prometheus
from prism.evidence.traces.files import LOG_ENDINGS
from prism.evidence.traces.profiled_ranks import ProfiledJob

_MINUTE_NS = 60 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Sources in addition to the folder, and the time from which they count."""

    prometheus: str | None = None
    since_ns: int | None = None
    deadline_s: float = 20.0  # for all answers of Prometheus together


@dataclass(frozen=True, slots=True, kw_only=True)
class Investigation:
    """One verdict, its clues, and the sources that were missing."""

    fused: Fused
    clues: tuple[Clue, ...]
    notes: tuple[str, ...]
    profiles: ProfiledJob | None = None

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism investigate --json` prints."""
        verdict = self.fused
        document: dict[str, Any] = {
            "schema": "prism.investigation/1",
            "verdict": {
                "what": verdict.what,
                "culprits": [_name(s) for s in verdict.culprits],
                "since_ns": verdict.since_ns,
                "confidence": round(verdict.confidence, 3),
                "alternatives": [_name(s) for s in verdict.alternatives],
                "against": list(verdict.against),
                "next": verdict.advice,
            },
            "evidence": [
                {"source": c.source, "text": c.text, "confidence": round(c.confidence, 3)} for c in self.clues
            ],
            "notes": list(self.notes),
        }
        if self.profiles is not None:
            document["profile"] = _tell_profiles(self.profiles)
        return document


def investigate(
    folder: Path,
    extra: Sequence[Clue] = (),
    *,
    request: Request | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Investigation:
    """Read everything in a folder; `extra` holds clues from other sources, such as flow records."""
    request = request or Request()
    evidence = gather(folder, since_ns=request.since_ns, say=say)
    evidence.clues = [*extra, *evidence.clues]
    if request.prometheus is not None:
        _ask_prometheus(request, evidence)
    if not evidence.clues and evidence.profiles is None and not any(evidence.kinds.values()):
        raise BadFileError(
            f"{folder}: holds nothing that can be read; Flight Recorder dumps end in the rank's number (dump_17), "
            f"logs in {', '.join(LOG_ENDINGS[:4])}" + (f"; {evidence.notes[0]}" if evidence.notes else "")
        )
    return conclude(evidence)


def conclude(evidence: Evidence) -> Investigation:
    """One verdict from all clues, and what to collect the next time."""
    notes = [*evidence.notes]
    if not any(c.source == "flight_recorder" for c in evidence.clues):
        notes.append(
            "no Flight Recorder dumps: set TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
            "TORCH_FR_DUMP_TEMP_FILE next time, and a hang names its rank"
        )
    if not evidence.hosts and any(s.type == "rank" for c in evidence.clues for s in c.suspects):
        notes.append("which host a rank ran on is unknown: keep NCCL_DEBUG=INFO logs, and the host is named too")
    # If logs give the host of some ranks only, a host without ranks may be that of the others; the odds account for it.
    partly = 0 < len(evidence.hosts) < evidence.num_ranks
    clues = evidence.clues if partly else _weigh_unplaced(evidence.clues, evidence.hosts)
    return Investigation(
        fused=fuse(clues, evidence.hosts, cleared=evidence.cleared, num_ranks=evidence.num_ranks),
        clues=tuple(clues),
        notes=tuple(dict.fromkeys(notes)),
        profiles=evidence.profiles,
    )


def _weigh_unplaced(clues: Sequence[Clue], hosts: Mapping[str, str]) -> list[Clue]:
    """Errors of a host with unknown ranks may be another job's, so they do not outrank a rank that was seen to fail.

    Machines of a large cluster log hardware errors all the time, while dumps and stacks belong to this job only.
    """
    seen = [c.confidence for c in clues if c.source in ("flight_recorder", "stacks", "ras") and _names_a_rank(c)]
    if not seen:
        return list(clues)
    weighed = []
    for clue in clues:
        places = {h for s in clue.suspects if (h := host_of(s, hosts))}
        if (
            clue.source in ("log", "counters")
            and places
            and not _names_a_rank(clue)
            and not places & set(hosts.values())
        ):
            text = f"{clue.text} (which ranks {', '.join(sorted(places)[:4])} runs is unknown)"
            clue = replace(clue, text=text, confidence=min(clue.confidence, 0.5 * max(seen)))
        weighed.append(clue)
    return weighed


def _names_a_rank(clue: Clue) -> bool:
    return any(s.type == "rank" for s in clue.suspects)


def _ask_prometheus(request: Request, evidence: Evidence) -> None:
    """Counters around the time that other sources give, or else of the last hour."""
    assert request.prometheus is not None
    told = [c.since_ns for c in evidence.clues if c.since_ns]
    end_ns = min(told) + 10 * _MINUTE_NS if told else time.time_ns()
    start_ns = request.since_ns or (min(told) - 20 * _MINUTE_NS if told else end_ns - 60 * _MINUTE_NS)
    seconds = (end_ns - start_ns) / 1e9
    try:
        counters = read_prometheus(
            request.prometheus,
            start_s=start_ns / 1e9,
            end_s=end_ns / 1e9,
            step_s=max(15.0, seconds / 200),
            deadline_s=request.deadline_s,
        )
    except PrometheusSilentError as error:
        evidence.notes.append(str(error))
        return
    if counters.is_empty():
        evidence.notes.append(f"{request.prometheus}: has no counters of DCGM or node exporter for that time")
    take_counters(evidence, counters)


def _tell_profiles(job: ProfiledJob) -> dict[str, Any]:
    """Profiles in milliseconds, for documents and pages."""
    whole = job.breakdown.with_columns((pl.col(c) / 1e6).round(3) for c in job.breakdown.columns if c.endswith("_ns"))
    renamed = whole.rename({c: c.removesuffix("_ns") + "_ms" for c in whole.columns if c.endswith("_ns")})
    lateness = job.lateness.with_columns(held_ms=(pl.col("held_ns") / 1e6).round(3)).drop("held_ns")
    bubbles = job.bubbles.with_columns(ms=((pl.col("end_ns") - pl.col("start_ns")) / 1e6).round(3))
    return {
        "ranks": list(job.ranks),
        "breakdown": renamed.to_dicts(),
        "lateness": lateness.to_dicts(),
        "bandwidth": job.bandwidth.to_dicts(),
        "slow_kernels": job.slow_kernels.head(20).to_dicts(),
        "bubbles": bubbles.sort("ms", descending=True).head(20).to_dicts(),
        "clock_offset_ms": {str(rank): round(ns / 1e6, 3) for rank, ns in job.clock_offset_ns.items()},
    }


def _name(suspect: Suspect) -> dict[str, str]:
    return {"type": suspect.type, "id": suspect.id}
