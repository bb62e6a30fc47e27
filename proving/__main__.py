"""Run benchmarks one after the other, to the end: `python -m proving [NAME...] [--quick] [--list] [--output FOLDER]`.

What a machine lacks is said, and that benchmark is skipped. What each printed is kept in the output folder, and a table
of all stands at the end. Exit 1 where one failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
DATA = Path(os.environ.get("PRISM_DATA", ROOT.parent / "shared" / "data"))
_GRACE = 3.0  # times the minutes of the catalogue, after which a benchmark is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One script, with what it needs."""

    name: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    minutes: float = 5.0

    def command(self, folder: Path, *, quick: bool) -> list[str]:
        """The words that run it."""
        words = self.quick if quick and self.quick is not None else self.arguments
        filled = [word.replace("{out}", str(folder)).replace("{data}", str(DATA)) for word in words]
        return [sys.executable, str(HERE / "benchmarks" / f"{self.name}.py"), *filled]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one benchmark."""

    name: str
    state: str  # done, failed, skipped or given up
    seconds: float
    said: str  # why it was skipped, or the last line that it printed
    command: str


def main(words: Sequence[str]) -> int:
    """Run what is named, or all."""
    parser = argparse.ArgumentParser(prog="python -m proving", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true", help="smaller inputs, where a benchmark has them")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and what each needs")
    parser.add_argument("--output", type=Path, default=Path("out/proving"), help="folder for what each prints")
    args = parser.parse_args(words)
    known = read_catalogue()
    wrong = sorted(set(args.names) - known.keys())
    if wrong:
        print(f"no benchmark is called {', '.join(wrong)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in args.names or known]
    if args.list:
        for one in chosen:
            print(f"{one.name}\t{one.minutes:g} min\t{', '.join(one.needs) or 'nothing special'}")
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    outcomes = [run(one, args.output, quick=args.quick) for one in chosen]
    machine = describe_machine()
    document = {"machine": machine, "quick": args.quick, "benchmarks": [asdict(outcome) for outcome in outcomes]}
    (args.output / "outcomes.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{machine}")
    for outcome in outcomes:
        print(f"{outcome.name:24}{outcome.state:10}{outcome.seconds:7.0f} s  {outcome.said[:120]}")
    return 1 if any(outcome.state in ("failed", "given up") for outcome in outcomes) else 0


def read_catalogue() -> dict[str, Benchmark]:
    """The benchmarks of proving/catalogue.toml by name."""
    table = tomllib.loads((HERE / "catalogue.toml").read_text())
    return {
        name: Benchmark(name=name, **{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        for name, row in table.items()
    }


def run(one: Benchmark, folder: Path, *, quick: bool) -> Outcome:
    """Run one benchmark; what it prints is shown and kept."""
    command = one.command(folder, quick=quick)
    shown = " ".join(Path(word).name if word == sys.executable else word for word in command)
    print(f"== {shown}", flush=True)
    missing = [need for need in one.needs if not is_there(need)]
    if missing:
        print(f"skipped: needs {', '.join(missing)}", flush=True)
        return Outcome(name=one.name, state="skipped", seconds=0.0, said=f"needs {', '.join(missing)}", command=shown)
    begin, log = time.monotonic(), folder / f"{one.name}.txt"
    limit_s = 60 * one.minutes * _GRACE
    with log.open("wb") as handle:
        process = subprocess.Popen(command, cwd=ROOT, stdout=handle, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(limit_s)
            state = "failed" if code else "done"
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            os.killpg(process.pid, 15)
            process.wait()
            if isinstance(stop, KeyboardInterrupt):
                raise
            state = "given up"
    text = log.read_text(errors="replace")
    print(text, flush=True)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    seconds = round(time.monotonic() - begin, 1)
    return Outcome(name=one.name, state=state, seconds=seconds, said=last, command=shown)


def is_there(need: str) -> bool:
    """Whether this machine has what a benchmark needs."""
    kind, _, name = need.partition(":")
    match kind:
        case "gpu":
            return shutil.which("nvidia-smi") is not None
        case "root":
            return os.geteuid() == 0
        case "slurm":
            return shutil.which("slurmctld") is not None
        case "cores":
            return len(os.sched_getaffinity(0)) >= int(name)
        case "data":
            return (DATA / name).is_dir()
        case "package":
            return importlib.util.find_spec(name) is not None
        case "command":
            return shutil.which(name) is not None
    raise ValueError(f"proving/catalogue.toml: '{need}' is no need; see the top of that file")


def describe_machine() -> str:
    """The machine that figures belong to."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{cores} cores of {model}, load {load:.1f}, Python {platform.python_version()}, commit {commit.strip()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
