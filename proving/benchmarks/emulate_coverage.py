"""Does the true time lie inside the band that `prism emulate` states? Real and emulated runs of training scripts.

Run: python proving/benchmarks/emulate_coverage.py tests/emulate/programs [--ranks 2] [--only p00,p08] [--jobs 8]

Every correct script of the folder that runs with so many ranks runs under torchrun, with a clock at its optimizer and
nothing else changed, and is emulated on the same machine. The goal is 95 of 100 inside. It needs an idle machine with
a core for each rank; with `--jobs` several scripts run at once, each on cores of its own. The collectives' own coverage
is printed by `simulate_coverage.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from emulate_programs import ROOT, SHORTEST_S, Case, is_installed, open_pool, read_cases
from machine import describe_machine

GOAL = 0.95
WARMUP = 3
# Python runs a module of this name before any script.
CLOCK = """
import os
if "RANK" in os.environ and "PRISM_TIMES" in os.environ:
    import time
    from torch.optim.optimizer import register_optimizer_step_post_hook
    first = []
    def note(optimizer, *unused):
        first.append(optimizer) if not first else None
        if optimizer is first[0]:
            with open(os.environ["PRISM_TIMES"] + os.environ["RANK"], "a") as stream:
                stream.write(f"{time.perf_counter()}\\n")
    register_optimizer_step_post_hook(note)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One script, really and emulated."""

    name: str
    real_ms: float
    predicted_ms: float
    band_pct: float

    @property
    def error_pct(self) -> float:
        """Of the prediction."""
        return (self.predicted_ms / self.real_ms - 1) * 100

    @property
    def inside(self) -> bool:
        """Whether the true time lies in the band around the prediction."""
        return abs(self.real_ms - self.predicted_ms) <= self.predicted_ms * self.band_pct / 100


def time_really(case: Case, ranks: int, limit_s: float) -> float | None:
    """Milliseconds of a step under torchrun: the mean over the ranks' steps after a few; None where it does not run."""
    with tempfile.TemporaryDirectory(prefix="prism-real-") as scratch:
        Path(scratch, "sitecustomize.py").write_text(CLOCK)
        paths = os.pathsep.join([scratch, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "PRISM_TIMES": f"{scratch}/times-", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        try:
            done = subprocess.run(
                [*command, *case.script], cwd=scratch, env=environment, capture_output=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return None
        marks = [list(map(float, path.read_text().split())) for path in Path(scratch).glob("times-*")]
        steps = [(m[-1] - m[WARMUP]) / (len(m) - 1 - WARMUP) for m in marks if len(m) > WARMUP + 1]
        return statistics.mean(steps) * 1e3 if done.returncode == 0 and steps else None


def emulate(case: Case, ranks: int, limit_s: float) -> tuple[float, float] | None:
    """The predicted milliseconds and their band in percent; None where there is no prediction."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "prism.cli.main", "emulate", "--world-size", str(ranks), "--json", "--"]
    with tempfile.TemporaryDirectory(prefix="prism-emulated-") as scratch:
        try:
            done = subprocess.run(
                [*command, *case.script], cwd=scratch, env=environment, capture_output=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return None
    if done.returncode:
        return None
    document = json.loads(done.stdout)
    return float(document["iteration_ms"]["mean"]), float(document["provenance"]["error_band_pct"])


def compare(case: Case, ranks: int, limit_s: float, until: float) -> Compared | None:
    """Both runs of a script; None where one of them gives no time, or none is left."""
    if time.monotonic() + SHORTEST_S > until:
        return None
    real = time_really(case, ranks, limit_s)
    predicted = emulate(case, ranks, limit_s) if real is not None else None
    if real is None or predicted is None:
        return None
    return Compared(name=case.name, real_ms=real, predicted_ms=predicted[0], band_pct=predicted[1])


def main() -> None:
    """Print the coverage table."""
    args = _parse()
    print(f"machine: {describe_machine()}, load {os.getloadavg()[0]:.1f} before the first run")
    if os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        print("other programs run: real steps take longer than the program's own, and the coverage says nothing")
    only = args.only.split(",") if args.only else ()
    cases = {case.name: case for folder in args.folders for case in read_cases(folder.resolve(), only)}
    runnable = [case for case in cases.values() if case.expect == "works" and is_installed(case)]
    until = time.monotonic() + args.seconds
    found = []
    with open_pool(args.jobs) as pool:
        running = [pool.submit(compare, case, args.ranks, args.limit, until) for case in runnable]
        for future in as_completed(running):
            row = future.result()
            if row is not None:
                found.append(row)
                print(_describe(row), flush=True)
    inside = sum(row.inside for row in found)
    print(f"no time, or none with {args.ranks} ranks, of {len(runnable) - len(found)} of {len(runnable)} scripts")
    if found:
        print(f"inside the band: {inside} of {len(found)} ({inside / len(found):.0%}, goal {GOAL:.0%})")
    if args.output:
        args.output.write_text(json.dumps([asdict(row) for row in found]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose names begin with one of these, as p00,p08")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds per run")
    parser.add_argument("--seconds", type=float, default=1e9, help="no script is begun after this long")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at once")
    parser.add_argument("--output", type=Path, default=None, help="file for the rows as JSON")
    return parser.parse_args()


def _describe(row: Compared) -> str:
    times = f"real {row.real_ms:9.2f} ms  predicted {row.predicted_ms:9.2f} ms  {row.error_pct:+7.1f} %"
    return f"{row.name:10} {times}  band {row.band_pct:5.1f} %  {'inside' if row.inside else 'OUTSIDE'}"


if __name__ == "__main__":
    main()
