"""One GPU, a model of a billion random parameters, 16 tasks: Prism against one process per task.

    python proving/benchmarks/evaluate_gpu.py                 # needs torch, transformers, safetensors and numpy only
    python proving/benchmarks/evaluate_gpu.py --small --cpu   # the same on a CPU with a tiny model, to see that it runs

Both run the same built-in tasks with the same batch sizes on the same files. "One process per task" is what a queue of
per-dataset jobs does: start Python, load the model from the file system, infer, score on the CPU while the GPU waits,
end. Prism copies the model into shared memory once, keeps it on the GPU over all tasks, and scores beside inference.
The page cache is warm for both. GPU busy: mean of `nvidia-smi` utilization, sampled every 0.2 s over the makespan;
inferring: seconds inside inference over the makespan, each side's own clock. Scores must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))


from machine import describe_machine
from prism.evaluate.evaluation import EvaluateConfig, evaluate
from prism.evaluate.run.adapters import open_adapter
from prism.evaluate.run.adapters.adapter import WorkerCache
from prism.evaluate.run.checkpoints.folder import inspect_folder
from prism.evaluate.run.engines.local import LocalEngine
from prism.evaluate.schedule.trials import Checkpoint, Dataset

_SHAPES = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 32768, "max_position_embeddings": 2048},
    "small": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The fields of a plan's hardware; the class in `plan_file` needs polars, which this benchmark does without."""

    device: str = "auto"
    gpus_per_worker: int = 1
    workers: int | None = 1
    score_cpus: int | None = 4
    shared_memory_gb: float | None = None
    storage_gbps: float | None = None
    storage_total_gbps: float | None = None
    peer_gbps: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The fields of a plan that `evaluate` reads."""

    checkpoints: tuple[Checkpoint, ...]
    datasets: tuple[Dataset, ...]
    hardware: Hardware = field(default_factory=Hardware)
    assets: str | None = None
    base: str | None = None


def make_datasets(scale: float) -> tuple[Dataset, ...]:
    """16 tasks of uneven size: choices and texts, generation, and code that is executed to be scored."""
    kinds: list[tuple[str, int, int, dict[str, Any]]] = [
        ("arithmetic", 175, 24, {}),
        ("order", 150, 24, {}),
        ("text", 225, 120, {}),
        ("copy", 96, 40, {"generate": 32}),
        ("code", 24, 40, {"generate": 24}),
    ]
    out = []
    for number in range(16):
        task, samples, length, settings = kinds[number % len(kinds)]
        size = max(2, round(samples * scale * (0.5 + (number * 7 % 16) / 10)))  # 0.5 to 2 times, in no order
        keys: dict[str, Any] = {"length": length, "batch_size": 64, **settings}
        out.append(
            Dataset(
                name=f"{number:02d}-{task}",
                adapter="builtin",
                task=task,
                samples=size,
                tokens=4 * length,
                settings=keys,
            )
        )
    return tuple(out)


def write_model(folder: Path, shape: dict[str, int], device: str) -> int:
    """Save a random Llama, in bfloat16 for a GPU; its number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if device != "cpu" else torch.float32)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def run_one(model: Path, dataset: Dataset, device: str) -> dict[str, Any]:
    """What a process of its own does for one task."""
    adapter, cache = open_adapter(dataset.adapter), WorkerCache(device=device)
    start = time.monotonic()
    adapter.prepare(dataset, model, cache, 0)
    loaded = time.monotonic()
    outputs = adapter.infer(dataset, model, cache, 0, dataset.samples, 0)
    inferred = time.monotonic()
    scores = json.loads(json.dumps(adapter.score(dataset, cache, outputs, 0)))
    return {"metrics": adapter.combine(dataset, scores), "load_s": loaded - start, "infer_s": inferred - loaded,
            "score_s": time.monotonic() - inferred}  # fmt: skip


