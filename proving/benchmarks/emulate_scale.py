"""A 3D-parallel job at 8,192 ranks, from the script to the timeline: boot, capture, stitch and solve, with memory."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from machine import describe_machine  # noqa: E402
from prism.emulate.capture import Capture, read_capture  # noqa: E402
from prism.emulate.capturing import CaptureConfig, capture_job  # noqa: E402
from prism.emulate.launch import LaunchConfig  # noqa: E402

SCRIPT = ROOT / "examples" / "gpt" / "train.py"
MODELS = {
    "small": "--width 128 --heads 8 --layers 8 --length 64 --batch 8",
    "7b": "--width 4096 --heads 32 --layers 32 --length 2048 --batch 8 --vocab 32000",
    # Width, heads, layers and vocabulary of Llama 2 70B; 65 billion parameters with this GPT's feed-forward layer.
    "70b": "--width 8192 --heads 64 --layers 80 --length 4096 --batch 8 --vocab 32000",
    # The same calls by a CPU: as many layers and heads, each 1/16 as wide, and short sequences.
    "70b-thin": "--width 512 --heads 64 --layers 80 --length 64 --batch 8 --vocab 2048",
}
LAYOUTS = {"small": (4, 8), "7b": (4, 8), "70b": (8, 8), "70b-thin": (8, 8)}  # pipeline, tensor


def main() -> None:
    """Capture, and predict where polars is installed; `--capture-only` and `--from` split the two over machines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, default=8192)
    parser.add_argument("--model", choices=tuple(MODELS), default="small", help="7b and 70b are for a GPU")
    parser.add_argument("--folder", type=Path, default=Path("out/scale"))
    parser.add_argument("--capture-only", action="store_true")
    parser.add_argument("--from", dest="source", type=Path, default=None, help="a folder that --capture-only wrote")
    args = parser.parse_args()
    pp, tp = LAYOUTS[args.model]
    layout = ("--pp", str(pp), "--tp", str(tp), "--data", "fsdp", "--microbatches", "8")
    script = (str(SCRIPT), *MODELS[args.model].split(), *layout)
    launch = LaunchConfig(script=script, world_size=args.world_size, folder=args.folder)
    capture = CaptureConfig(
        launch=launch, iterations=2, warmup=2, at_once=0, check_symmetry=False, note=_note, track_memory=False
    )
    print(f"machine: {describe_machine()}; {args.model}, {args.world_size} ranks, pp {pp}, tp {tp}")
    started = time.monotonic()
    if args.source is None:
        captures = capture_job(capture).captures
    else:
        captures = {c.rank: c for c in map(read_capture, sorted(args.source.glob("rank-*[0-9].json")))}
    captured = time.monotonic()
    for rank, one in captures.items():
        print(f"rank {rank}: {one.wall_s:.1f} s, peak allocated {one.memory.allocated / 2**20:.0f} MiB")
    print(f"capture: {captured - started:.1f} s")
    if not args.capture_only:
        predict(captures, capture, started)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"host memory, launcher and largest rank together: {peak / 2**20:.2f} GiB")


def _note(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)


def predict(captures: dict[int, Capture], capture: CaptureConfig, started: float) -> None:
    """Stitch, solve and write the timeline of a few ranks."""
    from prism.emulate.emulation import EmulateConfig, predict_captures
    from prism.simulate.spans import write_spans

    before = time.monotonic()
    stitched, prediction = predict_captures(captures, EmulateConfig(capture=capture, cluster="dgx-h100"))
    spans = write_spans(prediction.solution, ranks=[0, capture.launch.world_size - 1])
    done = time.monotonic()
    print(json.dumps({
        "op_instances": stitched.graph.num_op_instances, "cells": prediction.solution.num_cells,
        "predicted_ms": prediction.headline_ms, "spans": spans.height, "solve_s": round(done - before, 1),
        "total_s": round(done - started, 1),
    }))  # fmt: skip
    print("asked: under 600 s and 8 GiB")


if __name__ == "__main__":
    main()
