"""Switch port counters as evidence in findings: what the switches that carry a culprit's flows report themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from prism.observe.diagnosis import Diagnosis
from prism.records.findings import Finding
from prism.records.ports import PortLoad

_MOST_NAMED = 3  # ports in the evidence of one finding


def add_ports(diagnosis: Diagnosis, flows: pl.DataFrame, ports: Sequence[PortLoad]) -> Diagnosis:
    """The diagnosis with its ports; findings say which ports lost packets or were full on the way of their flows.

    Counters do not say whose packets a port lost, so they add to the evidence of a finding and never make one.
    """
    if not ports:
        return diagnosis
    findings = tuple(_add_evidence(f, diagnosis, flows, ports) for f in diagnosis.findings)
    return replace(diagnosis, findings=findings, ports=tuple(ports))


def _add_evidence(finding: Finding, diagnosis: Diagnosis, flows: pl.DataFrame, ports: Sequence[PortLoad]) -> Finding:
    switches = _find_switches(finding, diagnosis, flows)
    near = [p for p in ports if p.exporter in switches and p.is_troubled and p.start_ns <= finding.end_ns]
    near = [p for p in near if p.end_ns >= finding.start_ns]
    near.sort(key=lambda p: (-(p.errors + p.discards), -(p.peak or 0.0)))
    said = "; ".join(p.describe() for p in near[:_MOST_NAMED])
    return replace(finding, evidence=f"{finding.evidence}; on its way: {said}") if said else finding


def _find_switches(finding: Finding, diagnosis: Diagnosis, flows: pl.DataFrame) -> set[str]:
    """Switches that the culprit's endpoints are cabled to or that exported its flows, or the switch that it is."""
    if finding.culprit.type == "switch":
        return {finding.culprit.id}
    named = set(finding.culprit.id.replace(">", ",").split(","))
    own = diagnosis.traffic.endpoints.filter(pl.col("address").is_in(list(named)) | pl.col("host").is_in(list(named)))
    addresses = own["address"].to_list()
    if finding.culprit.type in ("job", "stage", "group") or not addresses:
        addresses = [a for job in diagnosis.jobs if job.id == finding.job for a in job.endpoints]
    endpoints = diagnosis.traffic.endpoints
    cabled = set(endpoints.filter(pl.col("address").is_in(addresses))["switch"].drop_nulls().to_list())
    if "exporter" not in flows.columns:
        return cabled
    touching = pl.col("src").is_in(addresses) | pl.col("dst").is_in(addresses)
    return cabled | set(flows.filter(touching)["exporter"].drop_nulls().unique().to_list())
