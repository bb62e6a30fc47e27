"""Tables of jobs, read as `prism characterize` reads them, and of clusters (CSV, Parquet or YAML)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from prism.datacenter import characterize
from prism.datacenter.characterize.columns import Choices
from prism.datacenter.characterize.intake import IntakeOptions
from prism.datacenter.characterize.trace import OpenOptions
from prism.datacenter.place.clusters import Cluster, Job
from prism.errors import BadFileError, BadRowError
from prism.records import files
from prism.records.compression import name_without_endings

# In addition to the names that `prism characterize` knows. Several columns may hold a job's own cluster; one is right.
_HOMES = ("home", "cluster", "virtual_cluster", "vc", "partition", "queue_name")
_COUNTS = ("priority", "preemptible")
_JOB_NAMES: Mapping[str, tuple[str, ...]] = {
    "submit": ("time",),
    "duration": ("seconds", "durations", "runs"),
    "home": ("home",),
    "cluster": ("cluster", "clustername"),
    "virtual_cluster": ("virtualcluster",),
    "vc": ("vc",),
    "partition": ("partition",),
    "queue_name": ("queue",),
    "kind": ("kind", "gpukind", "gputype"),
    "priority": ("prismpriority",),
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
    """One cluster from a row; errors name `where`."""
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
    *paths: Path,
    clusters: Collection[str] = (),
    choices: Choices | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Job], list[float]]:
    """Jobs in order of submission with their run times in seconds, from any table that `prism characterize` reads.

    `say` gets a message for unusable jobs. With `clusters`, a job's own cluster is read from the first column
    that names one of them, or else from the name of the file: a `queue` may be seconds, and a partition is no cluster.
    """
    opening = OpenOptions(names=_JOB_NAMES, choices=choices or {})
    tables = [_read_job_table(path, opening, clusters, say, prefix=len(paths) > 1) for path in paths]
    table = pl.concat(tables, how="vertical").sort("submit_s", maintain_order=True)
    # Requeued jobs keep their id, and clusters in one table may use the same ids, so each row is a separate job.
    nth = pl.int_range(1, pl.len() + 1).over("id")
    table = table.with_columns(
        pl.when(pl.col("id").is_duplicated()).then(pl.format("{}#{}", "id", nth)).otherwise("id").alias("id")
    )
    return [Job(**row) for row in table.drop("seconds").to_dicts()], table["seconds"].to_list()


def _read_job_table(
    path: Path, opening: OpenOptions, clusters: Collection[str], say: Callable[[str], None], *, prefix: bool
) -> pl.DataFrame:
    found, notes = characterize.read_jobs(path, opening, IntakeOptions())
    for line in notes:
        say(f"{path}: {line}")
    own_name = name_without_endings(path)
    homes = [name for name in _HOMES if name in found.columns]
    if clusters:  # of the columns that may name a job's own cluster, the first that names one of these
        homes = [name for name in homes if found[name].is_in(list(clusters)).any()]
        if not homes and own_name not in clusters:
            say(
                f"{path}: no column names one of {', '.join(sorted(clusters)[:6])}, and the file is not called after "
                "one; its jobs have no cluster of their own"
            )
    texts = {"home": homes[0] if homes else "", "user": "user", "type": "type", "kind": "kind"}
    counts = {name: pl.col(name).cast(pl.Int64, strict=False) for name in _COUNTS if name in found.columns}
    ids = pl.col("job") if found["job"].null_count() == 0 else pl.int_range(pl.len()).cast(pl.String)
    jobs = found.select(
        (pl.lit(f"{own_name}:") + ids if prefix else ids).alias("id"),  # two clusters may use the same ids
        (pl.col("submit_ns") / 1e9).alias("submit_s"),
        pl.col("gpus").ceil().cast(pl.Int64, strict=False),
        *(
            (pl.col(column).cast(pl.String) if column in found.columns else pl.lit(None, pl.String))
            .fill_null(own_name if name == "home" else "")
            .alias(name)
            for name, column in texts.items()
        ),
        counts.get("priority", pl.lit(0, pl.Int64)).fill_null(0).alias("priority"),
        (counts.get("preemptible", pl.lit(0, pl.Int64)).fill_null(0) > 0).alias("preemptible"),
        pl.col("duration_s").alias("seconds"),
    )
    used = jobs.filter(pl.col("seconds").is_finite() & (pl.col("gpus") > 0) & pl.col("submit_s").is_not_null())
    away = used.filter(~pl.col("home").is_in(list(clusters))) if clusters and homes else used.clear()
    if not away.is_empty():
        names = away["home"].unique().sort().to_list()
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        say(f"{path}: {away.height:,} jobs belong to clusters that --clusters does not name: {shown}; add them")
    if used.height < jobs.height:
        missing = jobs.height - used.height
        say(f"{path}: {missing:,} of {jobs.height:,} jobs have no run time, GPUs or submission time and are left out")
    return used


def _load(path: Path) -> pl.DataFrame:
    return files.read_whole(path)


def _as_numbers(values: pl.Series) -> pl.Series:
    """Text columns of a CSV file as numbers, if all values are."""
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
            chosen[column] = _as_numbers(raw[found]) if column == "gpus" else raw[found]
        elif column in needed:
            raise BadRowError(
                f"{path}: no column for '{column}' among {', '.join(raw.columns[:12])}; call it {aliases[0]}"
            )
    return pl.DataFrame(chosen)
