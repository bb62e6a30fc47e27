"""Evaluation beside training on one GPU: how fast it yields, how fast it takes up again, what training lost.

    python proving/benchmarks/evaluate_beside.py  # needs torch, transformers, safetensors, numpy and a GPU
    python proving/benchmarks/evaluate_beside.py --small --cpu   # the same on a CPU, to see that it runs

An evaluation runs on the GPU; a training process starts on the same GPU and works for some seconds; it ends. Twice:
once the evaluation asks the driver who uses the GPU (`--beside-training`), once training asks by the file `give-back`.
Yielded: from the start of the training process until the evaluation's worker is stopped; the process needs some
seconds to import torch before it holds the GPU, so the time from its first step is given too. Taken up: from the end
of training until the next inference begins. Lost: seconds that training's steps took beyond those of training alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from machine import describe_machine


def train(seconds: float, device: str, size: int, log: Path) -> None:
    """A process that trains: a small network on fixed data, the end of every step written down."""
    import torch

    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(size, size), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(size, size, device=device)
    with log.open("w") as file:
        end = None
        while end is None or time.time() < end:
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if device != "cpu":
                torch.cuda.synchronize()
            end = end or time.time() + seconds
            file.write(f"{time.time()}\n")


def run_evaluation(base: Path, *, ask_driver: bool, cpu: bool, scale: float) -> None:
    """A process that evaluates until it is stopped."""
    from evaluate_gpu import Hardware, Plan, make_datasets
    from prism.evaluate.evaluation import EvaluateConfig, evaluate
    from prism.evaluate.run.busy_gpus import BusyGpus
    from prism.evaluate.run.checkpoints.folder import inspect_folder
    from prism.evaluate.run.engines.local import LocalEngine

    plan: Any = Plan(
        checkpoints=(inspect_folder(base / "step-1"),),
        datasets=make_datasets(scale),
        hardware=Hardware(device="cpu" if cpu else "gpu"),
    )
    config = EvaluateConfig(
        folder=base / "out",
        say=lambda text: print(json.dumps([time.time(), text]), flush=True),
        busy_gpus=BusyGpus() if ask_driver else frozenset,
    )
    evaluate(plan, lambda: LocalEngine(log=base / "workers.log"), config)


def infer_times(folder: Path) -> list[tuple[float, float]]:
    """Begin and end of every inference so far."""
    log = folder / "trials.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [(x["start_ns"] / 1e9, x["end_ns"] / 1e9) for x in lines if x["phase"] == "infer"]


def wait_for(what: Any, seconds: float) -> Any:
    """Poll until something is there; None when it does not come."""
    end = time.time() + seconds
    while time.time() < end:
        if found := what():
            return found
        time.sleep(0.05)
    return None


class Turn:
    """One evaluation with one training beside it."""

    def __init__(self, base: Path, options: argparse.Namespace) -> None:
        self.base, self.options = base, options
        self.folder = base / "out"
        self.said = base / "said.jsonl"

    def command(self, *words: str) -> list[str]:
        """This file as another process."""
        flags = ["--cpu"] if self.options.cpu else []
        return [sys.executable, __file__, *words, "--base", str(self.base), "--scale", str(self.options.scale), *flags]

    def train(self, name: str, seconds: float) -> list[float]:
        """Ends of the steps of a training process."""
        log = self.base / name
        subprocess.run(self.command("--train", str(seconds), "--log", str(log)), check=True)
        return [float(line) for line in log.read_text().split()]

    def made_way(self) -> float | None:
        """When the evaluation stopped its worker."""
        lines = [line for line in self.said.read_text().splitlines() if "make way" in line]
        return float(json.loads(lines[0])[0]) if lines else None

    def run(self, *, ask_driver: bool, alone_s: float) -> None:
        """Let both meet, and print what was measured."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with self.said.open("w") as said:
            words = ["--evaluate", *(["--ask-driver"] if ask_driver else [])]
            process = subprocess.Popen(self.command(*words), stdout=said, stderr=subprocess.STDOUT)
        try:
            begun = wait_for(lambda: len(infer_times(self.folder)) >= 3 or process.poll() is not None, 240)
            if not begun or process.poll() is not None:
                print("  the evaluation did not begin:", self.said.read_text()[-1500:])
                return
            self._meet(ask_driver=ask_driver, alone_s=alone_s)
            if process.poll() is not None:
                print("  the evaluation has ended:", self.said.read_text()[-1500:])
        finally:
            process.terminate()
            process.wait()

    def _meet(self, *, ask_driver: bool, alone_s: float) -> None:
        started, asked = time.time(), self.folder / "give-back"
        if not ask_driver:
            asked.write_text("1")
        steps = self.train("steps", self.options.seconds)
        ended = time.time()
        asked.unlink(missing_ok=True)
        made_way = self.made_way()
        if made_way is None:
            print("  the evaluation did not make way within", f"{ended - started:.1f} s of training")
            print(ask("--query-compute-apps=gpu_uuid,pid,name"), self.said.read_text()[-800:])
            return
        gaps = [after - before for before, after in itertools.pairwise(steps)]
        beside = [gap for gap, at in zip(gaps, steps[1:], strict=False) if at <= made_way]
        lost_s = sum(gap - alone_s for gap in gaps if gap > 1.5 * alone_s)
        print(
            f"  yielded {made_way - started:.2f} s after training was started, "
            f"{made_way - steps[0]:+.2f} s from its first step"
        )
        print(
            f"  training: {len(steps)} steps, median {1e3 * statistics.median(gaps):.2f} ms "
            f"(alone {1e3 * alone_s:.2f} ms); {len(beside)} steps beside the evaluation; "
            f"lost {lost_s:.2f} s in steps over 1.5x",
            flush=True,
        )
        again = wait_for(lambda: [begin for begin, _ in infer_times(self.folder) if begin > ended], 90)
        print(f"  taken up {again[0] - ended:.2f} s after training ended" if again else "  not taken up within 90 s")


def ask(*words: str) -> str:
    """What the driver says; empty without one."""
    try:
        command = ["nvidia-smi", *words, "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def make_model(base: Path, *, small: bool, device: str) -> None:
    """A random Llama, made in a process of its own so that this one holds no GPU memory."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import evaluate_gpu as e; from pathlib import Path; "
    code += f"e.write_model(Path({str(base / 'step-1')!r}), e._SHAPES[{'small' if small else '1B'!r}], {device!r})"
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training")
    parser.add_argument("--scale", type=float, default=20.0, help="samples of the evaluation, times this")
    for name in ("--evaluate", "--ask-driver"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    for name in ("--log", "--base"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda:0"
    if options.train is not None:
        train(options.train, device, 256 if options.cpu else 4096, options.log)
        return
    if options.evaluate:
        run_evaluation(options.base, ask_driver=options.ask_driver, cpu=options.cpu, scale=options.scale)
        return
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    base = Path(tempfile.mkdtemp(prefix="prism-beside-"))
    try:
        print(describe_machine())
        make_model(base, small=options.small, device=device)
        turn = Turn(base, options)
        alone = turn.train("alone", options.seconds / 2)
        alone_s = statistics.median(b - a for a, b in itertools.pairwise(alone))
        if not options.cpu:
            print("asked by the driver:", flush=True)
            turn.run(ask_driver=True, alone_s=alone_s)
        print("asked by the file give-back:", flush=True)
        turn.run(ask_driver=False, alone_s=alone_s)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
