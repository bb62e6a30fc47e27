"""torchtitan's published Llama 3.1 8B table against one GPU: tokens per second and memory at 8 and 128 GPUs.

`capture FOLDER` runs rank 0 of each job on the GPU at hand and needs only torch; `report FOLDER` predicts. The table's
GPUs are H100s with HBM2e and a cap of 500 W, so compute is scaled by one number, taken from the first row alone; that
row is then no test of time, the others are. Memory is not scaled.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from machine import describe_machine  # noqa: E402
from prism.emulate.capture import read_capture  # noqa: E402
from prism.emulate.capturing import CaptureConfig, capture_job  # noqa: E402
from prism.emulate.launch import LaunchConfig  # noqa: E402

SCRIPT = ROOT / "examples" / "llama" / "train.py"
TOKENS = 2 * 8192  # of one rank and step


@dataclass(frozen=True)
class Row:
    """One published figure."""

    world: int
    compiled: bool
    tokens_per_s: float  # per GPU
    gib: float  # most memory reserved

    @property
    def name(self) -> str:
        """Of its folder and line."""
        return f"{self.world}{'-compile' if self.compiled else ''}"


# pytorch/torchtitan, benchmarks of Llama 3.1 8B on H100 (96 GB HBM2e, 500 W), FSDP, local batch 2.
PUBLISHED = (
    Row(8, False, 5762, 82.4),
    Row(128, False, 5605, 67.0),
    Row(8, True, 6667, 77.0),
    Row(128, True, 6514, 62.0),
)


def main() -> None:
    """Parse and run one half, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("half", choices=("capture", "report", "both"), default="both", nargs="?")
    parser.add_argument("folder", type=Path, default=Path("out/torchtitan"), nargs="?")
    parser.add_argument("--rows", nargs="+", default=[row.name for row in PUBLISHED])
    parser.add_argument("--cluster", default="dgx-h100")
    args = parser.parse_args()
    rows = [row for row in PUBLISHED if row.name in args.rows]
    if args.half in ("capture", "both"):
        print(f"machine: {describe_machine()}")
        for row in rows:
            capture(row, args.folder)
    if args.half in ("report", "both"):
        report([row for row in rows if (args.folder / row.name).is_dir()], args.folder, args.cluster)


def make_config(row: Row, folder: Path) -> CaptureConfig:
    """Rank 0 of the job: all ranks do the same."""
    script = (str(SCRIPT), "--size", "8B", "--batch", "2", *(("--compile",) if row.compiled else ()))
    launch = LaunchConfig(script=script, world_size=row.world, folder=folder / row.name)
    return CaptureConfig(launch=launch, ranks=(0,), iterations=3, warmup=3)


def capture(row: Row, folder: Path) -> None:
    """Run it here."""
    began = time.monotonic()
    found = capture_job(make_config(row, folder)).captures[0]
    print(
        f"{row.name}: {time.monotonic() - began:.0f} s, {found.device}, reserved {found.memory.reserved / 2**30:.1f}"
        f" GiB, allocated {found.memory.allocated / 2**30:.1f} GiB",
        flush=True,
    )


def report(rows: list[Row], folder: Path, cluster: str) -> None:
    """Every row, as measured here and scaled to the table's GPU."""
    scale = find_scale(rows[0], folder, cluster)
    print(f"compute on the table's GPU over that on this one, from row {rows[0].name}: {scale:.3f}")
    print(f"{'row':<14}{'published':>10}{'unscaled':>10}{'scaled':>9}{'error %':>9}{'GiB':>8}{'ours':>7}{'error %':>9}")
    for row in rows:
        plain, speed = (TOKENS / predict(row, folder, cluster, s) * 1e3 for s in (1.0, scale))
        ours = read_capture(folder / row.name / "rank-0.json").memory.reserved / 2**30
        print(
            f"{row.name:<14}{row.tokens_per_s:10.0f}{plain:10.0f}{speed:9.0f}{_error(speed, row.tokens_per_s):+9.2f}"
            f"{row.gib:8.1f}{ours:7.1f}{_error(ours, row.gib):+9.2f}"
        )


def find_scale(row: Row, folder: Path, cluster: str) -> float:
    """The factor on compute that makes this row right, by bisection."""
    low, high = 0.2, 5.0
    for _ in range(24):
        middle = (low + high) / 2
        if TOKENS / predict(row, folder, cluster, middle) * 1e3 > row.tokens_per_s:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def predict(row: Row, folder: Path, cluster: str, scale: float) -> float:
    """Milliseconds of a step."""
    from prism.emulate.emulation import EmulateConfig, predict_captures

    captures = {0: read_capture(folder / row.name / "rank-0.json")}
    config = EmulateConfig(capture=make_config(row, folder), cluster=cluster, compute_scale=scale)
    return predict_captures(captures, config)[1].headline_ms


def _error(ours: float, theirs: float) -> float:
    return (ours / theirs - 1) * 100


if __name__ == "__main__":
    main()
