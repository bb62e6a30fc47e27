"""Speed and memory of the workload study beside pandas, how it streams, and how true the generated traces are.

    python proving/benchmarks/characterize.py  # 1.1 million jobs against pandas, and the generator's accuracy
    python proving/benchmarks/characterize.py --stream  # also 50 million rows (needs about 9 GB of disk and 10 minutes)

Every timed side runs in its own process on the same file, reads it from disk, and holds nothing from an earlier run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIDES = ("prism", "pandas")


def main() -> None:
    """Run everything asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--stream", action="store_true", help="also stream --stream-jobs rows")
    parser.add_argument("--stream-jobs", type=int, default=50_000_000)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the traces are written; else a temporary folder"
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure_side(arguments.side, arguments.trace)))
        return
    print(f"machine: {os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}, {versions()}")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        against_pandas(Path(folder), arguments.jobs, arguments.repeat)
        accuracy()
        if arguments.stream:
            stream(Path(folder), arguments.stream_jobs)


def against_pandas(folder: Path, jobs: int, repeat: int) -> None:
    """The full study by Prism and by pandas, in turns, best of `repeat`."""
    path = make_trace(folder, jobs)
    print(f"\n{jobs:,} jobs, {path.stat().st_size / 1e6:.0f} MB of CSV, best of {repeat} runs in turns")
    best: dict[str, dict[str, Any]] = {}
    for _ in range(repeat):
        for side in SIDES:
            run = run_side(side, path)
            if side not in best or run["wall_s"] < best[side]["wall_s"]:
                best[side] = run
    print(f"{'':8} {'study s':>9} {'CPU s':>8} {'process s':>10} {'peak MB':>9} {'imports MB':>11}")
    for side in SIDES:
        r = best[side]
        cells = (
            f"{r['wall_s']:9.2f} {r['cpu_s']:8.2f} {r['process_s']:10.2f} {r['peak_mb']:9.0f} {r['before_mb']:11.0f}"
        )
        print(f"{side:8} {cells}")
    print(f"pandas / prism: {best['pandas']['wall_s'] / best['prism']['wall_s']:.1f}x (target 5x)")
    print(f"under 2 s: {best['prism']['wall_s'] < 2}; under 1 GB: {best['prism']['peak_mb'] < 1000}")
    ours, theirs = best["prism"]["answers"], best["pandas"]["answers"]
    off = {k: abs(ours[k] - theirs[k]) / max(abs(theirs[k]), 1e-9) for k in theirs}
    worst = max(off, key=off.__getitem__)
    print(f"answers compared: {len(off)}, largest relative difference {off[worst]:.1e} ({worst})")
    path.unlink()


def stream(folder: Path, jobs: int) -> None:
    """A trace too long to hold as text."""
    started = time.perf_counter()
    path = make_trace(folder, jobs)
    size = path.stat().st_size / 1e9
    print(f"\n{jobs:,} jobs, {size:.1f} GB of CSV (made in {time.perf_counter() - started:.0f} s, not counted)")
    run = run_side("prism", path)
    print(f"study {run['wall_s']:.1f} s, CPU {run['cpu_s']:.1f} s, peak {run['peak_mb']:.0f} MB")
    print(f"percentiles: {run['percentiles']}")
    print(f"under 2 minutes: {run['wall_s'] < 120}; under 4 GB: {run['peak_mb'] < 4000}")
    path.unlink()


def accuracy() -> None:
    """The published cluster summary against the study of the generated trace."""
    from prism.datacenter.characterize.generator import GeneratorOptions, generate_trace
    from prism.datacenter.characterize.published import find_row

    for cluster in ("seren", "kalos"):
        trace, row = generate_trace(GeneratorOptions(cluster=cluster, seed=1)), find_row(cluster)
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            trace.write_csv(file.name)
            measured = summary_of(Path(file.name))
        print(f"\n{cluster}: published cluster summary and the study of the generated trace ({trace.height:,} jobs)")
        worst = 0.0
        for name, value in measured.items():
            off = 100 * (value / float(row[name] or 1) - 1)
            worst = max(worst, abs(off))
            print(f"  {name:22} {row[name]:>18,.3f} {value:>18,.3f} {off:+8.2f} %")
        print(f"  largest difference {worst:.2f} % (target 3 %)")


