"""Alibaba's PAI trace of 2020: the job and task tables, which its release ships without header lines, as one."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from prism.errors import BadFileError

TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_FILE, JOB_FILE = "pai_task_table.csv", "pai_job_table.csv"
STATES = ("terminated", "failed", "running", "waiting")
NOTE = "Jobs are those of pai_job_table, whose start_time is the submission; GPUs and starts are those of their tasks."


def is_pai_folder(folder: Path) -> bool:
    """Whether a folder holds both tables."""
    return (folder / TASK_FILE).is_file() and (folder / JOB_FILE).is_file()


def read_pai_folder(folder: Path) -> pl.DataFrame:
    """One row per job: submission, first task's start, GPUs of all its tasks; all text."""
    try:
        tasks, jobs = _scan(folder / TASK_FILE, TASK_COLUMNS), _scan(folder / JOB_FILE, JOB_COLUMNS)
        number = {name: pl.col(name).cast(pl.Float64, strict=False) for name in ("inst_num", "plan_gpu", "start_time")}
        gpus = number["plan_gpu"].fill_null(0) * number["inst_num"].fill_null(1) / 100
        summed = tasks.group_by("job_name").agg(gpus=gpus.sum(), launched=number["start_time"].min())
        joined = jobs.join(summed, on="job_name", how="left").select(
            job_id=pl.col("job_name"),
            user=pl.col("user"),
            state=pl.col("status"),
            gpus=pl.col("gpus").cast(pl.String),
            submit_time=pl.col("start_time"),
            start_time=pl.col("launched").cast(pl.String),
            end_time=pl.col("end_time"),
        )
        return joined.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
        raise BadFileError(f"{folder}: its PAI tables cannot be read ({reason}); download them again") from None


def _scan(path: Path, columns: tuple[str, ...]) -> pl.LazyFrame:
    with path.open("rb") as file:
        named = file.readline().decode("utf-8", errors="replace").startswith("job_name,")
    return pl.scan_csv(
        path, has_header=named, new_columns=None if named else list(columns), infer_schema=False, glob=False
    )
