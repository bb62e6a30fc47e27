"""How right the findings and the timeline of a diagnosis are, against the truth of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

COMMUNICATION = ("dp", "pp", "tp", "cp", "ep", "embedding")


@dataclass
class FindingScore:
    """Counts of one scenario; scores of many are added up."""

    faults: int = 0  # planted, and felt
    culprit_first: int = 0
    one_of_two: int = 0  # of the others: those of which the first finding names both ends of a hop
    kind_right: int = 0  # of those named first
    healthy_steps: int = 0
    false_findings: int = 0
    cost_ratios: list[float] = field(default_factory=list)  # GPU-seconds found over those of the truth
    wrong: list[str] = field(default_factory=list)
    claims: list[tuple[str, float, bool]] = field(default_factory=list)  # "finding", how surely said, whether right

    def add(self, other: FindingScore) -> None:
        """Add another scenario's counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def score_findings(diagnosis: dict[str, Any], truth: dict[str, Any]) -> FindingScore:
    """Compare the findings of `prism diagnose --json` with the planted faults of a truth file.

    A fault is named first where no finding of the jobs that it touches stands before it, but for those that name
    another planted fault. A false finding is one of a job that no fault touches.
    """
    total = FindingScore()
    job_of = _match_jobs(diagnosis, truth)
    findings = diagnosis["findings"]
    felt = [f for f in truth["faults"] if f["fired"]]
    names = [_names_of(fault, job_of) for fault in felt]
    for fault, right in zip(felt, names, strict=True):
        others = [n for n in names if n is not right]
        touched = {job_of.get(j) for j in _jobs_of(fault)}
        told = [f for f in findings if f["job"] in touched and not any(_is_named(f, n, job_of) for n in others)]
        first = told[0] if told else None
        total.faults += 1
        hit = first is not None and _is_named(first, right, job_of)
        total.culprit_first += hit
        total.one_of_two += first is not None and _is_one_of_two(first, right, truth)
        if hit and first is not None:
            total.kind_right += first["kind"] == fault["kind"]
            if fault["lost_gpu_seconds"] > 0:
                total.cost_ratios.append(first["lost_gpu_seconds"] / fault["lost_gpu_seconds"])
        if not hit or (first is not None and first["kind"] != fault["kind"]):
            said = f"{first['kind']} {first['culprit']['id']}" if first else "nothing"
            total.wrong.append(f"{fault['cause']} {fault['culprit']['id']} of {_jobs_of(fault)}: {said}")
    # A slow step names the job: it is right where any planted fault made the steps of the job slow.
    hurt = {j for right in names for j in right["jobs"]}
    total.claims = [
        (
            "finding",
            float(f["score"]),
            any(_is_named(f, right, job_of) or _is_one_of_two(f, right, truth) for right in names)
            or (f["culprit"]["type"] == "job" and f["job"] in hurt),
        )
        for f in findings
        if f["kind"] != "restart"
    ]
    _count_false(total, findings, truth, job_of)
    return total


def _count_false(
    total: FindingScore, findings: list[dict[str, Any]], truth: dict[str, Any], job_of: dict[str, str]
) -> None:
    touched = {j for f in truth["faults"] for j in _jobs_of(f)}
    for job in truth["jobs"]:
        if job["id"] in touched:
            continue
        total.healthy_steps += len(job["steps"])
        # A restart or a pause that the scenario schedules is told, and true.
        told = [f for f in findings if f["job"] == job_of.get(job["id"]) and f["kind"] != "restart"]
        total.false_findings += len(told)
        total.wrong += [f"{job['id']}: false {f['kind']} {f['culprit']['id']}: {f['evidence']}" for f in told]


def _jobs_of(fault: dict[str, Any]) -> list[str]:
    return [e["job"] for e in fault["effects"]] or list(fault["jobs"])


def _match_jobs(diagnosis: dict[str, Any], truth: dict[str, Any]) -> dict[str, str]:
    """For each true job the found one that shares most endpoints."""
    found = {}
    for job in truth["jobs"]:
        wanted = set(job["endpoints"])
        best = max(diagnosis["jobs"], key=lambda j: len(wanted & set(j["endpoints"])), default=None)
        if best is not None and wanted & set(best["endpoints"]):
            found[job["id"]] = best["id"]
    return found


def _names_of(fault: dict[str, Any], job_of: dict[str, str]) -> dict[str, Any]:
    culprits = [fault["culprit"], *fault["accepted"]]
    return {
        "jobs": {job_of.get(j) for j in _jobs_of(fault)},
        "culprits": {(c["type"], job_of.get(c["id"], c["id"]) if c["type"] == "job" else c["id"]) for c in culprits},
    }