def summary_of(path: Path) -> dict[str, float]:
    """The study's answers under the names of the published cluster summary."""
    import polars as pl

    from prism.datacenter.characterize import characterize

    found = characterize(path).study
    s = found.summary
    states = {(r["kind"], r["state"]): r for r in found.states.to_dicts()}
    out: dict[str, Any] = {
        "job_num": s.jobs, "cpu_job_num": s.cpu_jobs, "gpu_job_num": s.gpu_jobs,
        "avg_run_time_gpu": s.duration_s.mean, "avg_que_time_gpu": s.queue_s.mean, "avg_gpu_num": s.mean_gpus,
        "med_run_time_gpu": s.duration_s.median, "med_que_time_gpu": s.queue_s.median, "med_gpu_num": s.median_gpus,
        "max_run_time_gpu": s.duration_s.max, "max_gpu": s.max_gpus,
        "avg_run_time_cpu": s.cpu_duration_s.mean, "avg_que_time_cpu": s.cpu_queue_s.mean,
        "med_run_time_cpu": s.cpu_duration_s.median, "med_que_time_cpu": s.cpu_queue_s.median,
    }  # fmt: skip
    for word, state in (("complete", "completed"), ("cancel", "cancelled"), ("fail", "failed")):
        out[f"{word}_rate_gpu"] = states["gpu", state]["jobs_pct"] / 100
        out[f"{word}_gpu_time"] = states["gpu", state]["gpu_time_s"]
        out[f"{word}_rate_gpu_time"] = states["gpu", state]["gpu_time_pct"] / 100
        out[f"{word}_rate_cpu"] = states["cpu", state]["jobs_pct"] / 100
    assert isinstance(found.sizes, pl.DataFrame)
    return {name: float(value) for name, value in out.items()}


def make_trace(folder: Path, jobs: int) -> Path:
    """A synthetic Seren trace on disk."""
    from prism.datacenter.characterize.generator import GeneratorOptions, write_trace

    path = folder / f"trace-{jobs}.csv"
    write_trace(GeneratorOptions(cluster="seren", jobs=jobs, seed=1), path)
    return path


