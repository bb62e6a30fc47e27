"""What was planted in the observed cluster, beside what the diagnosis found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prism.lab.scenarios import ScenarioRun
from prism.observe import Diagnosis
from prism.records import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedFault:
    """One fault of the scenario, the diagnosis's name of its job, and the finding that names kind and culprit."""

    fault: dict[str, Any]
    found_job: str  # empty: no recognised job has these endpoints
    finding: Finding | None

    def cells(self) -> tuple[str, ...]:
        """What, job, culprit and cost, as planted."""
        culprit = self.fault["culprit"]
        jobs = ", ".join(self.fault["jobs"])
        return self.fault["kind"], jobs, f"{culprit['type']} {culprit['id']}", f"{self.fault['lost_gpu_seconds']:,.0f}"

    def judge(self) -> str:
        """One line: right or wrong, under which name, and how the cost compares."""
        kind, job, culprit, lost = self.cells()
        if self.finding is None:
            return f"WRONG: {kind} of {job} ({culprit}) was not found"
        share = self.finding.lost_gpu_seconds / max(self.fault["lost_gpu_seconds"], 1e-9)
        name = "" if self.found_job == job else f" as {self.found_job}"
        return f"right: {kind} of {job}{name}; its cost is {100 * share:.0f} % of the {lost} GPU-seconds planted"


def match_faults(made: ScenarioRun, diagnosis: Diagnosis) -> list[PlantedFault]:
    """Every planted fault with the finding of the same kind and culprit in the job of the same endpoints."""
    endpoints = {job["id"]: set(job["endpoints"]) for job in made.truth["jobs"]}
    names = {
        name: next((job.id for job in diagnosis.jobs if own & set(job.endpoints)), "")
        for name, own in endpoints.items()
    }
    return [_match(fault, names, diagnosis.findings) for fault in made.truth["faults"]]


def _match(fault: dict[str, Any], names: dict[str, str], findings: tuple[Finding, ...]) -> PlantedFault:
    culprit = fault["culprit"]
    jobs = {names.get(job, ""): job for job in fault["jobs"]}
    told = [
        finding
        for finding in findings
        if finding.job in jobs
        and finding.kind == fault["kind"]
        and finding.culprit.type == culprit["type"]
        and (culprit["type"] == "job" or finding.culprit.id == culprit["id"])
    ]
    found_job = told[0].job if told else next(iter(jobs), "")
    return PlantedFault(fault=fault, found_job=found_job, finding=told[0] if told else None)
