"""Is the measured time inside the stated band? The cost model on every public measurement at hand.

Run: python proving/benchmarks/simulate_coverage.py [--data FOLDER] [--points] [--fit]

The points are proving/benchmarks/data/collectives.csv (size, ranks, hosts, NCCL, time), the systems and their sources
proving/benchmarks/data/systems.yaml. Half of the systems may be used to fit constants and bands; both halves are
printed. With --data (a folder that holds mlperf/) the growth of MLPerf's steps with data parallelism is printed as
well.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import polars as pl
import yaml

sys.path.append(str(Path(__file__).parent))
from machine import describe_machine
from prism.simulate.bands import LARGE_BYTES, class_of
from prism.simulate.cluster import Cluster
from prism.simulate.cluster_file import read_cluster
from prism.simulate.costs import estimate
from prism.simulate.placement import spread_evenly

DATA = Path(__file__).parent / "data"
GOAL = 0.95


def main() -> None:
    """Print the coverage table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PRISM_DATA", "../shared/data")))
    parser.add_argument("--points", action="store_true", help="print every point")
    parser.add_argument("--fit", action="store_true", help="print the bands that the fit half asks for")
    args = parser.parse_args()
    print(f"machine: {describe_machine()} (the figures do not depend on it)\n")
    board = make_board()
    if args.points:
        show_points(board)
    show_systems(board)
    show_classes(board)
    if args.fit:
        show_fit(board)
    if (args.data / "mlperf" / "runs.csv").is_file():
        show_mlperf(args.data / "mlperf")


def load_systems() -> dict[str, dict]:
    """Every system with its cluster."""
    return yaml.safe_load((DATA / "systems.yaml").read_text())


def cluster_of(name: str, system: dict) -> Cluster:
    """The described machine."""
    return read_cluster(yaml.safe_dump(system["cluster"]), name)


def make_board() -> pl.DataFrame:
    """One row per measured point: the model's time, its band, and whether the truth lies inside."""
    systems = load_systems()
    points = pl.read_csv(DATA / "collectives.csv", schema_overrides={"nccl": pl.String})
    rows = []
    for system, kind, ranks, hosts, _, size, truth in points.iter_rows():
        cluster = cluster_of(system, systems[system])
        placement = spread_evenly(ranks, hosts, cluster)
        found = estimate(kind, size, placement, cluster)
        rows.append(
            {
                "system": system,
                "half": systems[system]["half"],
                "asked": systems[system].get("asked", False),
                "class": class_of(kind, placement, cluster),
                "kind": kind,
                "ranks": ranks,
                "hosts": hosts,
                "bytes": size,
                "truth_us": truth,
                "model_us": found.duration_ns / 1000,
                "choice": f"{found.algorithm}/{found.protocol}",
                "band_pct": found.error_band_pct,
                "calibrate": found.needs_calibration,
            }
        )
    board = pl.DataFrame(rows)
    factor = pl.max_horizontal(pl.col("truth_us") / pl.col("model_us"), pl.col("model_us") / pl.col("truth_us"))
    return board.with_columns(factor.alias("factor")).with_columns(
        inside=pl.col("factor") <= 1 + pl.col("band_pct") / 100
    )


def show_points(board: pl.DataFrame) -> None:
    """Every comparison."""
    for r in board.iter_rows(named=True):
        print(
            f"{r['system']:<22} {r['kind']:<11}{r['ranks']:>5} on {r['hosts']:>3} {r['bytes']:>12,} B: "
            f"{r['truth_us']:>11,.1f} us measured, {r['model_us']:>11,.1f} modelled, "
            f"{r['choice']:<16} band {r['band_pct']:>4.0f} % {'' if r['inside'] else 'OUTSIDE'}"
        )
    print()


def show_systems(board: pl.DataFrame) -> None:
    """One line per system: median and worst ratio, and how many points lie inside."""
    print(f"{'system':<22} {'half':<6}{'points':>7}{'inside':>7}{'median model/truth':>20}{'worst factor':>14}")
    for (name,), rows in board.group_by("system", maintain_order=True):
        ratio = (rows["model_us"] / rows["truth_us"]).median()
        print(
            f"{name:<22} {rows['half'][0]:<6}{rows.height:>7}{rows['inside'].sum():>7}{ratio:>20.2f}"
            f"{rows['factor'].max():>14.2f}"
        )


