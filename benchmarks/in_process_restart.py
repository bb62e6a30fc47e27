"""From the kill of one rank to the next step: in place with a spare and without, torchrun, NVIDIA's extension.

    python benchmarks/in_process_restart.py                      # 8 ranks on the CPU
    python benchmarks/in_process_restart.py --methods spare,torchrun --ranks 4

The same training (`examples/recover/in_place.py`, gloo, a checkpoint every 20 steps in memory and on storage) runs
under each method; when it has reached step 60, rank 1 is killed with SIGKILL. The time runs until a step is printed
again. A spare is booted before the kill; a full restart boots everything after it. `nvrx` runs if
nvidia-resiliency-ext can be imported, with one inactive rank as its spare and its own defaults.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from machine import describe_machine

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "recover" / "in_place.py"
NVRX = Path(__file__).with_name("in_process_restart_nvrx.py")
METHODS = ("spare", "no-spare", "torchrun", "nvrx")
_LIMIT_S = 400.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """One method, in seconds from the kill."""

    method: str
    seconds: float | None
    restored: str
    processes_kept: int


def command_of(method: str, ranks: int) -> list[list[str]]:
    """The commands that start a method."""
    if method in ("spare", "no-spare"):
        spares = "1" if method == "spare" else "0"
        start = [sys.executable, "-m", "prism.recover.checkpoint.inplace", "--ranks", str(ranks), "--spares", spares]
        return [[*start, "--", str(EXAMPLE)]]
    if method == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [[*start, "--max-restarts", "3", str(EXAMPLE)]]
    return [[sys.executable, str(NVRX), str(rank)] for rank in range(ranks + 1)]


def measure(method: str, options: argparse.Namespace) -> Result:
    """Start, wait for step 60, kill rank 1, wait for the next step."""
    folder = Path(tempfile.mkdtemp(prefix="prism-bench-"))
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {"STEPS": "1000000", "SAVE_EVERY": "20", "BENCH_DIR": str(folder), "BENCH_PORT": port}
    environment |= {
        "BENCH_RANKS": str(options.ranks),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path[1:]]),
    }
    log = folder / "log"
    with log.open("wb") as handle:
        started = [
            subprocess.Popen(line, cwd=folder, env=environment, stdout=handle, stderr=handle, start_new_session=True)
            for line in command_of(method, options.ranks)
        ]
    try:
        wait_for(log, lambda text: "step 60 " in text)
        before = members(folder)
        victim = next(pid for pid, rank in before.items() if rank == "1")
        size = log.stat().st_size
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        seconds = wait_for(log, lambda text: _begun_again(text[size:]), start)
        kept = len(before.keys() & members(folder).keys()) if seconds is not None else 0
        lines = [line for line in log.read_text()[size:].splitlines() if "starts from" in line]
        return Result(method=method, seconds=seconds, restored=lines[0] if lines else "", processes_kept=kept)
    finally:
        if options.verbose:
            print(log.read_text()[-3_000:])
        for process in started:
            end_tree(process)
        for path in Path("/dev/shm").glob("prism-*/run.json"):
            if str(folder) in path.read_text():
                shutil.rmtree(path.parent, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _begun_again(text: str) -> bool:
    """A step after a new beginning, not one that was still under way at the kill."""
    _, found, after = text.partition("starts from")
    return bool(found) and "\nstep " in after


def wait_for(log: Path, true_of: object, start: float | None = None) -> float | None:
    """Seconds until the log says so; None if it does not in time."""
    begun = time.monotonic() if start is None else start
    while not true_of(log.read_text()):  # type: ignore[operator]
        if time.monotonic() - begun > _LIMIT_S:
            return None
        time.sleep(0.02)
    return time.monotonic() - begun


def members(folder: Path) -> dict[int, str]:
    """Ranks of processes that train in this folder, by the lock that each holds."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                locks = [link.readlink() for link in (entry / "fd").iterdir()]
                ranks = [path.parent.name for path in locks if path.name == "lock" and path.parent.name[:5] == "rank-"]
                if ranks:
                    found[int(entry.name)] = str(int(ranks[-1].removeprefix("rank-")))
        except OSError:
            continue
    return found


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a method and everything that it started, by session and by parent."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    for pid in (process.pid, *map(int, children)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    print(f"{describe_machine()}; load {os.getloadavg()[0]:.1f} before; {options.ranks} ranks")
    print(f"{'method':>12} {'seconds':>9} {'processes kept':>15}  restored")
    for method in options.methods.split(","):
        if method == "nvrx" and find_spec("nvidia_resiliency_ext") is None:
            print(f"{method:>12}  not installed (pip install nvidia-resiliency-ext)")
            continue
        result = measure(method, options)
        took = f"{result.seconds:9.1f}" if result.seconds is not None else f"> {_LIMIT_S:.0f}"
        print(f"{method:>12} {took:>9} {result.processes_kept:>15}  {result.restored}", flush=True)


if __name__ == "__main__":
    main()
