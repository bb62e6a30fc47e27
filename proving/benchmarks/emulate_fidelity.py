"""Iteration time under torchrun against `prism emulate`, on CPU ranks of one machine.

All layouts of one size are started together, each once for real and once emulated, and then work in turns of a few
steps: whatever disturbs the machine falls on both alike. Between them collectives are timed on the same cores, at the
sizes that the jobs use. `measure FOLDER` does that and needs only torch; `report FOLDER` stitches, solves and prints
the table. `wanted FOLDER` lists the collectives beforehand, so that `measure` need not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from emulate_turns import Turns, probe_pinning  # noqa: E402
from machine import describe_machine  # noqa: E402
from prism.emulate.capture import Capture, cut_all, read_capture  # noqa: E402
from prism.emulate.capturing import CaptureConfig, capture_job  # noqa: E402
from prism.emulate.families import find_families  # noqa: E402
from prism.emulate.inside.measure_plan import MeasurePlan, Wanted  # noqa: E402
from prism.emulate.inside.plan import RunPlan  # noqa: E402
from prism.emulate.launch import LaunchConfig, run_ranks  # noqa: E402

SCRIPT = ROOT / "examples" / "gpt" / "train.py"
MODEL = ("--width", "256", "--layers", "2", "--heads", "8", "--length", "128", "--vocab", "512", "--device", "cpu")
LAYOUTS = {
    "DDP": ("--data", "ddp", "--batch", "8"),
    "FSDP2": ("--data", "fsdp", "--batch", "8"),
    "TP x DP": ("--tp", "2", "--data", "fsdp", "--batch", "16"),
    "PP x DP": ("--pp", "2", "--data", "ddp", "--batch", "16"),
}
WARMUP = 2  # steps before the first turn
PER_TURN = 3  # steps of a turn; the first finds cold caches and is left out
ROUNDS = 2  # of collectives, per turn


def main() -> None:
    """Parse and run one part, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("wanted", "measure", "report", "all"), default="all", nargs="?")
    parser.add_argument("folder", type=Path, default=Path("out/fidelity"), nargs="?")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seconds", type=float, default=900, help="for starting and all turns")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS))
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # CPU ranks also where there is a GPU
    os.environ["OMP_NUM_THREADS"] = "1"
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.part == "report":
        report(args.folder)
        return
    cores = len(os.sched_getaffinity(0))
    ranks = [num for num in args.ranks if num <= cores or args.part == "wanted"]
    print(f"ranks {ranks} on {cores} cores", flush=True)
    for num in ranks:
        wanted = args.folder / f"wanted-{num}.json"
        if not wanted.exists():
            plan = MeasurePlan(backend="gloo", wanted=list_collectives(num, args.layouts))
            wanted.write_text(json.dumps(asdict(plan)))
    if args.part != "wanted":
        measure(args.folder, ranks, args.layouts, args.seconds)
    if args.part == "all":
        report(args.folder)


def list_collectives(num: int, layouts: list[str]) -> tuple[Wanted, ...]:
    """Every (kind, group size, bytes) of an iteration of these layouts."""
    wanted: set[tuple[str, int, int]] = set()
    for layout in layouts:
        launch = LaunchConfig(script=(str(SCRIPT), *MODEL, *LAYOUTS[layout]), world_size=num, gpus_per_node=num)
        config = CaptureConfig(
            launch=launch, iterations=1, warmup=2, at_once=0, check_symmetry=False, track_memory=False
        )
        captures = capture_job(config).captures
        families = find_families(captures.values())
        for iterations in cut_all(captures).values():
            for entry in iterations[-1]:
                if entry.is_communication and families.by_name[entry.group].size > 1:
                    message = entry.what in ("send", "recv")
                    size = 2 if message else families.by_name[entry.group].size
                    wanted.add(("send" if message else entry.what, size, entry.bytes))
    return tuple(Wanted(*item) for item in sorted(wanted))


def measure(folder: Path, ranks: list[int], layouts: list[str], seconds: float) -> None:
    """Start everything, then let each set work in turn until the time is up."""
    began = time.monotonic()
    facts = {"machine": describe_machine(), "pinning": probe_pinning()}
    (folder / "machine.json").write_text(json.dumps(facts))
    with Turns() as gate:
        sets = [item for num in ranks for item in list_sets(folder, num, layouts, gate.address)]
        workers = [
            threading.Thread(target=run_emulated if "emulated" in s.name else run_torchrun, args=(s, 29600 + i))
            for i, s in enumerate(sets)
        ]
        for worker in workers:
            worker.start()
        gate.gather({s.name: s.num for s in sets}, lambda: all(worker.is_alive() for worker in workers))
        print(f"{len(sets)} sets of ranks started after {time.monotonic() - began:.0f} s", flush=True)
        longest, turns = 0.0, 0
        while time.monotonic() - began + longest < seconds:
            turn_began = time.monotonic()
            # Real and emulated change places every turn, so that neither always comes first.
            for one in sets if turns % 2 == 0 else reversed(sets):
                gate.run(one.name)
            longest, turns = max(longest, time.monotonic() - turn_began), turns + 1
        gate.dismiss()
        for worker in workers:
            worker.join()
    print(f"{turns} turns done after {time.monotonic() - began:.0f} s", flush=True)


