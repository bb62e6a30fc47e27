"""FINDINGS: what an operator can act on, and the table that holds many of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import polars as pl

from prism.records.shape import Shape, columns

FindingKind = Literal[
    "slow_compute", "slow_link", "slow_switch", "stage_imbalance", "load_imbalance", "slow_step", "hang",
    "contention", "slow_group", "drift", "restart", "stall",
]  # fmt: skip
CulpritType = Literal["endpoint", "host", "link", "switch", "stage", "group", "job"]

FINDINGS = Shape(
    name="findings",
    required=columns(
        {
            "kind": pl.Enum(get_args(FindingKind)),
            "job": pl.String,
            "culprit_type": pl.Enum(get_args(CulpritType)),
            "culprit": pl.String,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "lost_gpu_seconds": pl.Float64,
            "score": pl.Float64,  # how sure, 0 to 1
            "evidence": pl.String,
        }
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What caused a finding: a link is named "src>dst", a worker of several endpoints by its host."""

    type: CulpritType
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another explanation of a finding that is nearly as likely."""

    kind: FindingKind
    culprit: Culprit
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One diagnosis an operator can act on."""

    kind: FindingKind
    job: str
    culprit: Culprit
    start_ns: int
    end_ns: int
    lost_gpu_seconds: float
    score: float
    evidence: str  # what was measured, with units
    alternatives: tuple[Alternative, ...] = ()  # the likeliest first

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        document: dict[str, Any] = {
            "kind": self.kind,
            "job": self.job,
            "culprit": {"type": self.culprit.type, "id": self.culprit.id},
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "lost_gpu_seconds": self.lost_gpu_seconds,
            "score": self.score,
            "evidence": self.evidence,
        }
        if self.alternatives:
            document["alternatives"] = [
                {"kind": a.kind, "culprit": {"type": a.culprit.type, "id": a.culprit.id}, "score": a.score}
                for a in self.alternatives
            ]
        return document


def findings_to_frame(findings: Iterable[Finding]) -> pl.DataFrame:
    """Findings as a FINDINGS table, in the order given."""
    rows = [
        {
            "kind": f.kind,
            "job": f.job,
            "culprit_type": f.culprit.type,
            "culprit": f.culprit.id,
            "start_ns": f.start_ns,
            "end_ns": f.end_ns,
            "lost_gpu_seconds": f.lost_gpu_seconds,
            "score": f.score,
            "evidence": f.evidence,
        }
        for f in findings
    ]
    return pl.DataFrame(rows, schema=FINDINGS.required)


def findings_from_frame(frame: pl.DataFrame) -> list[Finding]:
    """The inverse of `findings_to_frame`."""
    return [
        Finding(
            kind=row["kind"],
            job=row["job"],
            culprit=Culprit(type=cast(CulpritType, row["culprit_type"]), id=row["culprit"]),
            start_ns=row["start_ns"],
            end_ns=row["end_ns"],
            lost_gpu_seconds=row["lost_gpu_seconds"],
            score=row["score"],
            evidence=row["evidence"],
        )
        for row in FINDINGS.conform(frame, "findings").iter_rows(named=True)
    ]


def label_alert(kind: str, job: str, culprit_type: str, culprit: str) -> dict[str, str]:
    """The labels of a finding's alert, whoever sends it, so that one fault is one alert.

    The job is not called `job`, a label that Prometheus gives to every target; a group's id is cut.
    """
    names = {"kind": kind, "prism_job": job, "culprit_type": culprit_type, "culprit": culprit[:200]}
    return {"alertname": "PrismFinding", **names}
