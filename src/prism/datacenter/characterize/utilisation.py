"""Utilisation series: use of GPUs, memory, CPUs and network, temperature and power."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.datacenter.characterize.columns import squash
from prism.errors import BadFileError

# Squashed names of exporters' metrics (DCGM, node exporter, AcmeTrace files) and ours.
METRIC_NAMES = {
    "gpu_util_pct": ("gpuutil", "gpuutilpct", "dcgmfidevgpuutil", "gpuutilization", "utilizationgpu"),
    "sm_active_pct": ("smactive", "smactivepct", "dcgmfiprofsmactive", "smactivity"),
    "sm_occupancy_pct": ("smoccupancy", "dcgmfiprofsmoccupancy"),
    "tensor_active_pct": ("pipetensoractive", "dcgmfiprofpipetensoractive", "tensoractive"),
    "dram_active_pct": ("dramactive", "dcgmfiprofdramactive"),
    "gpu_memory_pct": ("gpumemorypct", "gpumemory", "gpumemoryutil", "fbusedpct"),
    "cpu_util_pct": ("cpuutilpct", "nodecpuutilization", "cpuutil", "cpuutilization"),
    "host_memory_pct": ("hostmemorypct", "nodememoryutilization", "memoryutil", "hostmemory"),
    # The published series are called mbps but peak at 23,695 on a 200 Gb/s port: they are megabytes.
    "network_mb_s": ("ibmbps1", "ibmbps2", "networkmbs"),
    "gpu_power_w": ("gpupowerw", "powerusage", "dcgmfidevpowerusage", "gpupower"),
    "gpu_node_power_w": ("gpunodepowerw", "gpuabpower", "gpucpower"),
    "cpu_node_power_w": ("cpunodepowerw", "cpudpower"),
    "gpu_temp_c": ("gputempc", "gputemp", "dcgmfidevgputemp"),
    "gpu_memory_temp_c": ("gpumemorytempc", "memorytemp", "dcgmfidevmemorytemp"),
}
_METRIC_OF = {alias: metric for metric, aliases in METRIC_NAMES.items() for alias in aliases}
# DCGM's profiling counters are shares of one.
_SHARES_OF_ONE = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
_PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)
CURVE_PERCENTS = tuple(range(0, 101, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Per metric: quantiles, shares at the ends, and the curve to draw."""

    metrics: pl.DataFrame  # metric, samples, mean, p1 ... p99, zero_pct, full_pct
    curves: pl.DataFrame  # metric, percent, value
    unknown: tuple[str, ...] = ()  # names of unknown metrics


