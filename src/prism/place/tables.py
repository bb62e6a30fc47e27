"""How tables of jobs and clusters are read: CSV, Parquet, YAML, and what `sacct --parsable2` prints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from prism.errors import BadFileError, BadRowError
from prism.place.clusters import Cluster, Job
from prism.records import files

_JOB_NAMES = {
    "id": ("job", "job_id", "jobid", "jobidraw", "id"),
    "submit": ("submit", "time", "submit_time", "submitted", "submission_time", "timestamp"),
    "seconds": ("seconds", "duration", "run_time", "runtime", "duration_s", "run_s", "elapsedraw", "elapsed"),
    "gpus": ("gpus", "num_gpus", "gpu_num", "gpu", "alloctres", "reqtres"),
    "home": ("home", "cluster", "virtual_cluster", "vc", "partition", "queue"),
    "user": ("user", "user_id", "owner"),
    "type": ("type", "job_type", "workload"),
    "kind": ("kind", "gpu_kind", "gpu_type"),
    "priority": ("prism_priority",),
    "preemptible": ("preemptible",),
}
_CLUSTER_NAMES = {
    "name": ("name", "cluster", "virtual_cluster", "vc", "id"),
    "gpus": ("gpus", "num_gpus", "size", "capacity"),
    "kind": ("kind", "gpu_kind", "gpu_type"),
}
_NUMBERS = ("speed", "leaf_gpus", "failures_per_gpu_day", "cost_per_gpu_hour", "bytes_per_s", "weight", "keep_gpus")


def read_clusters(path: Path) -> list[Cluster]:
    """Clusters with their GPUs, from CSV, Parquet or YAML (`name: gpus`, or a list of name, gpus and more)."""
    if path.suffix in (".yaml", ".yml"):
        rows = _read_yaml(path)
    else:
        raw = _load(path)
        more = raw.select([c for c in raw.columns if c in _NUMBERS])
        rows = pl.concat([_choose(raw, _CLUSTER_NAMES, ("name", "gpus"), path), more], how="horizontal").to_dicts()
    found = [read_cluster(row, f"{path} row {number}") for number, row in enumerate(rows, 1)]
    if len({c.name for c in found}) != len(found) or not found:
        raise BadRowError(f"{path}: every cluster needs one row and a name of its own")
    return found


def _read_yaml(path: Path) -> list[dict[str, Any]]:
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFileError(f"{path}: not readable YAML ({str(error)[:80]})") from None
    if isinstance(document, dict) and isinstance(document.get("clusters"), list):
        document = document["clusters"]
    rows = [{"name": k, "gpus": v} for k, v in document.items()] if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(r, dict) and {"name", "gpus"} <= set(r) for r in rows):
        raise BadFileError(f"{path}: expected `name: gpus` lines or a list of name and gpus")
    return rows


def read_cluster(row: Mapping[str, Any], where: str) -> Cluster:
    """One cluster from a row; `where` is told with what is wrong."""
    name, gpus = str(row["name"]), row["gpus"]
    if not isinstance(gpus, int | float) or not 1 <= gpus < float("inf"):
        raise BadRowError(f"{where}: cluster '{name}' has {gpus!r} GPUs, expected a number from 1")
    numbers = {}
    for column in _NUMBERS:
        value = row.get(column)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or value == float("inf"):
            raise BadRowError(f"{where}: '{column}' of '{name}' is {value!r}, expected a number from 0")
        if column in ("speed", "weight") and value == 0:
            raise BadRowError(f"{where}: '{column}' of '{name}' is 0, expected more")
        numbers[column] = int(value) if column.endswith("_gpus") else float(value)
    quotas = row.get("quotas") or {}
    if not isinstance(quotas, Mapping) or not all(type(v) is int and v >= 0 for v in quotas.values()):
        raise BadRowError(f"{where}: 'quotas' of '{name}' should be names with whole numbers of GPUs")
    for user, most in quotas.items():
        if most > gpus:
            raise BadRowError(
                f"{where}: the quota of '{user}' on '{name}' is {most} GPUs, the cluster has {int(gpus)}; lower it"
            )
    return Cluster(
        name=name,
        gpus=int(gpus),
        kind=str(row.get("kind") or ""),
        quotas=tuple((str(user), most) for user, most in quotas.items()),
        **numbers,  # type: ignore[arg-type]
    )


def read_jobs(
    *paths: Path, clusters: Collection[str] = (), say: Callable[[str], None] = lambda line: None
) -> tuple[list[Job], list[float]]:
    """Jobs in order of submission with their run times in seconds; `say` is told of jobs that cannot be used.

    With `clusters` named, a job's own cluster is read from the first column that names one of them, else from the
    name of the file: a `queue` may be seconds, and a partition is not a cluster.
    """
    tables = []
    for path in paths:
        try:
            tables.append(_read_job_table(path, prefix=len(paths) > 1, clusters=clusters, say=say))
        except pl.exceptions.PolarsError as error:
            line = str(error).partition("\n")[0]
            raise BadFileError(
                f"{path}: a column is not what its name says ({line[:120]}); fix it or rename it"
            ) from None
    table = pl.concat(tables, how="vertical").sort("submit")
    jobs = [
        Job(id=str(i), submit_s=s, gpus=int(g), home=h, user=u, type=t, kind=k, priority=int(p), preemptible=bool(m))
        for i, s, g, h, u, t, k, p, m in table.drop("seconds").iter_rows()
    ]
    return jobs, table["seconds"].to_list()


def _read_job_table(path: Path, *, prefix: bool, clusters: Collection[str], say: Callable[[str], None]) -> pl.DataFrame:
    raw = _load(path)
    names = {**_JOB_NAMES, "home": _home_columns(raw, clusters)} if clusters else _JOB_NAMES
    table = _choose(raw, names, ("submit", "seconds", "gpus"), path)
    if clusters and "home" not in table.columns and path.stem not in clusters:
        say(
            f"{path}: no column names one of {', '.join(sorted(clusters)[:6])}, and the file is not called after one; "
            "its jobs have no cluster of their own"
        )
    if "id" in table.columns:  # sacct lists the steps of a job below it
        table = table.filter(~pl.col("id").cast(pl.String).str.contains(".", literal=True))
    else:
        table = table.with_row_index("id")
    table = table.with_columns(
        _as_seconds(table["submit"], path).alias("submit"),
        _as_length(table["seconds"], path).alias("seconds"),
        _as_gpus(table["gpus"], path).alias("gpus"),
    )
    texts = {"home": path.stem, "user": "", "type": "", "kind": ""}
    columns: list[pl.Expr] = [pl.col("id").cast(pl.String), pl.col("submit"), pl.col("gpus")]
    if prefix:  # two clusters number their jobs alike
        columns[0] = pl.lit(f"{path.stem}:") + columns[0]
    for name, default in texts.items():
        known = pl.col(name).cast(pl.String).fill_null(default) if name in table.columns else pl.lit(default)
        columns.append(known.alias(name))
    for name in ("priority", "preemptible"):
        known = pl.col(name).cast(pl.Int64, strict=False).fill_null(0) if name in table.columns else pl.lit(0)
        columns.append(known.cast(pl.Int64).alias(name))
    chosen = table.select(*columns, pl.col("seconds"))
    used = chosen.filter(
        pl.all_horizontal(pl.col("seconds", "gpus", "submit").is_finite())
        & (pl.col("seconds") >= 0)
        & (pl.col("gpus") > 0)
    )
    if used.height < chosen.height:
        missing = chosen.height - used.height
        say(f"{path}: {missing:,} of {chosen.height:,} jobs have no run time, GPUs or submission time and are left out")
    return used


def _home_columns(raw: pl.DataFrame, clusters: Collection[str]) -> tuple[str, ...]:
    """Of the columns that may name a job's own cluster, those in which one of the clusters is named."""
    known = {c.lower(): c for c in raw.columns}
    return tuple(
        alias
        for alias in _JOB_NAMES["home"]
        if alias in known and raw[known[alias]].cast(pl.String).is_in(list(clusters)).any()
    )


