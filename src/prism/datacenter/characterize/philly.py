"""Microsoft's Philly trace as published: a JSON list of jobs, each with the attempts that ran it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl

from prism.errors import BadFileError

_COLUMNS = (
    "jobid",
    "user",
    "vc",
    "status",
    "submitted_time",
    "start_time",
    "end_time",
    "gpu_num",
    "node_num",
    "node_list",
    "gpu_time",
)


def flatten_philly(jobs: list[dict[str, Any]], where: str) -> pl.DataFrame:
    """One row per job: first attempt's start to last attempt's end, GPUs of the largest attempt; all text."""
    if not jobs:
        raise BadFileError(f"{where}: holds no jobs; export the job table again")
    try:
        rows = [_flatten(job) for job in jobs]
    except (TypeError, AttributeError, KeyError):
        raise BadFileError(
            f"{where}: an attempt without the fields of Philly's cluster_job_log; check the file"
        ) from None
    return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")


def _flatten(job: dict[str, Any]) -> tuple[str | None, ...]:
    attempts = [a for a in job["attempts"] if a.get("detail")]
    largest: dict[str, Any] = max(attempts, key=_count_gpus, default={"detail": []})
    starts = [a["start_time"] for a in job["attempts"] if _given(a.get("start_time"))]
    ends = [a["end_time"] for a in job["attempts"] if _given(a.get("end_time"))]
    values = (
        job.get("jobid"), job.get("user"), job.get("vc"), job.get("status"), job.get("submitted_time"),
        starts[0] if starts else None, ends[-1] if ends else None, _count_gpus(largest), len(largest["detail"]),
        ",".join(str(server["ip"]) for server in largest["detail"]), _sum_gpu_time(attempts),
    )  # fmt: skip
    return tuple(None if value is None else str(value) for value in values)


def _sum_gpu_time(attempts: list[dict[str, Any]]) -> float | None:
    """GPU-seconds of all attempts; None where one of them gives no times."""
    try:
        spans = [datetime.fromisoformat(a["end_time"]) - datetime.fromisoformat(a["start_time"]) for a in attempts]
    except (KeyError, TypeError, ValueError):
        return None
    return sum(_count_gpus(a) * span.total_seconds() for a, span in zip(attempts, spans, strict=True))


def _count_gpus(attempt: dict[str, Any]) -> int:
    return sum(len(server["gpus"]) for server in attempt["detail"])


def _given(value: Any) -> bool:
    return value not in (None, "", "None")
