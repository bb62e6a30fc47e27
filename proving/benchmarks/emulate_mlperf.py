"""Published MLPerf runs, predicted from the smallest run of each family, beside the trivial law.

A family is one submitter's model, GPU and layout (tensor, pipeline, virtual stages, context, micro-batch, precision) on
growing numbers of GPUs. One compute factor is fitted on the run with fewest GPUs; nothing else of the family is used.
Compute is slower beside collectives by a published factor (`solving/overlap.py`), and the table is printed without that
too. `slowest` adds that a step waits for the slowest of its GPUs: how much GPUs differ is fitted on the other families.
The trivial law, a + b x micro-batches per step, is fitted on the two runs that differ most in micro-batches.
Then: other layouts from one run's factor, absolute times from another model's factor, memory, and tails of steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mlperf_steps import (
    SHAPES,
    fit_factor,
    gpu_of,
    layer_of,
    slowest_of,
    state_gib,
    step_seconds,
    write_step,
)
from prism.errors import PrismError
from prism.simulate.solving.overlap import SLOWER

KEYS = [
    "benchmark",
    "round",
    "submitter",
    "accelerator",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "context_parallel",
    "micro_batch",
    "precision",
]
LAYOUT = KEYS[4:9]
FACTORS = (1.0, SLOWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, its measured step and what was predicted."""

    family: str
    benchmark: str
    gpus: int
    microbatches: int
    data_parallel: int
    factor: float
    measured_s: float
    predicted_s: float
    law_s: float | None
    fitted: bool
    slower: float  # standard deviations by which the slowest GPU is further out than in the fitted run

    def error_pct(self, spread: float = 0.0) -> float:
        """Of our prediction, if GPUs differ by that spread."""
        return (self.predicted_s * (1 + spread * self.slower) / self.measured_s - 1) * 100

    def law_error_pct(self) -> float | None:
        """Of the trivial law."""
        return None if self.law_s is None else (self.law_s / self.measured_s - 1) * 100


def read_known(folder: Path, most_gpus: int) -> pl.DataFrame:
    """Runs whose model and layout are known, one row per layout and number of GPUs."""
    table = pl.read_csv(folder / "families.csv", infer_schema_length=None)
    known = table.filter(pl.col("benchmark").is_in(list(SHAPES)) & pl.col("data_parallel").is_not_null())
    known = known.filter((pl.col("gpus") <= most_gpus) & (pl.col("accumulation") >= 1))
    known = known.filter(pl.col("accelerator").str.contains("H100-SXM|H200-SXM|B200|GB200"))
    merged = known.group_by([*KEYS, "gpus", "accumulation", "data_parallel"]).agg(
        pl.col("step_median").median(), pl.col("peak_memory_gib").median()
    )
    return merged.sort([*KEYS, "gpus"])


def read_families(known: pl.DataFrame) -> list[pl.DataFrame]:
    """Families with several sizes."""
    families = known.partition_by(KEYS, maintain_order=True)
    return [f.sort("gpus") for f in families if f["gpus"].n_unique() > 1]


def predict_family(family: pl.DataFrame, slower: float = SLOWER) -> list[Row]:
    """All runs of a family from its smallest one; none where its layout cannot be written."""
    try:
        return _predict_family(family, slower)
    except PrismError as error:
        print(f"{' '.join(str(v) for v in family.row(0)[: len(KEYS)])}: not predicted ({error})", flush=True)
        return []


def _predict_family(family: pl.DataFrame, slower: float) -> list[Row]:
    rows = family.to_dicts()
    first = rows[0]
    law = _fit_law(family)
    factor = fit_factor(*write_step(first), first["step_median"], slower)
    out = []
    for number, row in enumerate(rows):
        predicted = row["step_median"] if number == 0 else step_seconds(*write_step(row), factor, slower)
        a, b = law or (0.0, 0.0)
        used = law is None or row["accumulation"] in (family["accumulation"].min(), family["accumulation"].max())
        out.append(
            Row(
                family=" ".join(str(first[key]) for key in KEYS),
                benchmark=row["benchmark"],
                gpus=int(row["gpus"]),
                microbatches=int(row["accumulation"]),
                data_parallel=int(row["data_parallel"]),
                factor=factor,
                measured_s=float(row["step_median"]),
                predicted_s=predicted,
                law_s=None if used else a + b * row["accumulation"],
                fitted=number == 0,
                slower=slowest_of(int(row["gpus"])) - slowest_of(int(first["gpus"])),
            )
        )
    return out


