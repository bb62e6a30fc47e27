"""The four phases in order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl

from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.jobs.grouping import ObservedJob, connect, list_parts
from prism.observe.llmprism.alarms import raise_alarms
from prism.observe.llmprism.parallelism import label_kinds, split_steps
from prism.observe.llmprism.recognition import Ints, recognise_clusters
from prism.observe.llmprism.timeline import draw_timeline, find_step_ends
from prism.observe.parallelism.stages import StageMap
from prism.observe.traffic.preparation import prepare_traffic
from prism.observe.traffic.table import Traffic
from prism.records.findings import Finding
from prism.records.layout import Degree, Group, Layout
from prism.records.spans import SPANS


def diagnose_as_published(flows: pl.DataFrame, topology: pl.DataFrame | None = None) -> Diagnosis:
    """Diagnose every job in FLOWS by LLMPrism's four phases; same result type as `diagnose`."""
    traffic = prepare_traffic(flows, topology)
    messages = split_steps(traffic)
    kinds = label_kinds(messages, traffic)
    known = messages.join(kinds, on="pair")
    jobs: list[JobDiagnosis] = []
    findings: list[Finding] = []
    for i, members in enumerate(recognise_clusters(traffic)):
        job, alarms = _study(f"job-{i + 1}", members, known, kinds, traffic)
        jobs.append(job)
        findings += alarms
    findings.sort(key=lambda f: -f.score)
    return Diagnosis(jobs=tuple(jobs), findings=tuple(findings), notes=traffic.notes, traffic=traffic)


def draw_published_timeline(diagnosis: Diagnosis) -> pl.DataFrame:
    """SPANS of every job of `diagnose_as_published`; a rank is the position of its endpoint in the job's list."""
    ends = diagnosis.traffic.pairs.select("pair", "src", "dst")
    parts = [
        draw_timeline(
            job.id,
            diagnosis.traffic.messages.join(job.pairs.select("pair", "kind"), on="pair").join(ends, on="pair"),
            job.observed.endpoints.tolist(),
            job.steps,
        )
        for job in diagnosis.jobs
    ]
    return pl.concat(parts) if parts else SPANS.empty()


def _study(
    name: str, members: Ints, messages: pl.DataFrame, kinds: pl.DataFrame, traffic: Traffic
) -> tuple[JobDiagnosis, list[Finding]]:
    inside = pl.col("src").is_in(members) & pl.col("dst").is_in(members)
    own, pairs = messages.filter(inside), kinds.filter(inside)
    steps = find_step_ends(own)
    groups = _find_groups(pairs, traffic)
    layout, stages = _lay_out(own, pairs, groups, members, traffic)
    address = traffic.endpoints["address"]
    job = JobDiagnosis(
        id=name,
        endpoints=tuple(address[members]),
        hosts=tuple(traffic.endpoints["host"][members].unique(maintain_order=True)),
        layout=layout,
        pairs=pairs.with_columns(pl.Series(side, address[pairs[side]]) for side in ("src", "dst")),
        steps=steps,
        streams=pl.DataFrame(),  # an idea of Prism's own method
        stages=stages,
        observed=_describe(name, members, own, pairs),
    )
    named = groups.join(
        groups.group_by("root").agg(pl.col("address").str.join(",").alias("group")), on="root", how="left"
    )
    alarms = raise_alarms(name, own, steps, named.select("endpoint", "group"), traffic.endpoints, len(members))
    return job, alarms


def _find_groups(pairs: pl.DataFrame, traffic: Traffic) -> pl.DataFrame:
    """endpoint address root of every member of a data-parallel group."""
    dp = pairs.filter(pl.col("kind") == "dp")
    src, dst = (dp[side].to_numpy().astype(np.int64) for side in ("src", "dst"))
    members = np.unique(np.concatenate([src, dst]))
    return pl.DataFrame(
        {
            "endpoint": members.astype(np.uint32),
            "address": traffic.endpoints["address"][members],
            "root": connect(traffic.endpoints.height, src, dst)[members],
        },
        schema={"endpoint": pl.UInt32, "address": pl.String, "root": pl.Int64},
    )


def _lay_out(
    messages: pl.DataFrame, pairs: pl.DataFrame, groups: pl.DataFrame, members: Ints, traffic: Traffic
) -> tuple[Layout, StageMap]:
    """Degrees that follow from the groups: tensor parallel is what is left, the rest is not claimed and counts as 1."""
    address = traffic.endpoints["address"]
    chains = _find_chains(messages, pairs)
    sets = groups.group_by("root", maintain_order=True).agg("address")["address"].to_list()
    dp = _usual([len(s) for s in sets])
    pp = _usual([len(c) for c in chains])
    tp, rest = divmod(len(members), dp * pp)
    stage = {e: i for chain in chains for i, e in enumerate(chain)}
    layout = Layout(
        dp=Degree(dp),
        pp=Degree(pp),
        tp=Degree(tp) if tp and not rest else Degree(None, 0.0),
        cp=Degree(1),
        ep=Degree(1),
        groups=tuple(Group(kind="dp", members=tuple(s)) for s in sets),
        stages={address[e]: s for e, s in stage.items()},
    )
    return layout, StageMap(stage=stage, chains=tuple(map(tuple, chains)), confidence=1.0)


def _usual(sizes: list[int]) -> int:
    return Counter(sizes).most_common(1)[0][0] if sizes else 1


def _find_chains(messages: pl.DataFrame, pairs: pl.DataFrame) -> list[list[int]]:
    """Endpoints that pipeline pairs connect, in the order in which they first send."""
    pp = pairs.filter(pl.col("kind") == "pp")
    src, dst = (pp[side].to_numpy().astype(np.int64) for side in ("src", "dst"))
    first = messages.filter(pl.col("kind") == "pp").group_by("src").agg(pl.col("start_ns").min())
    sends = {int(e): t for e, t in first.iter_rows()}
    return [sorted(part.tolist(), key=lambda e: (sends.get(e, 2**62), e)) for part in list_parts(src, dst)]


def _describe(name: str, members: Ints, messages: pl.DataFrame, pairs: pl.DataFrame) -> ObservedJob:
    none = np.empty(0, np.int64)
    return ObservedJob(
        id=name,
        endpoints=members,
        pairs=pairs["pair"].to_numpy().astype(np.int64),
        storage_pairs=none,
        period_ns=None,
        first_ns=int(messages["start_ns"].min() or 0),  # type: ignore[arg-type]
        last_ns=int(messages["end_ns"].max() or 0),  # type: ignore[arg-type]
    )
