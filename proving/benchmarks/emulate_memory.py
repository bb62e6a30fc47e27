"""Peak memory of every rank: real processes sharing one GPU over gloo against emulated ranks. Needs only torch.

NCCL refuses two ranks on one GPU. By default the real processes exchange their bytes by gloo through host copies, with
NCCL's lifetimes of tensors (`emulate_staged_gloo.py`); `--transport gloo` takes gloo's own handling of CUDA tensors.
`--device cpu` compares what is counted on a CPU with what torch's allocator reports of real gloo ranks, for two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from machine import describe_machine  # noqa: E402
from prism.emulate.capturing import CaptureConfig, capture_job  # noqa: E402
from prism.emulate.launch import LaunchConfig  # noqa: E402
from prism.errors import PrismError  # noqa: E402

SCRIPT = ROOT / "examples" / "gpt" / "train.py"
MODEL = ("--width", "1024", "--heads", "16", "--layers", "8", "--length", "512", "--batch", "8", "--vocab", "32000")
SMALL_MODEL = ("--width", "128", "--heads", "4", "--layers", "4", "--length", "64", "--batch", "8", "--vocab", "512")
COMMON = ("--device", "cuda", "--backend", "gloo", "--steps", "5")
COMMON_CPU = ("--device", "cpu", "--backend", "gloo", "--steps", "2")
LAYOUTS = {
    "DDP": ("--data", "ddp"),
    "FSDP2": ("--data", "fsdp"),
    "HSDP": ("--data", "hsdp"),
    "TP": ("--tp", "4"),
    "TP, sequence": ("--tp", "4", "--sequence-parallel"),
    "PP 1F1B": (
        "--pp",
        "4",
    ),
    "PP interleaved": ("--pp", "4", "--schedule", "interleaved"),
    "MoE": ("--experts", "8", "--router", "even"),
    "MoE, learned": ("--experts", "8"),
}


def main() -> None:
    """Run every layout both ways and print each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the figures")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--transport", choices=("staged", "gloo"), default="staged")
    parser.add_argument("--log", type=Path, default=Path("out/memory.log"), help="what failing real runs printed")
    args = parser.parse_args()
    print(f"machine: {describe_machine()}")
    rows = []
    for name in args.layouts:
        started = time.monotonic()
        rows += compare(name, args)
        print(f"  ({time.monotonic() - started:.0f} s)", flush=True)
        if args.output:
            args.output.write_text(json.dumps(rows))
    errors = [abs(row["error_pct"]) for row in rows if row["error_pct"] is not None]
    if errors:
        asked = "0.01 %" if args.device == "cuda" else "an estimate"
        print(f"largest error of peak allocated: {max(errors):.4f} %; asked: {asked}")
        print(
            "(allocated, reserved, requested); allocated counts up to 1 MiB per block that the allocator did not split"
        )


def compare(name: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """Each rank's real and emulated peak."""
    num = args.ranks
    if args.device == "cuda":
        arguments = (str(SCRIPT), *MODEL, *LAYOUTS[name], *COMMON)
        real = run_real(arguments, num, args.transport, args.log)
    else:
        arguments = (str(SCRIPT), *SMALL_MODEL, *LAYOUTS[name], *COMMON_CPU)
        real = run_real_on_cpu(arguments, num)
    try:
        launch = LaunchConfig(script=arguments, world_size=num, gpus_per_node=num)
        captures = capture_job(CaptureConfig(launch=launch, iterations=2, warmup=2)).captures
        emulated = {r: (c.memory.allocated, c.memory.reserved, c.memory.requested) for r, c in captures.items()}
    except PrismError as error:
        print(f"{name}: emulation failed: {error}")
        emulated = {}
    rows: list[dict[str, object]] = []
    for rank in range(num):
        truth, ours = real.get(rank), emulated.get(rank)
        error = (ours[0] / truth[0] - 1) * 100 if truth and ours and truth[0] else None
        asked = (ours[2] / truth[2] - 1) * 100 if truth and ours and truth[2] else None
        rows.append(
            {"layout": name, "rank": rank, "real": truth, "emulated": ours, "error_pct": error, "asked_pct": asked}
        )
        shown = "not compared" if error is None else f"allocated {error:+.5f} %, requested {asked:+.5f} %"
        print(f"{name:<16} rank {rank}: real {truth}, emulated {ours}, {shown}", flush=True)
    return rows


def run_real(arguments: tuple[str, ...], num: int, transport: str, log: Path) -> dict[int, tuple[int, int, int]]:
    """All ranks for real, on one GPU."""
    wrapper = (str(ROOT / "proving" / "benchmarks" / "emulate_staged_gloo.py"),) if transport == "staged" else ()
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num), *wrapper,
            *arguments, "--times", f"{scratch}/times",
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as out:
                out.write(f"{' '.join(command)}\n{done.stderr}\n")
            print(f"real run failed with exit code {done.returncode}; see {log}")
            return {}
        found = {}
        for rank in range(num):
            document = json.loads(Path(f"{scratch}/times.{rank}").read_text())
            found[rank] = (document["peak_allocated"], document["peak_reserved"], document["peak_requested"])
        return found


def run_real_on_cpu(arguments: tuple[str, ...], num: int) -> dict[int, tuple[int, int, int]]:
    """All ranks for real, over gloo; a CPU's allocator reserves nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        wrapper = (str(ROOT / "proving" / "benchmarks" / "emulate_cpu_peak.py"), f"{scratch}/peak")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *wrapper, *arguments], env=environment, check=True, capture_output=True)
        peaks = [int(Path(f"{scratch}/peak.{rank}").read_text()) for rank in range(num)]
    return {rank: (peak, 0, peak) for rank, peak in enumerate(peaks)}


if __name__ == "__main__":
    main()
