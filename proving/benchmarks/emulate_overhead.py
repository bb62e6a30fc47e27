"""What Prism adds to an iteration: the script alone (torchrun, nccl, one rank) against the same under Prism."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402

from machine import describe_machine  # noqa: E402
from prism.emulate.inside.plan import RunPlan  # noqa: E402
from prism.emulate.launch import LaunchConfig, run_ranks  # noqa: E402

SCRIPT = ROOT / "examples" / "gpt" / "train.py"
ON_GPU = ("--width", "2048", "--heads", "16", "--layers", "12", "--length", "1024", "--batch", "8", "--vocab", "32000")
ON_CPU = ("--width", "256", "--layers", "4", "--length", "128", "--batch", "8")
WARMUP = 5


def main() -> None:
    """Both in turns, several times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", choices=("ddp", "fsdp"), default="fsdp")
    args = parser.parse_args()
    size = ON_GPU if torch.cuda.is_available() else ON_CPU
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"machine: {describe_machine()}, {device}")
    plain: list[float] = []
    emulated: list[float] = []
    for turn in range(args.rounds):
        for name, run, into in (("plain", run_plain, plain), ("prism", run_emulated, emulated)):
            walls = run((str(SCRIPT), *size, "--data", args.data, "--steps", str(args.steps)))[WARMUP:]
            into += walls
            print(f"turn {turn} {name}: median {statistics.median(walls) * 1e3:.3f} ms", flush=True)
    one, two = statistics.median(plain), statistics.median(emulated)
    spread = statistics.stdev(plain) / one * 100
    print(
        f"plain {one * 1e3:.3f} ms, under Prism {two * 1e3:.3f} ms: {(two / one - 1) * 100:+.3f} %"
        f" (plain's own standard deviation {spread:.2f} %); asked: under 0.5 %"
    )


def run_plain(arguments: tuple[str, ...]) -> list[float]:
    """Under torchrun."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        subprocess.run(
            [*command, *arguments, "--times", f"{scratch}/times"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return _walls(scratch)


def run_emulated(arguments: tuple[str, ...]) -> list[float]:
    """Under Prism, to the script's own end."""
    with tempfile.TemporaryDirectory() as scratch:
        config = LaunchConfig(script=(*arguments, "--times", f"{scratch}/times"), world_size=1)
        plan = RunPlan(
            rank=0, world_size=1, gpus_per_node=8, output="", iterations=10**6, live_ranks=(0,), track_memory=False
        )
        run_ranks(config, plan, [0])
        return _walls(scratch)


def _walls(folder: str) -> list[float]:
    walls: list[float] = json.loads(Path(f"{folder}/times.0").read_text())["walls_s"]
    return walls


if __name__ == "__main__":
    main()