def _fit_law(family: pl.DataFrame) -> tuple[float, float] | None:
    """a and b of a + b x micro-batches, from the runs with fewest and most of them; None where all have as many."""
    low, high = (family.sort("accumulation").row(i, named=True) for i in (0, -1))
    if low["accumulation"] == high["accumulation"]:
        return None
    b = (high["step_median"] - low["step_median"]) / (high["accumulation"] - low["accumulation"])
    return low["step_median"] - b * low["accumulation"], b


def fit_spread(rows: Iterable[Row]) -> float:
    """How much GPUs differ, as a share of a step: the least-squares slope of what was missing over `slower`."""
    pairs = [(row.slower, row.measured_s / row.predicted_s - 1) for row in rows if not row.fitted]
    below = sum(x * x for x, _ in pairs)
    return max(0.0, sum(x * y for x, y in pairs) / below) if below else 0.0


def show_families(rows: Sequence[Row]) -> None:
    """Step times within families."""
    errors, slowest, laws = [], [], []
    for name in dict.fromkeys(row.family for row in rows):
        spread = fit_spread(row for row in rows if row.family != name)
        own = [row for row in rows if row.family == name]
        print(f"{name}: factor {own[0].factor:.3f}, GPUs differ by {spread:.2%} (from the other families)")
        for row in own:
            line = f"  {row.gpus:6} GPUs  dp {row.data_parallel:4}  {row.microbatches:4} micro-batches"
            if row.fitted:
                print(f"{line}  {row.measured_s:8.3f} s  (fitted)")
                continue
            law = row.law_error_pct()
            errors.append(abs(row.error_pct()))
            slowest.append(abs(row.error_pct(spread)))
            laws += [] if law is None else [abs(law)]
            shown = "" if law is None else f"{law:+6.2f} %"
            print(
                f"{line}  {row.measured_s:8.3f} s  predicted {row.predicted_s:8.3f} s  {row.error_pct():+6.2f} %  "
                f"with the slowest GPU {row.error_pct(spread):+6.2f} %  law {shown}"
            )
    for name, found in (("ours", errors), ("with the slowest GPU", slowest), ("law (two runs fitted)", laws)):
        if found:
            within = f"within 2 %: {sum(e <= 2 for e in found)} of {len(found)}"
            print(f"{name}: mean {np.mean(found):.2f} %, largest {np.max(found):.2f} %, {within}")


def predict_layouts(part: pl.DataFrame) -> list[str]:
    """Runs of another layout, from the factor of the smallest run of the same model, GPU, precision and round."""
    lines = []
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for row in part.sort("gpus").to_dicts():
        if layer_of(row) is not None:
            by_gpu.setdefault(row["accelerator"].split("(")[-1][:9], []).append(row)
    for rows in by_gpu.values():
        first = rows[0]
        others = [r for r in rows if any(r[k] != first[k] for k in LAYOUT)]
        if not others:
            continue
        factor = fit_factor(*write_step(first), first["step_median"])
        lines.append(f"  {_name(first)}: {first['step_median']:.3f} s (fitted, factor {factor:.3f})")
        for row in others:
            predicted = step_seconds(*write_step(row), factor)
            error = (predicted / row["step_median"] - 1) * 100
            lines.append(f"    {_name(row)}: {row['step_median']:.3f} s, predicted {predicted:.3f} s {error:+.1f} %")
    return lines


def show_absolute(rows: Sequence[Row], known: pl.DataFrame) -> None:
    """The smallest run of a family from the factors of other models on the same GPU and precision."""
    print("\nAbsolute, from the median factor of other models on the same GPU and precision")
    firsts = [row for row in rows if row.fitted]
    sources = {(" ".join(str(r[k]) for k in KEYS), int(r["gpus"])): r for r in known.to_dicts()}
    for row in firsts:
        others = [o.factor for o in firsts if o.benchmark != row.benchmark and _machine(o) == _machine(row)]
        if others:
            factor = float(np.median(others))
            predicted = step_seconds(*write_step(sources[row.family, row.gpus]), factor)
            error = (predicted / row.measured_s - 1) * 100
            print(
                f"  {row.family}, {row.gpus} GPUs: {row.measured_s:.3f} s, predicted {predicted:.3f} s {error:+.1f} %"
            )