def run_side(side: str, path: Path) -> dict[str, Any]:
    """One side in its own process; `process_s` counts the interpreter's start and the imports as well."""
    started = time.perf_counter()
    command = [sys.executable, __file__, "--side", side, "--trace", str(path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {**json.loads(out.strip().splitlines()[-1]), "process_s": time.perf_counter() - started}


def measure_side(side: str, path: Path) -> dict[str, Any]:
    """Time the study alone, after imports."""
    work = study_with_prism if side == "prism" else study_with_pandas
    importlib.import_module("prism.datacenter.characterize" if side == "prism" else "pandas")
    before = peak_mb()
    cpu, wall = time.process_time(), time.perf_counter()
    answers = work(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    kind = answers.pop("percentiles", "exact")
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": peak_mb(),
        "before_mb": before,
        "answers": answers,
        "percentiles": kind,
    }


def study_with_prism(path: Path) -> dict[str, Any]:
    """Everything that `prism characterize` measures."""
    import polars as pl

    from prism.datacenter.characterize import CharacterizeOptions, characterize

    found = characterize(path, CharacterizeOptions(gpus=2288)).study
    lengths = found.lengths
    answers: dict[str, Any] = {
        f"{m}/{by}/{g}/{p}": v
        for m, by, g, *values in lengths.select("measure", "by", "group", *PERCENTS, "mean").iter_rows()
        for p, v in zip((*PERCENTS, "mean"), values, strict=True)
    }
    answers |= {
        f"state/{s}": v
        for s, v in found.states.filter(pl.col("kind") == "gpu").select("state", "gpu_time_pct").iter_rows()
    }
    answers |= {f"type/{t}": v for t, v in found.types.select("type", "gpu_time_pct").iter_rows()}
    answers |= {f"size/{g:g}": v for g, v in found.sizes.select("gpus", "gpu_time_ge_pct").iter_rows()}
    answers |= {f"hour/{w}/{h}": v for w, h, v in found.arrivals.iter_rows()}
    answers |= {f"reason/{r}": v for r, v in found.failures.select("reason", "ttf_median_s").iter_rows()}
    assert found.capacity is not None
    answers["gini"] = found.concentration.gini_gpu_time
    answers["allocated"] = found.capacity.allocated_pct
    answers["blocked"] = found.capacity.idle_while_waiting_gpu_hours
    answers["percentiles"] = "exact" if found.exact else "rounded"
    return answers


PERCENTS = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def study_with_pandas(path: Path) -> dict[str, float]:
    """The same statistics as a pandas user writes them: the same tables, curves and checks."""
    import hashlib

    import numpy as np
    import pandas as pd

    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    jobs = pd.read_csv(path)
    for name in ("submit_time", "start_time", "end_time"):
        jobs[name] = pd.to_datetime(jobs[name], format="%Y-%m-%d %H:%M:%S%z")
    jobs["duration_s"] = (jobs.end_time - jobs.start_time).dt.total_seconds()
    jobs["queue_s"] = (jobs.start_time - jobs.submit_time).dt.total_seconds()
    jobs["gpu_s"] = jobs.gpu_num * jobs.duration_s
    jobs["state"] = jobs.state.str.lower()
    check_with_pandas(jobs)
    gpu, cpu = jobs[jobs.gpu_num > 0].copy(), jobs[jobs.gpu_num == 0]
    gpu["size"] = 2 ** np.ceil(np.log2(gpu.gpu_num)).astype(int)
    gpu["all"] = "all"
    answers: dict[str, float] = {}
    for measure in ("duration_s", "queue_s"):
        cpu[measure].describe(percentiles=list(PERCENTS.values()))
        for by in ("all", "type", "size", "state"):
            groups = gpu.groupby(by)[measure]
            found = groups.quantile(list(PERCENTS.values())).unstack()
            found.columns = list(PERCENTS)
            found = found.join(groups.agg(["mean", "min", "max", "count"]))
            for group, row in found.to_dict("index").items():
                answers |= {f"{measure}/{by}/{group}/{name}": float(row[name]) for name in (*PERCENTS, "mean")}
            for _, values in groups:
                ordered = np.sort(values.to_numpy())
                at = np.geomspace(max(ordered[0], 1), max(ordered[-1], 1), 120)
                np.searchsorted(ordered, at, side="right") / len(ordered)
    total = gpu.gpu_s.sum()
    for by in ("state", "type"):
        counts = gpu.groupby(by).agg(n=("gpu_s", "size"), t=("gpu_s", "sum"))
        answers |= {f"{by}/{k}": 100 * v / total for k, v in counts.t.items()}
    cpu.groupby("state").size()
    sizes = gpu.groupby("gpu_num").agg(n=("gpu_s", "size"), t=("gpu_s", "sum"))
    above = 100 * sizes[::-1].cumsum()[::-1] / sizes.sum()
    answers |= {f"size/{k:g}": v for k, v in above.t.items()}
    heat = jobs.groupby([jobs.submit_time.dt.day_of_week + 1, jobs.submit_time.dt.hour]).size()
    answers |= {f"hour/{w}/{h}": float(v) for (w, h), v in heat.items()}
    failed = gpu[gpu.state == "failed"]
    jobs.groupby(jobs.submit_time.dt.date).size()
    failed.groupby(failed.end_time.dt.date).size()
    reasons = failed.groupby("reason").agg(
        n=("gpu_s", "size"),
        g=("gpu_num", "mean"),
        m=("duration_s", "mean"),
        p=("duration_s", "median"),
        t=("gpu_s", "sum"),
    )
    answers |= {f"reason/{k}": v for k, v in reasons.p.items()}
    users = jobs.groupby("user").agg(n=("gpu_s", "size"), t=("gpu_s", "sum")).t.sort_values().to_numpy()
    n = len(users)
    answers["gini"] = float(2 * (np.arange(1, n + 1) * users).sum() / (n * users.sum()) - (n + 1) / n)
    busy, waiting = held(gpu, "start_time", "end_time"), held(gpu, "submit_time", "start_time")
    index = np.arange(jobs.submit_time.min().timestamp() // 900, jobs.end_time.max().timestamp() // 900 + 1)
    busy, waiting = (s.reindex(index, fill_value=0) for s in (busy, waiting))
    answers["allocated"] = float(100 * busy.mean() / 2288)
    answers["blocked"] = float(np.minimum((2288 - busy).clip(lower=0), waiting).sum() / 4)
    return answers


def check_with_pandas(jobs: Any) -> None:
    """The traps that the study looks for: repeated ids, contradicting columns, times that run backwards."""
    turnaround = (jobs.end_time - jobs.submit_time).dt.total_seconds()
    assert jobs.job_id.is_unique
    assert not (jobs.duration_s < 0).any() and not (jobs.queue_s < 0).any()
    waited = jobs.queue_s > 1
    assert not (
        waited & ((jobs.duration - turnaround).abs() <= 1) & ((jobs.duration - jobs.duration_s).abs() > 1)
    ).any()
    assert not ((jobs.gpu_time - jobs.gpu_s).abs() > 0.01 * jobs.gpu_s + jobs.gpu_num).any()
    assert set(jobs.state.unique()) <= {"completed", "failed", "cancelled"}
    jobs.type.unique()


def held(gpu: Any, enter: str, leave: str) -> Any:
    """Mean GPUs held per quarter hour between two moments of every job."""
    import numpy as np
    import pandas as pd

    parts = []
    for name, sign in ((enter, 1), (leave, -1)):
        at = gpu[name].astype("int64") // (
            10**9 if gpu[name].dt.unit == "ns" else 10 ** {"us": 6, "ms": 3, "s": 0}[gpu[name].dt.unit]
        )
        parts.append(
            pd.DataFrame({"bin": at // 900, "n": sign * gpu.gpu_num, "s": sign * gpu.gpu_num * (900 - at % 900)})
        )
    bins = pd.concat(parts).groupby("bin").sum()
    bins = bins.reindex(np.arange(bins.index.min(), bins.index.max() + 1), fill_value=0)
    out = bins.n.cumsum().shift(fill_value=0) + bins.s / 900
    out.index = out.index.astype(float)
    return out


def peak_mb() -> float:
    """The most memory this process has held since it started; unlike getrusage, not what its parent held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def versions() -> str:
    """Versions of what is compared."""
    import pandas as pd
    import polars as pl

    return f"Python {platform.python_version()}, polars {pl.__version__}, pandas {pd.__version__}"


if __name__ == "__main__":
    main()
