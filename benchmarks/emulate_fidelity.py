"""Iteration time under torchrun against `prism emulate`, on CPU ranks, run in turns on one machine.

`measure FOLDER` runs both and needs only torch; `report FOLDER` stitches, solves and prints the table. One thread and
one core per rank. Collectives are calibrated on the same cores, at the sizes that the jobs use.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from machine import describe_machine  # noqa: E402
from prism.emulate.capture import Capture, cut_iterations, read_capture  # noqa: E402
from prism.emulate.classes import find_classes  # noqa: E402
from prism.emulate.families import find_families  # noqa: E402
from prism.emulate.inside.measure import MeasurePlan, Wanted  # noqa: E402
from prism.emulate.inside.plan import RunPlan  # noqa: E402
from prism.emulate.launch import LaunchConfig, run_ranks  # noqa: E402
from prism.emulate.measuring import measure_collectives  # noqa: E402

SCRIPT = ROOT / "examples" / "gpt" / "train.py"
MODEL = ("--width", "256", "--layers", "4", "--length", "128", "--batch", "4")
LAYOUTS = {
    "DDP": ("--data", "ddp"),
    "FSDP2": ("--data", "fsdp"),
    "TP x DP": ("--tp", "2", "--data", "fsdp"),
    "PP x DP": ("--pp", "2", "--data", "ddp"),
}
WARMUP, ITERATIONS = 3, 25


def main() -> None:
    """Parse and run one of the two halves, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("half", choices=("measure", "report", "both"), default="both", nargs="?")
    parser.add_argument("folder", type=Path, default=Path("out/fidelity"), nargs="?")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS))
    args = parser.parse_args()
    if args.half in ("measure", "both"):
        measure(args.folder, args.ranks, args.rounds, args.layouts)
    if args.half in ("report", "both"):
        report(args.folder)