def _machine(row: Row) -> tuple[str, str]:
    return gpu_of({"accelerator": row.family}), row.family.split()[-1]


def show_memory(known: pl.DataFrame) -> None:
    """Peak memory of runs of one family: what sharding Adam's state over more ranks frees."""
    print("\nMemory, from the smallest run (only the optimizer's shards change)")
    for family in read_families(known.filter(pl.col("peak_memory_gib").is_not_null())):
        first, *others = family.to_dicts()
        if first["benchmark"] == "llama2_70b_lora":
            continue  # its optimizer holds next to nothing, and nothing else changes
        for row in others:
            changed = state_gib(row) - state_gib(first)
            measured = row["peak_memory_gib"] - first["peak_memory_gib"]
            whole = (first["peak_memory_gib"] + changed) / row["peak_memory_gib"] - 1
            print(
                f"  {_name(row)}: {row['peak_memory_gib']:.2f} GiB, {measured:+.2f} from {int(first['gpus'])} GPUs; "
                f"predicted {changed:+.2f} ({(changed / measured - 1) * 100:+.1f} % of the difference, "
                f"{whole * 100:+.2f} % of the whole)"
            )


def show_tails(folder: Path) -> None:
    """p99 over median of single steps: the delay in seconds is the median of the model's other systems."""
    print("\nTails, p99 over median (delay in seconds from the other systems that trained the model in that round)")
    runs = pl.read_csv(folder / "runs.csv", infer_schema_length=None).filter(pl.col("step_kind") == "single")
    delay = (pl.col("step_p99") - pl.col("step_median")).median()
    table = (
        runs.group_by("benchmark", "round", "submitter", "system", "gpus")
        .agg(pl.col("step_median").median(), delay.alias("delay"))
        .sort("benchmark", "round", "gpus")
    )
    errors = []
    for row in table.to_dicts():
        others = table.filter((pl.col("benchmark") == row["benchmark"]) & (pl.col("system") != row["system"]))
        same = others.filter(pl.col("round") == row["round"])
        fitted = (others if same.is_empty() else same)["delay"].median()
        measured = 1 + row["delay"] / row["step_median"]
        predicted = 1 + float(fitted or 0.0) / row["step_median"]  # type: ignore[arg-type]
        errors.append((predicted / measured - 1) * 100)
        print(
            f"  {row['benchmark']:<13} {row['round']} {row['system'][:30]:<30} {row['gpus']:6} GPUs: {measured:.3f}, "
            f"predicted {predicted:.3f} {errors[-1]:+.1f} %"
        )
    print(f"tails within 10 %: {sum(abs(e) <= 10 for e in errors)} of {len(errors)}")


def _name(row: dict[str, Any]) -> str:
    layout = "/".join(str(int(row[k])) for k in LAYOUT)
    return f"{row['benchmark']} {row['round']} {row['submitter']} {gpu_of(row)} x {int(row['gpus'])} {layout}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with families.csv and runs.csv")
    parser.add_argument("--most-gpus", type=int, default=12_000)
    parser.add_argument("--only", default="", help="families whose names contain this")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    known = read_known(args.folder, args.most_gpus)
    show_memory(known)
    show_tails(args.folder)
    known = known.filter(pl.concat_str(KEYS, separator=" ").str.contains(args.only, literal=True))
    families = read_families(known)
    largest = sorted(range(len(families)), key=lambda i: -int(families[i]["gpus"].max()))  # type: ignore[arg-type]
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        found = {(slower, i): pool.submit(predict_family, families[i], slower) for i in largest for slower in FACTORS}
        parts = known.partition_by(["benchmark", "round", "precision"], maintain_order=True)
        layouts = [pool.submit(predict_layouts, part) for part in parts]
        rows: list[Row] = []
        for slower in FACTORS:
            rows = [row for i in range(len(families)) for row in found[slower, i].result()]
            print(f"\nStep times, compute beside collectives {slower:g} times as long (layouts: {', '.join(LAYOUT)})")
            show_families(rows)
        print("\nAnother layout, from one run's factor (the law says nothing here)")
        for lines in layouts:
            for line in lines.result():
                print(line, flush=True)
    show_absolute(rows, known)
    if args.output:
        args.output.write_text(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
