"""From flows to findings: the one place that chains the stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from prism.observe.findings.case import Case
from prism.observe.findings.ranking import find_all
from prism.observe.jobs import ObservedJob, recognise_jobs
from prism.observe.layout import StageMap, find_stages, infer_layout, orient_chains, relabel_ties
from prism.observe.pairs import choose_kind, label_pairs
from prism.observe.steps import STEPS, find_steps
from prism.observe.traffic import Traffic, prepare_traffic
from prism.observe.voices import find_voices
from prism.observe.work import measure_work
from prism.records.findings import Finding
from prism.records.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiagnosis:
    """What was learned of one job."""

    id: str
    endpoints: tuple[str, ...]
    hosts: tuple[str, ...]
    layout: Layout
    pairs: pl.DataFrame  # pair src dst kind confidence; src and dst are addresses
    steps: pl.DataFrame
    voices: pl.DataFrame
    stages: StageMap
    observed: ObservedJob

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        document = self.layout.to_json()
        return {
            "id": self.id,
            "endpoints": list(self.endpoints),
            "hosts": list(self.hosts),
            "layout": {k: document[k] for k in ("dp", "pp", "tp", "cp", "ep", "confidence", "confidences", "sharding")},
            "pairs": self.pairs.select("src", "dst", "kind", "confidence").to_dicts(),
            "groups": document["groups"],
            "stages": document["stages"],
            "steps": self.steps.to_dicts(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was learned of a cluster."""

    jobs: tuple[JobDiagnosis, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    traffic: Traffic

    def to_json(self) -> dict[str, Any]:
        """The document form that `prism diagnose --json` prints."""
        return {
            "schema": "prism.diagnosis/1",
            "jobs": [job.to_json() for job in self.jobs],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }


def diagnose(flows: pl.DataFrame, topology: pl.DataFrame | None = None) -> Diagnosis:
    """Diagnose every job in FLOWS."""
    traffic = prepare_traffic(flows, topology)
    jobs = tuple(study_job(traffic, job) for job in recognise_jobs(traffic))
    until = int(traffic.messages["end_ns"].max() or 0)  # type: ignore[arg-type]
    cases = [open_case(traffic, job, until) for job in jobs]
    return Diagnosis(jobs=jobs, findings=find_all(cases), notes=traffic.notes, traffic=traffic)


def open_case(traffic: Traffic, job: JobDiagnosis, until_ns: int) -> Case:
    """All that findings are drawn from."""
    own = traffic.messages.filter(pl.col("pair").is_in(job.observed.pairs))
    known = own.join(
        job.voices.select("pair", "size_class", "src", "dst", "kind", "role", "per_step"), on=["pair", "size_class"]
    )
    return Case(
        job=job.observed,
        layout=job.layout,
        stages=job.stages,
        steps=job.steps,
        messages=known,
        work=measure_work(own, job.voices, job.stages, job.steps),
        endpoints=traffic.endpoints,
        observed_until_ns=until_ns,
    )


def study_job(traffic: Traffic, job: ObservedJob) -> JobDiagnosis:
    """Label the pairs of one job, find its steps and its layout."""
    messages = traffic.messages.filter(pl.col("pair").is_in(job.pairs))
    voices = label_pairs(find_voices(traffic, job))
    stages = find_stages(voices, messages)
    steps = pl.DataFrame(schema=STEPS)
    if job.period_ns is not None:
        steps = find_steps(messages, voices, job.marks, job.period_ns)
    if stages.chains and stages.confidence < 1 and steps.height:
        stages = orient_chains(stages, _first_offsets(messages, voices, steps))
    voices = relabel_ties(voices, stages)
    layout = infer_layout(voices, stages, traffic.endpoints, job.endpoints, messages)
    kinds = choose_kind(voices)
    storage = pl.DataFrame({"pair": job.storage_pairs.astype(np.uint32)}).with_columns(
        kind=pl.lit("storage"), confidence=pl.lit(0.9)
    )
    address = traffic.endpoints.select("endpoint", "address")
    pairs = (
        pl.concat([kinds, storage.select(kinds.columns)])
        .join(traffic.pairs.select("pair", "src", "dst"), on="pair")
        .join(address.rename({"endpoint": "src", "address": "src_address"}), on="src")
        .join(address.rename({"endpoint": "dst", "address": "dst_address"}), on="dst")
        .select("pair", pl.col("src_address").alias("src"), pl.col("dst_address").alias("dst"), "kind", "confidence")
        .sort("pair")
    )
    own = traffic.endpoints[job.endpoints]
    return JobDiagnosis(
        id=job.id,
        endpoints=tuple(own["address"]),
        hosts=tuple(own["host"].unique(maintain_order=True)),
        layout=layout,
        pairs=pairs,
        steps=steps,
        voices=voices,
        stages=stages,
        observed=job,
    )


def _first_offsets(messages: pl.DataFrame, voices: pl.DataFrame, steps: pl.DataFrame) -> dict[tuple[int, int], float]:
    """For each pipeline pair, how long after the start of a step its first message usually leaves."""
    pipe = voices.filter(pl.col("kind") == "pp").select("pair", "size_class", "src", "dst")
    sent = messages.join(pipe, on=["pair", "size_class"], how="inner").sort("start_ns")
    cut = steps.select(pl.col("start_ns").alias("step_start"), "index").sort("step_start")
    sent = sent.join_asof(cut, left_on="start_ns", right_on="step_start").drop_nulls("step_start")
    first = sent.group_by("src", "dst", "index").agg((pl.col("start_ns") - pl.col("step_start")).min().alias("offset"))
    return {(s, d): float(o) for s, d, o in first.group_by("src", "dst").agg(pl.col("offset").median()).iter_rows()}
