"""Jobs and clusters, and how their tables are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import yaml

from prism.errors import BadFileError, BadRowError
from prism.records import files

_JOB_NAMES = {
    "id": ("job", "job_id", "jobid", "id"),
    "submit": ("submit", "time", "submit_time", "submitted", "submission_time", "timestamp"),
    "seconds": ("seconds", "duration", "run_time", "runtime", "duration_s", "run_s"),
    "gpus": ("gpus", "num_gpus", "gpu_num", "gpu"),
    "home": ("home", "cluster", "virtual_cluster", "vc", "partition", "queue"),
    "user": ("user", "user_id", "owner"),
}
_CLUSTER_NAMES = {
    "name": ("name", "cluster", "virtual_cluster", "vc", "id"),
    "gpus": ("gpus", "num_gpus", "size", "capacity"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs that are scheduled together."""

    name: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known of a job when it is submitted."""

    id: str
    submit_s: float
    gpus: int
    home: str  # the cluster whose users submitted it
    user: str = ""


def read_clusters(path: Path) -> list[Cluster]:
    """Clusters with their GPUs, from CSV, Parquet or YAML (`name: gpus`, or a list of name and gpus)."""
    if path.suffix in (".yaml", ".yml"):
        try:
            document = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise BadFileError(f"{path}: not readable YAML ({str(error)[:80]})") from None
        rows = [{"name": k, "gpus": v} for k, v in document.items()] if isinstance(document, dict) else document
        if isinstance(document, dict) and isinstance(document.get("clusters"), list):
            rows = document["clusters"]
        if not isinstance(rows, list) or not all(isinstance(r, dict) and {"name", "gpus"} <= set(r) for r in rows):
            raise BadFileError(f"{path}: expected `name: gpus` lines or a list of name and gpus")
        table = pl.DataFrame([{"name": str(r["name"]), "gpus": r["gpus"]} for r in rows])
    else:
        table = _choose(_load(path), _CLUSTER_NAMES, ("name", "gpus"), path)
    found = []
    for row, (name, gpus) in enumerate(table.select("name", "gpus").iter_rows(), 1):
        if not isinstance(gpus, int | float) or gpus != gpus or gpus < 1:
            raise BadRowError(f"{path} row {row}: cluster '{name}' has {gpus!r} GPUs, expected a number from 1")
        found.append(Cluster(name=str(name), gpus=int(gpus)))
    if len({c.name for c in found}) != len(found) or not found:
        raise BadRowError(f"{path}: every cluster needs one row and a name of its own")
    return found


def read_jobs(path: Path) -> tuple[list[Job], list[float]]:
    """Jobs in order of submission with their run times in seconds; jobs without a run time are left out."""
    table = _choose(_load(path), _JOB_NAMES, ("submit", "seconds", "gpus", "home"), path)
    submit = table["submit"]
    if submit.dtype.is_temporal():
        submit = submit.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    elif submit.dtype == pl.String:
        submit = submit.str.replace(" ", "T").str.to_datetime(time_unit="us", strict=False).cast(pl.Int64) / 1e6
        if submit.null_count():
            raise BadRowError(f"{path}: a submission time is no date; write 2017-10-03 12:00:00, or seconds")
    table = table.with_columns(submit=submit.cast(pl.Float64))
    for column in ("seconds", "gpus"):
        if not table[column].dtype.is_numeric() and table[column].dtype != pl.Null:
            bad = table[column].cast(pl.String)
            row = int(
                (bad.str.strip_chars().cast(pl.Float64, strict=False).is_null() & bad.is_not_null()).arg_max() or 0
            )
            raise BadRowError(f"{path} row {row + 1}: '{column}' is \"{bad[row]}\", expected a number; fix the row")
    if "id" not in table.columns:
        table = table.with_row_index("id")
    if "user" not in table.columns:
        table = table.with_columns(user=pl.lit(""))
    table = table.filter(pl.col("seconds").is_not_null() & (pl.col("seconds") >= 0) & (pl.col("gpus") > 0)).sort(
        "submit"
    )
    jobs = [
        Job(id=str(i), submit_s=s, gpus=int(g), home=str(h), user=str(u or ""))
        for i, s, g, h, u in table.select("id", "submit", "gpus", "home", "user").iter_rows()
    ]
    return jobs, table["seconds"].cast(pl.Float64).to_list()


def _load(path: Path) -> pl.DataFrame:
    return files.collect(files.scan(path, files.recognise(path)), path)


def _as_numbers(values: pl.Series) -> pl.Series:
    """Text of a CSV file as numbers where all of it is; dates stay text."""
    if values.dtype != pl.String:
        return values
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == values.null_count() else values


def _choose(raw: pl.DataFrame, names: dict[str, tuple[str, ...]], needed: tuple[str, ...], path: Path) -> pl.DataFrame:
    known = {c.lower(): c for c in raw.columns}
    chosen = {}
    for column, aliases in names.items():
        found = next((known[a] for a in aliases if a in known), None)
        if found is not None:
            chosen[column] = _as_numbers(raw[found]) if column in ("gpus", "seconds", "submit") else raw[found]
        elif column in needed:
            raise BadRowError(
                f"{path}: no column for '{column}' among {', '.join(raw.columns[:12])}; call it {aliases[0]}"
            )
    return pl.DataFrame(chosen)
