"""CALLS of a diagnosis: which message every member of every collective sent, and when."""

from __future__ import annotations

import polars as pl

from prism.observe.diagnose import open_case
from prism.observe.diagnosis import Diagnosis, JobDiagnosis
from prism.observe.traffic.threads import do_each
from prism.records.calls import CALLS


def list_calls(diagnosis: Diagnosis) -> pl.DataFrame:
    """CALLS of every job that was analysed; torn records are joined and merged ones split before."""
    parts = do_each(lambda job: _calls_of(diagnosis, job), [job for job in diagnosis.jobs if job.studied])
    return pl.concat(parts) if parts else CALLS.empty()


def _calls_of(diagnosis: Diagnosis, job: JobDiagnosis) -> pl.DataFrame:
    """One row for each message of a job: its sender is the member, the members of the group are those connected."""
    case = open_case(diagnosis.traffic, job, 0)
    groups = pl.DataFrame(
        [(g.kind, member, ",".join(g.members)) for g in job.layout.groups for member in g.members],
        schema={"kind": pl.String, "member": pl.String, "group": pl.String},
        orient="row",
    ).unique(["kind", "member"], keep="first")
    sent = case.messages.select(
        pl.col("step").replace(-1, None).cast(pl.Int32),
        pl.col("kind").cast(pl.String),  # categories join with nothing else
        diagnosis.traffic.endpoints["address"].gather(case.messages["src"]).alias("member"),
        "start_ns",
        "end_ns",
        "bytes",
    )
    # A transfer that both ends are ready for begins at once, so its start bounds when its sender was ready.
    rows = sent.join(groups, on=["kind", "member"], how="left", maintain_order="left").with_columns(
        job=pl.lit(job.id), ready_ns=pl.when(job.visible.inside).then("start_ns")
    )
    return CALLS.conform(rows, job.id).sort("start_ns", "member")
