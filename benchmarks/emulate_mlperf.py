"""Step times of published MLPerf runs, predicted from the smallest run of each family, beside the trivial law.

A family is one submitter's model, GPU and layout (tensor, pipeline, virtual stages, context, micro-batch, precision) on
growing numbers of GPUs. The graph of a step is written from the run's own configuration, its communication priced by
the NCCL model of the cluster, and one compute factor is fitted on the run with fewest GPUs; nothing else is fitted.
The trivial law, a + b x micro-batches per step, is fitted on the two runs that differ most in micro-batches.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from prism.scenarios.job import Job  # noqa: E402
from prism.scenarios.layout import lay_out  # noqa: E402
from prism.scenarios.model import MODELS  # noqa: E402
from prism.scenarios.program import build_step  # noqa: E402
from prism.scenarios.sizes import size_up  # noqa: E402
from prism.simulate.cluster_file import load_cluster  # noqa: E402
from prism.simulate.costs import ClusterCosts  # noqa: E402
from prism.simulate.graph import Graph, repeat_graph  # noqa: E402
from prism.simulate.solving.solver import solve  # noqa: E402

KEYS = [
    "benchmark", "round", "submitter", "accelerator", "tensor_parallel", "pipeline_parallel", "virtual_pipeline",
    "context_parallel", "micro_batch", "precision",
]  # fmt: skip
SHAPES = {
    "gpt3": replace(MODELS["gpt-175b"], seq=2048),
    # 126 layers; Megatron counts the embedding and the loss as one layer each when it cuts stages.
    "llama31_405b": MODELS["llama-405b"],
    "llama31_8b": MODELS["llama-8b"],
}
PRESETS = {"H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200", "A100": "dgx-a100"}
STEPS = 3  # solved in a row; the last is a step of a running job
SMALLEST_FACTOR = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, its measured step and what was predicted."""

    family: str
    gpus: int
    microbatches: int
    data_parallel: int
    measured_s: float
    predicted_s: float | None
    law_s: float | None
    fitted: bool

    def error_pct(self) -> float | None:
        """Of our prediction."""
        return None if self.predicted_s is None else (self.predicted_s / self.measured_s - 1) * 100

    def law_error_pct(self) -> float | None:
        """Of the trivial law."""
        return None if self.law_s is None else (self.law_s / self.measured_s - 1) * 100


def read_families(folder: Path, most_gpus: int) -> list[pl.DataFrame]:
    """Families of known shape with several sizes."""
    table = pl.read_csv(folder / "families.csv", infer_schema_length=None)
    known = table.filter(pl.col("benchmark").is_in(list(SHAPES)) & pl.col("data_parallel").is_not_null())
    known = known.filter((pl.col("gpus") <= most_gpus) & (pl.col("accumulation") >= 1))
    merged = known.group_by([*KEYS, "gpus", "accumulation", "data_parallel"]).agg(pl.col("step_median").median())
    families = merged.partition_by(KEYS, maintain_order=False)
    return sorted(
        (f.sort("gpus") for f in families if f["gpus"].n_unique() > 1), key=lambda f: [str(v) for v in f.row(0)[:4]]
    )


