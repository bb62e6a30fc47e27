"""`prism estimate` judged by MLPerf Training's published runs, and the layer times that are fitted on a few of them.

Per family of GPUs and precision three shares are fitted: of the peak that matrix products reach, how often activations
cross memory, and how often more with adapters (LoRA, which the command does not offer). Attention's share is the one
measured in BF16 on an H200. Fitted on: of each model the smallest run of the newest round. Everything else is scored as
it is (`scored`), and once more with all runs of its own model left out of the fit (`new model`). BF16 has no published
runs: it is fitted on layers timed on one H200 (`data/layer_times.json`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import lsq_linear

from emulate_mlperf import read_known
from mlperf_steps import SHAPES, job_of
from prism.estimate.estimation import EstimateConfig, measure_sizes, solve_step
from prism.estimate.gpus import find_gpu
from prism.estimate.layers import LayerWork, count_work
from prism.simulate.cluster_file import load_cluster
from prism.simulate.plans.job import Job
from prism.simulate.plans.sizes import RankSizes

HERE = Path(__file__).resolve().parent
CLUSTERS = {"H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200", "GB200": "gb200-nvl72"}
FAMILIES = {"hopper": ("H100", "H200"), "blackwell": ("B200", "GB200")}
ATTENTION = 0.34  # of BF16's peak, forward and backward; measured by `emulate_layers.py` on an H200
LORA_RANK = 16
LEAST_COMPUTE = 0.4  # share of a step; a run that mostly waits says little about layers


@dataclass(slots=True)
class Run:
    """One published run, and the time of a layer that its step implies."""

    row: dict[str, Any]
    gpu: str
    config: EstimateConfig
    job: Job
    sizes: RankSizes
    layer_ns: float = 0.0  # forward and backward of one micro-batch
    compute: float = 0.0  # share of the step

    @property
    def is_lora(self) -> bool:
        """Whether only adapters are trained."""
        return "lora" in self.job.id

    @property
    def name(self) -> str:
        """For the table."""
        row, job = self.row, self.job
        layout = f"{job.tp}/{job.pp}/{job.cp}/{job.micro_batch}"
        return f"{row['benchmark']:16} {row['round']} {self.gpu:5} {row['precision']} {layout:8} x {int(row['gpus']):6}"

    def step_s(self, factor: float) -> float:
        """A step with compute scaled."""
        scaled = {key: getattr(self.sizes, key) * factor for key in ("forward_ns", "backward_ns", "logits_ns")}
        return solve_step(self.config, self.job, replace(self.sizes, **scaled)) / 1e9

    def work(self) -> list[float]:
        """Nanoseconds at full speed: matrix products, memory, the same for adapters, and attention at its share."""
        speed, gpu = self.config.gpu.speed(self.row["precision"]), self.config.gpu
        work = count_work(self.job.model, self.job.micro_batch * self.job.model.seq // self.job.cp, self.job.tp)
        return features(work, speed.peak_flops, gpu.bf16_flops, gpu.memory_bytes_per_s, lora=self.is_lora)


def features(work: LayerWork, peak: float, bf16: float, memory: float, *, lora: bool) -> list[float]:
    """The parts of one layer, forward and backward."""
    times = 2 if lora else 3
    moved = times * (work.wide_bytes + 2 * work.full_bytes) / memory
    parts = (times * work.linear_flops / peak, moved, moved * lora, 3.5 * work.attention_flops / bf16)
    return [1e9 * part for part in parts]


def gpu_of(accelerator: str) -> str:
    """The kind of GPU, the longer name first."""
    return next(gpu for gpu in ("GB200", "B200", "H200", "H100") if gpu in accelerator)


def read_runs(folder: Path, most_gpus: int) -> list[Run]:
    """Published runs, submitters of one machine and layout together."""
    keys = ["benchmark", "round", "gpu", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel"]
    keys += ["micro_batch", "precision", "gpus", "accumulation", "data_parallel"]
    known = read_known(folder, most_gpus)
    known = known.with_columns(pl.col("accelerator").map_elements(gpu_of, return_dtype=pl.String).alias("gpu"))
    merged = known.group_by(keys).agg(pl.col("step_median").median(), pl.col("peak_memory_gib").median()).sort(keys)
    return [make_run(row) for row in merged.to_dicts()]


def make_run(row: dict[str, Any]) -> Run:
    """The run as `prism estimate` sees it."""
    gpu = row["gpu"]
    job = job_of({**row, "accelerator": gpu})
    config = EstimateConfig(
        model=SHAPES[row["benchmark"]], gpus=job.num_gpus, cluster=load_cluster(CLUSTERS[gpu]), gpu=find_gpu(gpu),
        precision=row["precision"],
    )  # fmt: skip
    sizes = measure_sizes(config, job)
    if "lora" in job.id:
        shape = job.model
        widths = 4 * shape.hidden + 2 * shape.hidden * shape.kv_heads // shape.heads + 3 * (shape.hidden + shape.ffn)
        sizes = replace(sizes, layer_params=LORA_RANK * widths // job.tp, embedding_params=0, optimizer_ns=0.0)
        sizes = replace(sizes, backward_ns=sizes.forward_ns)
    if job.id == "llama31_405b":
        sizes = replace(sizes, logits_ns=0.0)  # the embedding and the loss each take a place of a layer
    return Run(row=row, gpu=gpu, config=config, job=job, sizes=sizes)


def infer_layer(run: Run) -> None:
    """The compute at which the estimate is the measured step, by secants."""
    measured = run.row["step_median"]
    before, factor = 1.0, 0.7
    at_before, at = run.step_s(before), run.step_s(factor)
    for _ in range(4):
        if abs(at / measured - 1) < 1e-3 or at == at_before:
            break
        step = (measured - at) * (factor - before) / (at - at_before)
        before, at_before, factor = factor, at, max(0.02, factor + step)
        at = run.step_s(factor)
    run.layer_ns = factor * (run.sizes.forward_ns + run.sizes.backward_ns)
    run.compute = 1 - run.step_s(0.01) / measured


def fit(runs: Sequence[Run]) -> list[float]:
    """Times of matrix products, memory and adapters over those at full speed; attention is known."""
    rows, goals = [], []
    for run in runs:
        linear, moved, adapters, attention = run.work()
        rows.append([linear / run.layer_ns, moved / run.layer_ns, adapters / run.layer_ns])
        goals.append(1 - attention / ATTENTION / run.layer_ns)
    found = lsq_linear(np.array(rows), np.array(goals), bounds=((1 / 0.95, 0, 0), (5, 60, 60))).x
    return [float(x) for x in found]


def error_pct(run: Run, fitted: Sequence[float]) -> float:
    """Of the step, if its layers took as long as fitted."""
    linear, moved, adapters, attention = run.work()
    layer = linear * fitted[0] + moved * fitted[1] + adapters * fitted[2] + attention / ATTENTION
    factor = layer / (run.sizes.forward_ns + run.sizes.backward_ns)
    return (run.step_s(factor) / run.row["step_median"] - 1) * 100


def choose_fitted(runs: Sequence[Run]) -> list[Run]:
    """Of each model the smallest run of the newest round that computes most of the time."""
    busy = [run for run in runs if run.compute >= LEAST_COMPUTE]
    models = dict.fromkeys(run.job.id for run in busy)
    newest = {model: max(run.row["round"] for run in busy if run.job.id == model) for model in models}
    return [
        min((r for r in busy if r.job.id == m and r.row["round"] == newest[m]), key=lambda r: r.row["gpus"])
        for m in models
    ]


def show_family(name: str, runs: Sequence[Run]) -> list[float]:
    """Fit, score and print; the errors of what was not fitted."""
    chosen = choose_fitted(runs)
    fitted = fit(chosen)
    print(f"\n{name}: linear {1 / fitted[0]:.3f} of the peak, attention {ATTENTION}, passes {fitted[1]:.2f}")
    errors, new = [], []
    for run in runs:
        error = error_pct(run, fitted)
        others = [r for r in chosen if r.job.id != run.job.id]
        alone = error_pct(run, fit(others)) if others and not run.is_lora else None
        mark = "fitted" if run in chosen else "scored"
        errors += [abs(error)] if mark == "scored" else []
        new += [abs(alone)] if alone is not None else []
        shown = "" if alone is None else f"   new model {alone:+6.1f} %"
        print(f"  {run.name} {run.row['step_median']:8.3f} s  {mark} {error:+6.1f} %{shown}", flush=True)
    for label, found in (("scored", errors), ("new model", new)):
        if found:
            within = f"within 10 %: {sum(e <= 10 for e in found)} of {len(found)}"
            print(f"  {label}: median {np.median(found):.1f} %, 95 % within {np.quantile(found, 0.95):.1f} %, {within}")
    return errors


def fit_bf16() -> None:
    """The same shares from layers timed on one H200, forward and backward together."""
    rows, goals, names = [], [], []
    for layer in json.loads((HERE / "data" / "layer_times.json").read_text())["layers"]:
        shape = SHAPES[layer["model"]]
        cp, micro = layer["context_parallel"], layer["micro_batch"]
        work = count_work(shape, micro * shape.seq // cp, layer["tensor_parallel"])
        parts = features(work, 989e12, 989e12, 4.8e12, lora="lora" in layer["model"])
        whole = layer["forward_ns"] + layer["backward_ns"]
        rows.append([part / whole for part in parts])
        goals.append(1.0)
        names.append((layer["model"], layer["tensor_parallel"], cp, micro))
    found = lsq_linear(np.array(rows), np.array(goals), bounds=((1 / 0.95, 0, 0, 1), (5, 80, 60, 6))).x
    print(f"bf16 on one H200: linear {1 / found[0]:.3f}, passes {found[1]:.2f}, attention {1 / found[3]:.3f}")
    for name, row in zip(names, rows, strict=True):
        print(f"  {name}: {(np.dot(row, found) - 1) * 100:+.1f} %")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with families.csv")
    parser.add_argument("--most-gpus", type=int, default=12_000)
    args = parser.parse_args()
    fit_bf16()
    runs = read_runs(args.folder, args.most_gpus)
    for run in runs:
        infer_layer(run)
    everything: list[float] = []
    for family, gpus in FAMILIES.items():
        for precision in ("fp8", "fp4"):
            own = [run for run in runs if run.gpu in gpus and run.row["precision"] == precision]
            everything += show_family(f"{family} {precision}", own) if own else []
    print(
        f"\nall that were not fitted: {len(everything)} runs, median {np.median(everything):.1f} %, within 10 %: "
        f"{sum(e <= 10 for e in everything)}"
    )


if __name__ == "__main__":
    main()
