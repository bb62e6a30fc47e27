"""Many jobs at once: each entry of a folder is one job's log, and one table sums up the failures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from prism.errors import BadFileError
from prism.evidence.logs.sources import find_logs
from prism.records.verdict import Verdict


def find_jobs(folder: str) -> list[str]:
    """The entries of a folder, each one job: a file, or a folder of that job's per-rank logs."""
    path = Path(folder)
    if not path.is_dir():
        raise BadFileError(f"{folder}: not a folder; --jobs takes the folder that holds one entry per job")
    entries = sorted(p for p in path.iterdir() if p.name[0] != "." and (p.is_file() or any(p.rglob("*"))))
    jobs = [str(p) for p in entries if p.is_dir() or (find_logs(str(path)) and _is_log(p))]
    if not jobs:
        raise BadFileError(f"{folder}: holds no logs; give the folder that holds one entry per job")
    return jobs


def _is_log(path: Path) -> bool:
    return any(source.path == str(path) for source in find_logs(str(path.parent)))


def tabulate_failures(verdicts: Iterable[Verdict]) -> pl.DataFrame:
    """One row per reason, most frequent first: how many jobs, their share, the actions and the hosts named."""
    rows = [(v.category, v.reason, v.action, list(v.hosts), v.confidence) for v in verdicts]
    frame = pl.DataFrame(
        rows,
        schema={
            "category": pl.String,
            "reason": pl.String,
            "action": pl.String,
            "hosts": pl.List(pl.String),
            "confidence": pl.Float64,
        },
        orient="row",
    )
    return (
        frame.group_by("category", "reason")
        .agg(
            pl.len().alias("jobs"),
            (100 * pl.len() / max(frame.height, 1)).round(1).alias("jobs_pct"),
            pl.col("action").value_counts(sort=True).struct.field("action").first(),
            pl.col("hosts").explode().drop_nulls().unique().sort(),
            pl.col("confidence").mean().round(2),
        )
        .sort("jobs", "reason", descending=[True, False])
    )