@dataclass(frozen=True)
class RankSet:
    """Processes that work in the same turn."""

    name: str
    num: int
    script: tuple[str, ...]
    out: Path


def list_sets(folder: Path, num: int, layouts: list[str], gate: str) -> list[RankSet]:
    """Every layout for real and emulated, and the collectives, over this many ranks."""
    sets = []
    for layout in layouts:
        for kind in ("real", "emulated"):
            name, out = f"{num} {kind} {layout}", folder / f"{num}-{layout.replace(' ', '')}" / kind
            out.mkdir(parents=True, exist_ok=True)
            member = (str(ROOT / "proving" / "benchmarks" / "emulate_rank.py"), gate, name, str(WARMUP), str(PER_TURN))
            script = (*member, str(out / "times"), str(SCRIPT), *MODEL, *LAYOUTS[layout], "--steps", "1000000")
            sets.append(RankSet(name, num, script, out))
    name, program = f"{num} collectives", str(ROOT / "proving" / "benchmarks" / "emulate_collectives.py")
    files = (str(folder / f"wanted-{num}.json"), str(folder / f"calibration-{num}.json"))
    return [*sets, RankSet(name, num, (program, gate, name, str(ROUNDS), *files), folder)]


def run_torchrun(one: RankSet, port: int) -> None:
    """torchrun on this machine, on a port of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(one.num), "--master-port"]
    subprocess.run([*command, str(port), *one.script], check=True, stdout=subprocess.DEVNULL)


def run_emulated(one: RankSet, port: int) -> None:
    """The same script with every rank live and no byte sent, so that ranks share the machine as real ones do."""
    config = LaunchConfig(script=one.script, world_size=one.num, gpus_per_node=one.num, folder=one.out)
    plan = RunPlan(
        rank=0, world_size=one.num, gpus_per_node=one.num, output="", warmup=0, iterations=1_000_000,
        live_ranks=tuple(range(one.num)), in_step=True, track_memory=False,
    )  # fmt: skip
    run_ranks(config, plan, tuple(range(one.num)))


def report(folder: Path) -> None:
    """Predict every case from its captures and print it beside the real runs."""
    import polars as pl

    from prism.simulate.calibration import calibration_of, write_calibration

    facts = json.loads((folder / "machine.json").read_text())
    print(f"machine: {facts['machine']}; one thread per rank, pinned: {'yes' if facts['pinning'] else 'not obeyed'}")
    print("spread: half of the 5 % to 95 % range of real steps; halves: the real run's odd turns against its even ones")
    print("paired: the middle of the errors of single turns; speed: processor time of equal work, real over emulated")
    print(
        f"{'case':<10}{'steps':>6}{'real ms':>9}{'spread %':>10}{'halves %':>10}{'predicted':>11}{'error %':>9}"
        f"{'paired %':>10}{'comm %':>8}{'speed':>8}"
    )
    errors, paired, halves, covered = [], [], [], []
    for case in sorted(p for p in folder.iterdir() if (p / "real").is_dir()):
        num = int(case.name.partition("-")[0])
        table = folder / f"calibration-{num}.parquet"
        write_calibration(calibration_of(pl.read_json(folder / f"calibration-{num}.json")), table)
        turns = read_turns(case / "real")
        real = [step for turn in turns for step in turn]
        guesses, talk, band = predict_case(case, num, table, facts["pinning"])
        truth, guess = statistics.median(real), statistics.median(guesses)
        plain, _, plain_band = predict_case(case, num, None, facts["pinning"])
        covered.append(Covered(case.name, truth, guess, band, statistics.median(plain), plain_band))
        errors.append((guess / truth - 1) * 100)
        paired.append(compare_turns(turns, guesses))
        odd, even = (statistics.median(step for turn in turns[i::2] for step in turn) for i in (0, 1))
        halves.append((odd / even - 1) * 100)
        print(
            f"{case.name:<10}{len(real):6}{truth:9.1f}{_half_range(real) / truth * 100:10.1f}{halves[-1]:+10.2f}"
            f"{guess:11.1f}{errors[-1]:+9.2f}{paired[-1]:+10.2f}{talk:8.1f}{compare_speed(case):8.3f}"
        )
    for what, values in (("error", errors), ("paired", paired), ("the real runs' own halves", halves)):
        sizes = [abs(value) for value in values]
        print(f"{what}: mean {statistics.mean(sizes):.2f} %, largest {max(sizes):.2f} %")
    print("asked: 1 % on average, 2 % at most")
    print_coverage(covered)


@dataclass(frozen=True)
class Covered:
    """A true time, and what was predicted with its band: with collectives of this host, and with the model alone."""

    case: str
    real_ms: float
    measured_ms: float
    measured_band_pct: float
    modelled_ms: float
    modelled_band_pct: float

    def holds(self) -> tuple[bool, bool]:
        """Whether the true time lies inside each band, which is a share of the prediction."""
        pairs = ((self.measured_ms, self.measured_band_pct), (self.modelled_ms, self.modelled_band_pct))
        first, second = (abs(self.real_ms - guess) <= guess * band / 100 for guess, band in pairs)
        return first, second


def print_coverage(cases: list[Covered]) -> None:
    """Which true times lie inside the band that the prediction came with."""
    print(f"{'case':<10}{'real ms':>9}{'measured host':>18}{'inside':>8}{'modelled host':>18}{'inside':>8}")
    for c in cases:
        first, second = ("yes" if inside else "NO" for inside in c.holds())
        print(
            f"{c.case:<10}{c.real_ms:9.1f}{c.measured_ms:10.1f} ± {c.measured_band_pct:3.0f} %{first:>8}"
            f"{c.modelled_ms:10.1f} ± {c.modelled_band_pct:3.0f} %{second:>8}"
        )
    held = [inside for c in cases for inside in c.holds()]
    print(f"inside the band: {sum(held)} of {len(held)}; asked: 95 in 100")


def compare_turns(turns: list[list[float]], guesses: list[float]) -> float:
    """Real and emulated steps of one turn ran within a second, so that most of the machine's moods cancel out."""
    kept = PER_TURN - 1
    pairs = zip(turns, (guesses[i : i + kept] for i in range(0, len(guesses), kept)), strict=False)
    return (statistics.median(statistics.mean(guess) / statistics.mean(real) for real, guess in pairs) - 1) * 100