def read_utilisation(path: Path) -> Utilisation:
    """Read samples or quantiles.

    Accepted: long tables (metric, value); quantile tables (metric, percent, value); one column per metric;
    or one file per metric, named for it, with a time column and one column per GPU or node.
    """
    try:
        lazy = (
            pl.scan_parquet(path)
            if path.suffix == ".parquet"
            else pl.scan_csv(path, infer_schema_length=1000, glob=False)
        )
        names = lazy.collect_schema().names()
        keys = {squash(name): name for name in names}
        if {"metric", "value"} <= keys.keys():
            return _from_long(lazy.rename({keys["metric"]: "metric", keys["value"]: "value"}), keys, path)
        known = [name for name in names if squash(name) in _METRIC_OF]
        if known:
            long = lazy.select(pl.col(known).cast(pl.Float64)).unpivot(variable_name="metric", value_name="value")
            return _from_long(long, {}, path)
        metric = _METRIC_OF.get(squash(path.stem))
        if metric is None:
            raise BadFileError(
                f"{path}: neither columns 'metric' and 'value' nor a column or file name that is a known metric "
                f"(such as gpu_util_pct, GPU_UTIL, POWER_USAGE); rename one"
            )
        series = [name for name in names if squash(name) not in ("time", "timestamp", "date")]
        long = lazy.select(pl.col(series).cast(pl.Float64)).unpivot(variable_name="series", value_name="value")
        return _from_long(long.with_columns(metric=pl.lit(metric)), {}, path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise BadFileError(f"{path}: cannot be read as utilisation ({reason}); give CSV or Parquet") from None


def _from_long(lazy: pl.LazyFrame, keys: dict[str, str], path: Path) -> Utilisation:
    percent = keys.get("percent") or keys.get("quantile")
    columns = ["metric", pl.col("value").cast(pl.Float64)]
    if percent:
        columns.append(pl.col(percent).cast(pl.Float64).alias("percent"))
    samples = lazy.select(columns).drop_nulls().filter(pl.col("value").is_finite())
    names = samples.select(pl.col("metric").unique()).collect().to_series().to_list()
    metric_of = {name: _METRIC_OF.get(squash(str(name)), str(name)) for name in names}
    samples = samples.with_columns(pl.col("metric").replace_strict(metric_of, return_dtype=pl.String))
    unknown = tuple(sorted(str(name) for name in names if squash(str(name)) not in _METRIC_OF))
    if not names:
        raise BadFileError(f"{path}: holds no samples; export it again")
    scaled = _scale_shares(samples)
    table = _describe_quantiles(scaled) if percent else _describe_samples(scaled)
    return Utilisation(metrics=table[0].sort("metric"), curves=table[1].sort("metric", "percent"), unknown=unknown)


def _scale_shares(samples: pl.LazyFrame) -> pl.LazyFrame:
    """Metrics that exporters give as shares of one, in percent."""
    largest = samples.group_by("metric").agg(pl.col("value").max()).collect()
    small = largest.filter(pl.col("metric").is_in(_SHARES_OF_ONE) & (pl.col("value") <= 1.0))["metric"].to_list()
    value = pl.when(pl.col("metric").is_in(small)).then(pl.col("value") * 100).otherwise(pl.col("value"))
    return samples.with_columns(value.alias("value"))


def _describe_samples(samples: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    value = pl.col("value")
    table = samples.group_by("metric").agg(
        pl.len().alias("samples"),
        value.mean().alias("mean"),
        *(value.quantile(p / 100, "linear").alias(f"p{p}") for p in _PERCENTS),
        (100 * (value <= 0).mean()).alias("zero_pct"),
        (100 * (value >= 95).mean()).alias("full_pct"),
        *(value.quantile(p / 100, "linear").alias(f"c{p}") for p in CURVE_PERCENTS),
    )
    found = table.collect(engine="streaming")
    drawn = [f"c{p}" for p in CURVE_PERCENTS]
    curves = found.select("metric", *drawn).unpivot(index="metric", variable_name="percent", value_name="value")
    curves = curves.with_columns(pl.col("percent").str.slice(1).cast(pl.Float64))
    return _clear_full(found.drop(drawn)), curves


def _describe_quantiles(quantiles: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A published quantile curve: evenly spaced points represent samples, whose number is unknown."""
    # Several sources may give one metric (two network ports): their points are averaged.
    curves = quantiles.group_by("metric", "percent").agg(pl.col("value").mean()).sort("metric", "percent").collect()
    value = pl.col("value")
    table = curves.group_by("metric").agg(
        pl.lit(None, pl.UInt32).alias("samples"),
        value.mean().alias("mean"),
        *(value.get((pl.col("percent") - p).abs().arg_min()).alias(f"p{p}") for p in _PERCENTS),
        (100 * (value <= 0).mean()).alias("zero_pct"),
        (100 * (value >= 95).mean()).alias("full_pct"),
    )
    return _clear_full(table), curves


def _clear_full(table: pl.DataFrame) -> pl.DataFrame:
    """A share at 95 or more only says "fully used" where the metric is a percentage."""
    full = pl.when(pl.col("metric").str.ends_with("_pct")).then(pl.col("full_pct"))
    return table.with_columns(full.alias("full_pct"))