def show_classes(board: pl.DataFrame) -> None:
    """The coverage table: per class of system, and in all."""
    print(f"\n{'class':<28}{'band':>7}{'systems':>9}{'points':>8}{'inside':>8}{'fit':>6}{'score':>7}  calibrate")
    for (name,), rows in board.group_by("class", maintain_order=True):
        print(_coverage_line(name, rows, f"{rows['band_pct'].max():.0f} %", any(rows["calibrate"])))
    print(_coverage_line("all", board, "", False))
    sure = board.filter(~pl.col("calibrate"))
    print(_coverage_line("without a prompt", sure, "", False))
    share = board["inside"].mean()
    print(
        f"\ninside the band: {share:.1%} of {board.height} points (goal {GOAL:.0%})", "" if share >= GOAL else "MISSED"
    )


def _coverage_line(name: str, rows: pl.DataFrame, band: str, prompt: bool) -> str:
    halves = {half: rows.filter(pl.col("half") == half)["inside"] for half in ("fit", "score")}
    shown = [f"{v.mean():.0%}" if len(v) else "-" for v in halves.values()]
    inside = f"{rows['inside'].mean():.0%}"
    count = rows["system"].n_unique()
    return (
        f"{name:<28}{band:>7}{count:>9}{rows.height:>8}{inside:>8}{shown[0]:>6}{shown[1]:>7}  {'yes' if prompt else ''}"
    )


def show_fit(board: pl.DataFrame) -> None:
    """Per class and size: the band that holds 95 of 100 points of one half, every system counted alike."""
    print("\nbands that each half asks for")
    size = pl.when(pl.col("bytes") >= LARGE_BYTES).then(pl.lit("large")).otherwise(pl.lit("small"))
    for (name, sized, half), rows in board.with_columns(size=size).group_by(
        "class", "size", "half", maintain_order=True
    ):
        systems = rows["system"].n_unique()
        print(f"  {name:<28} {sized} {half:<6}{100 * (quantile(rows) - 1):>7.0f} %  ({systems} systems)")


def quantile(rows: pl.DataFrame, share: float = GOAL) -> float:
    """The factor below which `share` of the weight lies, every system weighing the same."""
    factor = rows["factor"].to_numpy()
    weight = 1 / rows.select(pl.len().over("system")).to_series().to_numpy()
    order = np.argsort(factor)
    summed = np.cumsum(weight[order])
    return float(factor[order][np.searchsorted(summed, share * summed[-1] - 1e-9)])


def show_mlperf(folder: Path) -> None:
    """How a step grows when only data parallelism does; compute is fitted on the smallest run."""
    import emulate_mlperf as mlperf

    print("\nMLPerf training, fixed micro-batches for each rank: growth of a step with data parallelism")
    keys = [*mlperf.KEYS, "accumulation"]
    table = pl.read_csv(folder / "families.csv", infer_schema_length=None)
    known = table.filter(pl.col("benchmark").is_in(list(mlperf.SHAPES)) & pl.col("data_parallel").is_not_null())
    merged = known.group_by([*keys, "gpus", "data_parallel"]).agg(pl.col("step_median").median())
    families = (f.sort("gpus") for f in merged.partition_by(keys) if f["gpus"].n_unique() > 1)
    for family in sorted(families, key=lambda f: f["gpus"][0]):
        first, *others = family.to_dicts()
        factor = mlperf.fit_factor(*mlperf.write_step(first), first["step_median"])
        for row in others:
            predicted = mlperf.step_seconds(*mlperf.write_step(row), factor) / first["step_median"] - 1
            measured = row["step_median"] / first["step_median"] - 1
            grown = f"dp {first['data_parallel']:.0f} -> {row['data_parallel']:.0f} ({row['gpus']} GPUs)"
            name = f"{row['benchmark']:<13} {row['accelerator'][-22:]:<22}"
            print(f"  {name} {grown}: measured {measured:+.2%}, predicted {predicted:+.2%}", flush=True)


if __name__ == "__main__":
    main()