def compare_speed(case: Path) -> float:
    """What the cores of a shared machine did: processor time of the ranks' own threads per step, real over emulated."""

    def mean_thread_s(folder: Path) -> float:
        ranks = [json.loads(p.read_text())[WARMUP:] for p in sorted(folder.glob("times.*"))]
        return statistics.mean(thread for steps in ranks for i, (_, thread, _) in enumerate(steps) if i % PER_TURN)

    return mean_thread_s(case / "real") / mean_thread_s(case / "emulated")


def predict_case(case: Path, num: int, table: Path | None, pinned: bool) -> tuple[list[float], float, float]:
    """Predicted milliseconds of every iteration, the share of exposed communication and the band in percent."""
    from prism.emulate.emulation import EmulateConfig, predict_captures

    captures = keep_warm([read_capture(p) for p in sorted((case / "emulated").glob("rank-*[0-9].json"))])
    launch = LaunchConfig(script=(str(SCRIPT),), world_size=num, gpus_per_node=num, pin=True)
    capture = CaptureConfig(launch=launch, warmup=0)
    config = EmulateConfig(capture=capture, calibration=table, overlap=not pinned, clock="wall")
    prediction = predict_captures(captures, config)[1]
    exposed = prediction.split.exposed_communication * 100
    return [step / 1e6 for step in prediction.step_ns], exposed, prediction.error_band_pct


def keep_warm(captures: list[Capture]) -> dict[int, Capture]:
    """Without the steps before the first turn, and without the first step of each turn."""
    out = {}
    for rank, parts in cut_all({c.rank: c for c in captures}).items():
        kept = [part for i, part in enumerate(parts[WARMUP:]) if i % PER_TURN]
        capture = next(c for c in captures if c.rank == rank)
        out[rank] = replace(capture, entries=tuple(entry for part in kept for entry in part))
    return out


def read_turns(folder: Path) -> list[list[float]]:
    """Milliseconds of each step by turn: from the end of a step on its last rank to the end of the next."""
    ranks = [[end for end, *_ in json.loads(p.read_text())][WARMUP:] for p in sorted(folder.glob("times.*"))]
    ends = [max(step) * 1e3 for step in zip(*ranks, strict=True)]
    turns = [ends[i : i + PER_TURN] for i in range(0, len(ends) // PER_TURN * PER_TURN, PER_TURN)]
    return [[after - before for before, after in pairwise(turn)] for turn in turns]


def _half_range(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    cuts = statistics.quantiles(values, n=20)
    return (cuts[-1] - cuts[0]) / 2


if __name__ == "__main__":
    main()
