"""Published data of five datacenters: the reference rows, the curves of the figures, the failure table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import polars as pl

REFERENCES = ("Seren", "Kalos", "Philly", "Helios", "PAI")

CLUSTER_GPUS = {"seren": 2288, "kalos": 2416}
"""GPUs of the two Acme clusters (286 and 302 nodes of 8, NSDI 2024)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Job counts by which a version of a public trace is recognised."""

    name: str
    jobs: int
    gpu_jobs: int


# The released Seren CSV holds fewer jobs than the paper's summary: README total less the Kalos row of the summary.
RELEASES = (
    Release(name="Seren as in the paper's cluster summary", jobs=1_031_550, gpu_jobs=663_813),
    Release(name="Seren as in the public CSV (a subset of the paper's jobs)", jobs=818_327, gpu_jobs=450_590),
    Release(name="Kalos as in the paper and the public CSV", jobs=62_413, gpu_jobs=19_907),
    Release(name="Philly as in AcmeTrace's cluster summary", jobs=112_956, gpu_jobs=112_956),
    Release(name="Helios as in AcmeTrace's cluster summary", jobs=3_362_981, gpu_jobs=1_580_464),
    Release(name="PAI as in AcmeTrace's cluster summary", jobs=1_260_920, gpu_jobs=1_037_085),
)


@lru_cache(maxsize=8)
def load_published(name: str) -> pl.DataFrame:
    """One of the tables shipped with the package, by file name without suffix."""
    with (files("prism.datacenter.characterize") / "data" / f"{name}.csv").open("rb") as file:
        return pl.read_csv(file.read())


def find_row(cluster: str) -> dict[str, float | None]:
    """A datacenter's row of the cluster summary."""
    row = load_published("cluster_summary").filter(pl.col("id").str.to_lowercase() == cluster.lower()).to_dicts()[0]
    return {name: value for name, value in row.items() if name != "id"}


def find_curve(curve: str, series: str) -> pl.DataFrame:
    """Points (x, value) of a published cumulative curve, x ascending, made monotone."""
    points = load_published("published_curves").filter((pl.col("curve") == curve) & (pl.col("series") == series))
    return points.select("x", pl.col("value").cum_max()).sort("x")


def find_type_mix(cluster: str) -> pl.DataFrame:
    """Published shares of job types: type, jobs_pct, gpu_time_pct."""
    return load_published("type_mix").filter(pl.col("cluster").str.to_lowercase() == cluster.lower()).drop("cluster")


def find_utilisation_medians() -> pl.DataFrame:
    """Published medians per metric: metric, seren_p50, kalos_p50; null if a cluster has none."""
    table = load_published("utilisation_quantiles").filter((pl.col("percent") == 50) & (pl.col("cluster") != "Philly"))
    renamed = table.with_columns(pl.col("metric").str.replace(r"^ib_mbps_\d$", "network_mb_s"))
    wide = renamed.pivot("cluster", index="metric", values="value", aggregate_function="mean")
    return wide.select("metric", seren_p50="Seren", kalos_p50="Kalos")


def recognise_release(jobs: int, gpu_jobs: int) -> str | None:
    """The public trace that has exactly these job counts."""
    return next((r.name for r in RELEASES if (r.jobs, r.gpu_jobs) == (jobs, gpu_jobs)), None)