def _is_named(finding: dict[str, Any], right: dict[str, Any], job_of: dict[str, str]) -> bool:
    """Whether a finding blames one of the right culprits; a worker may be named by its endpoints, with commas."""
    kind, name = finding["culprit"]["type"], finding["culprit"]["id"]
    if finding["job"] not in right["jobs"]:
        return False
    parts = name.split(",") if kind == "endpoint" else [name]
    if any((kind, part) in right["culprits"] for part in parts):
        return True
    # A link's two directions are one cable.
    turned = ">".join(reversed(name.split(">")))
    return kind == "link" and (kind, turned) in right["culprits"]


def _is_one_of_two(finding: dict[str, Any], right: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether a finding says that one of two ends is late or stopped, and one of them is the culprit."""
    if finding["culprit"]["type"] != "group" or finding["job"] not in right["jobs"]:
        return False
    names = {name for _, name in right["culprits"]}
    own = {r["endpoint"] for j in truth["jobs"] for r in j["ranks"] if names & {r["endpoint"], r["host"]}}
    named = set(str(finding["culprit"]["id"]).split(","))
    return bool(named & own) and len(named) <= 2 * len(own)


@dataclass
class SpanScore:
    """Errors of spans as shares of the step."""

    start_errors: list[float] = field(default_factory=list)
    end_errors: list[float] = field(default_factory=list)
    missed: int = 0

    @property
    def mean_error(self) -> float:
        """Mean over starts and ends."""
        both = self.start_errors + self.end_errors
        return float(np.mean(both)) if both else float("nan")

    def add(self, other: SpanScore) -> None:
        """Add another job's errors."""
        self.start_errors += other.start_errors
        self.end_errors += other.end_errors
        self.missed += other.missed


def score_spans(spans: pl.DataFrame, truth_spans: pl.DataFrame, job: dict[str, Any], endpoints: list[str]) -> SpanScore:
    """Every true communication span that crossed hosts against the found one of its rank and kind that fits best.

    `job` is the truth's; `endpoints` are those of the found job, whose positions are the ranks of `spans`. Spans that
    touch are joined first on both sides: a transfer in several pieces is one span. `spans` are the found job's alone.
    """
    score = SpanScore()
    step_ns = float(np.median([s["end_ns"] - s["start_ns"] for s in job["steps"]]))
    position = {e: i for i, e in enumerate(endpoints)}
    owner = {r["rank"]: position.get(r["endpoint"], -1) for r in job["ranks"]}
    crossing = {(p["src"], k) for p in job["pairs"] for k in p["kinds"]} | {
        (p["dst"], k) for p in job["pairs"] for k in p["kinds"]
    }
    first, last = job["steps"][0]["start_ns"], job["steps"][-1]["end_ns"]
    true = truth_spans.filter(
        (pl.col("job") == job["id"])
        & pl.col("kind").cast(pl.String).is_in(COMMUNICATION)
        & (pl.col("start_ns") >= first)
        & (pl.col("end_ns") <= last)
        & pl.col("group").is_in(job["crossing"])
    ).with_columns(pl.col("kind").cast(pl.String), rank=pl.col("rank").replace_strict(owner, default=-1))
    for kind in COMMUNICATION:
        for place in range(len(endpoints)):
            if (endpoints[place], kind) not in crossing:
                continue
            wanted = _joined(true.filter((pl.col("kind") == kind) & (pl.col("rank") == place)))
            got = _joined(
                spans.filter((pl.col("kind").cast(pl.String) == kind) & (pl.col("rank") == place)), gap_ns=1000
            )
            _compare(score, wanted, got, step_ns)
    return score


def _joined(spans: pl.DataFrame, gap_ns: int = 1000) -> np.ndarray:
    """Start and end of spans, those that touch or overlap joined."""
    pairs = spans.select("start_ns", "end_ns").sort("start_ns").to_numpy().astype(np.int64)
    if not len(pairs):
        return pairs.reshape(0, 2)
    reach = np.maximum.accumulate(pairs[:, 1])
    fresh = np.r_[True, pairs[1:, 0] > reach[:-1] + gap_ns]
    begins = np.flatnonzero(fresh)
    ends = np.r_[begins[1:] - 1, len(pairs) - 1]
    return np.stack([pairs[begins, 0], reach[ends]], axis=1)


def _compare(score: SpanScore, wanted: np.ndarray, got: np.ndarray, step_ns: float) -> None:
    if not len(wanted):
        return
    if not len(got):
        score.missed += len(wanted)
        return
    for column, errors in ((0, score.start_errors), (1, score.end_errors)):
        edges = np.sort(got[:, column])
        at = np.clip(np.searchsorted(edges, wanted[:, column]), 1, max(len(edges) - 1, 1))
        near = np.minimum(
            np.abs(edges[np.minimum(at, len(edges) - 1)] - wanted[:, column]), np.abs(edges[at - 1] - wanted[:, column])
        )
        errors += (near / step_ns).tolist()
