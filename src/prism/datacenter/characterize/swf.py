"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, comments after semicolons."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from prism.errors import BadRowError

# The fields of version 2.2, in order.
SWF_COLUMNS = (
    "job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time", "used_memory",
    "requested_processors", "requested_time", "requested_memory", "status", "user_id", "group_id", "executable",
    "queue_number", "partition_number", "preceding_job", "think_time",
)  # fmt: skip
_STATES: Mapping[str, str] = {"0": "failed", "1": "completed", "5": "cancelled"}
_PARTS = ("2", "3", "4")  # parts of a job that another line lists as a whole
NOTE = "SWF counts processors, not GPUs; every processor is counted as one GPU."


def looks_like_swf(head: bytes) -> bool:
    """Whether the first lines are SWF's comments, or rows of 18 numbers."""
    lines = [line.strip() for line in head[:16_384].split(b"\n")[:-1] if line.strip()] or [head.strip()]
    if lines[0].startswith(b";"):
        return any(re.match(rb";\s*(Version|Computer|MaxJobs|MaxProcs|UnixStartTime|MaxNodes)\s*:", x) for x in lines)
    return len(lines[0].split()) == len(SWF_COLUMNS) and all(
        re.fullmatch(rb"-?\d+(\.\d+)?", x) for x in lines[0].split()
    )


def read_swf(text: str, where: str) -> tuple[pl.DataFrame, int]:
    """One row per job, all text, and how many lines were parts of jobs; SWF writes -1 for unknown."""
    found = re.search(r"^;\s*UnixStartTime\s*:\s*(\d+)", text, re.MULTILINE)
    begin = int(found.group(1)) if found else 0
    lines = pl.Series("line", text.split("\n"), dtype=pl.String).str.strip_chars()
    rows = pl.DataFrame({"line": lines, "number": pl.int_range(1, len(lines) + 1, eager=True)})
    rows = rows.filter((pl.col("line") != "") & ~pl.col("line").str.starts_with(";"))
    cells = rows.with_columns(pl.col("line").str.extract_all(r"\S+").alias("cells"))
    odd = cells.filter(pl.col("cells").list.len() != len(SWF_COLUMNS))
    if not odd.is_empty():
        count = len(odd["cells"][0])
        raise BadRowError(
            f"{where} line {odd['number'][0]}: has {count} numbers, expected SWF's {len(SWF_COLUMNS)}; fix it"
        )
    table = cells.select(pl.col("cells").list.get(i).alias(name) for i, name in enumerate(SWF_COLUMNS))
    jobs = table.filter(~pl.col("status").is_in(_PARTS))

    def known(name: str) -> pl.Expr:
        return pl.when(pl.col(name).cast(pl.Float64, strict=False) >= 0).then(pl.col(name))

    submit = known("submit_time").cast(pl.Float64, strict=False).cast(pl.Int64, strict=False) + begin
    # A job that never ran has used no processors, however many it requested.
    processors = pl.coalesce(known("allocated_processors"), known("requested_processors"))
    frame = jobs.select(
        job_id=pl.col("job_number"),
        user_id=known("user_id"),
        state=pl.col("status").replace_strict(_STATES, default=None, return_dtype=pl.String),
        gpus=processors,
        submit_time=submit.cast(pl.String),
        run_time=known("run_time"),
        wait_time=known("wait_time"),
    )
    return frame, table.height - jobs.height