def _as_seconds(submit: pl.Series, path: Path) -> pl.Series:
    if submit.dtype.is_temporal():
        return submit.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    if submit.dtype == pl.String:
        found = submit.str.strip_chars().str.replace(" ", "T").str.to_datetime(time_unit="us", strict=False)
        if found.null_count() > submit.null_count():
            raise BadRowError(f"{path}: a submission time is no date; write 2017-10-03 12:00:00, or seconds")
        return found.cast(pl.Int64) / 1e6
    return submit.cast(pl.Float64)


def _as_length(values: pl.Series, path: Path) -> pl.Series:
    """Seconds, or Slurm's [days-]hours:minutes:seconds."""
    if values.dtype != pl.String:
        return values.cast(pl.Float64)
    parts = (
        values.str.strip_chars().str.extract_groups(r"^(?:(\d{1,6})-)?(\d{1,9}):(\d{1,2}):(\d{1,2})$").struct.unnest()
    )
    numbers = parts.cast(pl.Float64, strict=False).fill_null(0.0)
    clock = pl.Series(numbers.to_numpy() @ [86_400.0, 3_600.0, 60.0, 1.0])
    plain = values.str.strip_chars().cast(pl.Float64, strict=False)
    found = pl.select(pl.when(parts[:, 1].is_not_null()).then(clock).otherwise(plain)).to_series()
    _refuse(values, found, "seconds", path)
    return found


def _as_gpus(values: pl.Series, path: Path) -> pl.Series:
    """A number, or Slurm's list of resources with gres/gpu=8 in it."""
    if values.dtype != pl.String:
        return values.cast(pl.Float64)
    listed = values.str.extract(r"gres/gpu=(\d{1,9})").cast(pl.Float64)
    listed = pl.select(pl.when(values.str.contains("=", literal=True)).then(listed.fill_null(0.0))).to_series()
    found = listed.fill_null(values.str.strip_chars().cast(pl.Float64, strict=False))
    _refuse(values, found, "gpus", path)
    return found


def _refuse(values: pl.Series, found: pl.Series, column: str, path: Path) -> None:
    bad = (found.is_null() & values.is_not_null() & (values.str.strip_chars() != "")).arg_true()
    if len(bad):
        raise BadRowError(
            f"{path} row {bad[0] + 1}: '{column}' is \"{values[int(bad[0])]}\", expected a number; fix the row"
        )


def _load(path: Path) -> pl.DataFrame:
    return files.collect(files.scan(path, files.recognise(path)), path)


def _as_numbers(values: pl.Series) -> pl.Series:
    """Text of a CSV file as numbers where all of it is; dates stay text."""
    if values.dtype != pl.String:
        return values
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == values.null_count() else values


def _choose(raw: pl.DataFrame, names: Mapping[str, tuple[str, ...]], needed: Sequence[str], path: Path) -> pl.DataFrame:
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