def write_step(row: dict[str, Any]) -> tuple[Graph, ClusterCosts]:
    """The graph of one step at the GPU's full speed, and what its communication costs."""
    shape = SHAPES[row["benchmark"]]
    gpu = next(name for name in PRESETS if name in row["accelerator"])
    gpus = int(row["gpus"])
    chunks = int(row["virtual_pipeline"] or 1)
    job = Job(
        id=row["benchmark"],
        model=shape,
        dp=int(row["data_parallel"]),
        tp=int(row["tensor_parallel"]),
        pp=int(row["pipeline_parallel"]),
        cp=int(row["context_parallel"]),
        sharding="zero1",
        microbatches=int(row["accumulation"]),
        micro_batch=int(row["micro_batch"]),
        schedule="interleaved" if chunks > 1 and row["pipeline_parallel"] > 1 else "1f1b",
        virtual_stages=max(chunks, 1),
        efficiency=1.0,
        grad_bytes=2 if row["precision"] == "fp8" else 4,
        gap_ms=0.0,
    )
    cluster = load_cluster(PRESETS[gpu])
    per_host = cluster.gpus_per_host
    cluster = replace(cluster, num_hosts=max(cluster.num_hosts, -(-gpus // per_host)))
    ranks = np.arange(gpus)
    layout = lay_out(job, ranks // per_host, ranks % per_host)
    return repeat_graph(build_step(layout, size_up(job, gpu)), STEPS), ClusterCosts(cluster, None)


def step_seconds(graph: Graph, costs: ClusterCosts, factor: float) -> float:
    """A step with compute scaled by the factor."""
    timed = pl.col("kind").is_in(["compute", "host"])
    scaled = pl.when(timed).then((pl.col("duration_ns") * factor).round().cast(pl.Int64)).otherwise("duration_ns")
    return (
        float(solve(replace(graph, ops=graph.ops.with_columns(scaled.alias("duration_ns"))), costs).step_ns[-1]) / 1e9
    )


def fit_factor(graph: Graph, costs: ClusterCosts, measured_s: float) -> float:
    """The compute factor at which the step takes as long as measured."""
    # A step is nearly linear in the factor, so a few secants are enough.
    before, factor = 1.0, 0.8
    at_before = step_seconds(graph, costs, before)
    for _ in range(5):
        at = step_seconds(graph, costs, factor)
        if abs(at / measured_s - 1) < 1e-5 or at == at_before:
            break
        slope = (at - at_before) / (factor - before)
        before, at_before, factor = factor, at, max(SMALLEST_FACTOR, factor + (measured_s - at) / slope)
    return factor


def predict_family(family: pl.DataFrame) -> list[Row]:
    """All runs of a family from its smallest one."""
    rows = family.to_dicts()
    name = " ".join(str(rows[0][key]) for key in KEYS)
    law = _fit_law(family)
    factor = fit_factor(*write_step(rows[0]), rows[0]["step_median"])
    out = []
    for number, row in enumerate(rows):
        predicted = row["step_median"] if number == 0 else step_seconds(*write_step(row), factor)
        a, b = law or (0.0, 0.0)
        used = law is None or row["accumulation"] in (family["accumulation"].min(), family["accumulation"].max())
        out.append(
            Row(
                family=f"{name} (factor {factor:.3f})",
                gpus=int(row["gpus"]),
                microbatches=int(row["accumulation"]),
                data_parallel=int(row["data_parallel"]),
                measured_s=float(row["step_median"]),
                predicted_s=predicted,
                law_s=None if used else a + b * row["accumulation"],
                fitted=number == 0,
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with families.csv")
    parser.add_argument("--most-gpus", type=int, default=12_000)
    parser.add_argument("--only", default="", help="families whose names contain this")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    rows: list[Row] = []
    for family in read_families(args.folder, args.most_gpus):
        if args.only not in " ".join(str(v) for v in family.row(0)):
            continue
        try:
            found = predict_family(family)
        except Exception as error:  # a layout that cannot be written is listed, and the others go on
            print(f"{' '.join(str(v) for v in family.row(0)[:10])}: not predicted ({error})")
            continue
        print(found[0].family)
        for row in found:
            ours = "(fitted)" if row.fitted else f"{row.error_pct():+6.2f} %"
            law = "" if row.law_error_pct() is None else f"{row.law_error_pct():+6.2f} %"
            print(
                f"  {row.gpus:6} GPUs  dp {row.data_parallel:4}  {row.microbatches:4} micro-batches  "
                f"{row.measured_s:8.3f} s  predicted {row.predicted_s:8.3f} s  {ours:>9}  law {law:>9}",
                flush=True,
            )
        rows += found
    errors = [abs(r.error_pct() or 0) for r in rows if not r.fitted]
    laws = [abs(r.law_error_pct() or 0) for r in rows if r.law_s is not None]
    if errors:
        print(f"ours: mean {np.mean(errors):.2f} %, largest {np.max(errors):.2f} % over {len(errors)} runs")
    if laws:
        print(f"law (two runs fitted): mean {np.mean(laws):.2f} %, largest {np.max(laws):.2f} % over {len(laws)} runs")
    if args.output:
        args.output.write_text(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