class Utilization:
    """Samples the GPU's utilization in the background."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
        try:
            self._process = subprocess.Popen(command, stdout=self._file, stderr=subprocess.DEVNULL)
        except OSError:
            self._process = None

    def stop(self) -> float | None:
        """The mean, in percent; None where there is no GPU."""
        if self._process is None:
            return None
        self._process.terminate()
        self._process.wait()
        self._file.seek(0)
        found = [float(line) for line in self._file.read().split() if line.strip().replace(".", "").isdigit()]
        return statistics.mean(found) if found else None


def measure_ours(model: Path, datasets: tuple[Dataset, ...], folder: Path) -> dict[str, Any]:
    """The whole set through Prism."""
    plan: Any = Plan(checkpoints=(inspect_folder(model),), datasets=datasets)
    sampler, start = Utilization(), time.monotonic()
    printed = folder.parent / "workers.log"
    done = evaluate(
        plan, lambda: LocalEngine(log=printed), EvaluateConfig(folder=folder, say=lambda text: print(f"  {text}"))
    )
    wall = time.monotonic() - start
    if done.found.problems:
        raise SystemExit(f"{done.found.problems[0].text}\n{printed.read_text()[-4000:]}")
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    phases = {
        p: sum(x["end_ns"] - x["start_ns"] for x in lines if x["phase"] == p) / 1e9 for p in ("load", "infer", "score")
    }
    infer = [x for x in lines if x["phase"] == "infer"]
    first_end = min(x["end_ns"] for x in infer)
    steady = sum(x["end_ns"] - x["start_ns"] for x in infer if x["end_ns"] != first_end)
    span = max(x["end_ns"] for x in infer) - first_end
    metrics = {dataset: values for (_, dataset), values in done.found.metrics.items()}
    return {
        "wall_s": wall,
        "busy_pct": sampler.stop(),
        "phases": phases,
        "metrics": metrics,
        "trials": done.found.num_trials,
        "parts": len(infer),
        "steady_pct": 100 * steady / max(1, span),
    }


def measure_processes(
    model: Path, datasets: tuple[Dataset, ...], args: argparse.Namespace, deadline: float
) -> dict[str, Any]:
    """Each task in a process of its own, one after the other."""
    sampler, start = Utilization(), time.monotonic()
    parts, skipped = {}, 0
    for number, dataset in enumerate(datasets):
        if time.monotonic() > deadline:
            skipped += 1
            continue
        command = [sys.executable, __file__, "--one", str(number), "--model", str(model), "--scale", str(args.scale)]
        ran = subprocess.run(command + (["--cpu"] if args.cpu else []), capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(f"{dataset.name}: {ran.stderr.strip().splitlines()[-1]}")
        parts[dataset.name] = json.loads(ran.stdout.splitlines()[-1])
    wall = time.monotonic() - start
    total = {key: sum(part[key] for part in parts.values()) for key in ("load_s", "infer_s", "score_s")}
    metrics = {name: part["metrics"] for name, part in parts.items()}
    return {"wall_s": wall, "busy_pct": sampler.stop(), "metrics": metrics, "skipped": skipped, **total}


def main() -> None:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="samples, times this")
    parser.add_argument("--limit-s", type=float, default=140.0, help="start no process after so many seconds")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = "cpu" if args.cpu else "cuda:0"
    datasets = make_datasets(args.scale)
    if args.one is not None:
        print(json.dumps(run_one(args.model, datasets[args.one], device)))
        return
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    begin = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="prism-evaluate-gpu-"))
    try:
        # In a process of its own, so that this one holds no GPU memory.
        shape = "small" if args.small else "1B"
        code = f"import sys; sys.path[:0] = {sys.path!r}; import evaluate_gpu as e; from pathlib import Path; "
        code += f"print(e.write_model(Path({str(base / 'step-1')!r}), e._SHAPES[{shape!r}], {device!r}))"
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if made.returncode:
            raise SystemExit(f"the model cannot be made: {made.stderr.strip().splitlines()[-1]}")
        size = sum(p.stat().st_size for p in (base / "step-1").glob("*.safetensors"))
        print(describe_machine(), f"{int(made.stdout.split()[-1]) / 1e9:.2f}B parameters, {size / 1e9:.2f} GB, "
              f"{len(datasets)} tasks, {sum(d.samples for d in datasets)} samples", sep="\n")  # fmt: skip
        ours = measure_ours(base / "step-1", datasets, base / "out")
        theirs = measure_processes(base / "step-1", datasets, args, begin + args.limit_s)
        report(ours, theirs, datasets)
        print(f"whole benchmark {time.monotonic() - begin:.0f} s")
    finally:
        shutil.rmtree(base, ignore_errors=True)


def report(ours: dict[str, Any], theirs: dict[str, Any], datasets: tuple[Dataset, ...]) -> None:
    """Print both and their ratio."""
    done = len(datasets) - theirs["skipped"]
    print(f"\n{'':24}{'makespan':>12}{'GPU busy':>12}{'inferring':>12}{'loading':>12}{'scoring':>12}")
    rows = {
        f"one process per task ({done})": (theirs, theirs["infer_s"], theirs["load_s"], theirs["score_s"]),
        "Prism": (ours, ours["phases"]["infer"], ours["phases"]["load"], ours["phases"]["score"]),
    }
    for name, (side, infer, load, score) in rows.items():
        busy, wall = side["busy_pct"], side["wall_s"]
        shown = f"{busy:.0f} %" if busy is not None else "no GPU"
        print(f"{name:24}{wall:>10.1f} s{shown:>12}{100 * infer / wall:>10.0f} %{load:>10.1f} s{score:>10.1f} s")
    share = f"{ours['steady_pct']:.0f} % of the time"
    print(f"Prism: {ours['trials']} trials, {ours['parts']} parts; after its first part the worker inferred {share}")
    if theirs["skipped"]:
        print(
            f"the limit left out {theirs['skipped']} of {len(datasets)} processes: their makespan is too short by those"
        )
    else:
        print(f"makespan: {theirs['wall_s'] / ours['wall_s']:.2f}x shorter")
    gaps = [
        abs(value - ours["metrics"][name][metric])
        for name, metrics in theirs["metrics"].items()
        for metric, value in metrics.items()
    ]
    print(f"scores: largest difference {max(gaps, default=0.0):.2g} over {len(theirs['metrics'])} tasks")


if __name__ == "__main__":
    main()