def measure(folder: Path, ranks: list[int], rounds: int, layouts: list[str]) -> None:
    """Real and emulated runs in turns, then the collectives they used."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # CPU ranks also where there is a GPU
    (folder / "machine.txt").write_text(describe_machine())
    for num in ranks:
        cores = len(os.sched_getaffinity(0))
        if num > cores:
            print(f"{num} ranks left out: {cores} cores")
            continue
        captures: list[Capture] = []
        for layout in layouts:
            case = folder / f"{num}-{layout.replace(' ', '')}"
            for turn in range(rounds):
                started = time.monotonic()
                run_real(case / f"real-{turn}", num, LAYOUTS[layout])
                between = time.monotonic()
                captures += run_emulated(case / f"emulated-{turn}", num, LAYOUTS[layout])
                done = time.monotonic()
                print(
                    f"{num} ranks {layout} turn {turn}: real {between - started:.0f} s, emulated {done - between:.0f} s"
                )
        points = measure_collectives(MeasurePlan(backend="gloo", wanted=list_collectives(captures)), num, pin=True)
        (folder / f"calibration-{num}.json").write_text(json.dumps(points))


def run_real(out: Path, num: int, layout: tuple[str, ...]) -> None:
    """The script under torchrun."""
    out.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num),
        str(ROOT / "benchmarks" / "pinned_rank.py"), str(SCRIPT), *MODEL, *layout, "--device", "cpu",
        "--steps", str(WARMUP + ITERATIONS), "--times", str(out / "times"),
    ]  # fmt: skip
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


def run_emulated(out: Path, num: int, layout: tuple[str, ...]) -> list[Capture]:
    """The same script with every rank live and no byte sent, so that ranks share the machine as real ones do."""
    script = (str(SCRIPT), *MODEL, *layout, "--device", "cpu", "--steps", str(WARMUP + ITERATIONS + 1))
    config = LaunchConfig(script=script, world_size=num, gpus_per_node=num, pin=True, folder=out)
    ranks = tuple(range(num))
    plan = RunPlan(
        rank=0, world_size=num, gpus_per_node=num, output="", warmup=WARMUP, iterations=ITERATIONS, live_ranks=ranks,
        in_step=True, track_memory=False,
    )  # fmt: skip
    return list(run_ranks(config, plan, ranks).captures.values())


def list_collectives(captures: list[Capture]) -> tuple[Wanted, ...]:
    """Every (kind, group size, bytes) of an iteration."""
    wanted: set[tuple[str, int, int]] = set()
    for capture in captures:
        families = find_families([capture])
        for entry in cut_iterations(capture, WARMUP)[-1]:
            if entry.is_communication and families.by_name[entry.group].size > 1:
                message = entry.what in ("send", "recv")
                size = 2 if message else families.by_name[entry.group].size
                wanted.add(("send" if message else entry.what, size, entry.bytes))
    return tuple(Wanted(*item) for item in sorted(wanted))


def report(folder: Path) -> None:
    """Predict every case from its captures and print it beside the real runs."""
    import polars as pl

    from prism.emulate.capturing import CaptureConfig
    from prism.emulate.emulation import EmulateConfig, predict_captures
    from prism.simulate.calibration import calibration_of, write_calibration

    print(f"machine: {(folder / 'machine.txt').read_text()}; one core and one thread per rank")
    print("spread: half of the 5 % to 95 % range of real steps; cores: slowest over fastest core at equal work")
    print(f"{'case':<14}{'real ms':>9}{'spread %':>10}{'cores':>7}{'predicted ms':>14}{'error %':>9}{'comm %':>8}")
    errors = []
    for case in sorted(p for p in folder.iterdir() if p.is_dir()):
        num = int(case.name.partition("-")[0])
        table = folder / f"calibration-{num}.parquet"
        write_calibration(calibration_of(pl.read_json(folder / f"calibration-{num}.json")), table)
        real = [t for turn in case.glob("real-*") for t in _real_steps_ms(turn)]
        predicted, talk, uneven = [], 0.0, 1.0
        for turn in sorted(case.glob("emulated-*")):
            captures = {c.rank: c for c in map(read_capture, sorted(turn.glob("rank-*[0-9].json")))}
            launch = LaunchConfig(script=(str(SCRIPT),), world_size=num, gpus_per_node=num, pin=True)
            config = EmulateConfig(
                capture=CaptureConfig(launch=launch, warmup=WARMUP), calibration=table, overlap=False
            )
            prediction = predict_captures(captures, config)[1]
            uneven = max(uneven, _compare_cores(captures))
            predicted += [ns / 1e6 for ns in prediction.step_ns]
            talk = prediction.split.exposed_communication * 100
        truth, guess = statistics.median(real), statistics.median(predicted)
        low, high = statistics.quantiles(real, n=20)[0], statistics.quantiles(real, n=20)[-1]
        error = (guess / truth - 1) * 100
        errors.append(abs(error))
        spread = (high - low) / 2 / truth * 100
        print(f"{case.name:<14}{truth:9.2f}{spread:10.1f}{uneven:7.2f}{guess:14.2f}{error:+9.2f}{talk:8.1f}")
    print(f"mean absolute error {statistics.mean(errors):.2f} %, largest {max(errors):.2f} %; asked: 1 % and 2 %")


def _compare_cores(captures: dict[int, Capture]) -> float:
    """How differently fast equal ranks computed: nothing but their cores tells them apart."""
    families = find_families(captures.values())
    cut = {rank: cut_iterations(capture, WARMUP) for rank, capture in captures.items()}
    classes = find_classes({rank: parts[-1] for rank, parts in cut.items()}, families, len(captures))
    worst = 1.0
    for members in classes.captured:
        medians = [statistics.median(sum(e.gap_ns for e in part) for part in cut[rank]) for rank in members]
        worst = max(worst, max(medians) / min(medians))
    return worst


def _real_steps_ms(turn: Path) -> list[float]:
    """Each step's time on its slowest rank."""
    walls = [json.loads(p.read_text())["walls_s"][WARMUP:] for p in turn.glob("times.*")]
    return [max(step) * 1e3 for step in zip(*walls, strict=True)]


if __name__ == "__main__":
    main()
