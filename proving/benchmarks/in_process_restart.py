"""From the kill of one rank to the next step: in place with a spare and without, torchrun, torchft, NVIDIA's extension.

    python proving/benchmarks/in_process_restart.py                      # 8 ranks on the CPU
    python proving/benchmarks/in_process_restart.py --methods spare,torchrun --ranks 4

The same model (`examples/recover/in_place.py`, gloo; a checkpoint every 20 steps in memory and on storage, but for
torchft, which copies from a living replica) trains under each method. After step 60, with a checkpoint on storage, rank
1 is killed with SIGKILL; the time runs until a step is printed again. A spare is there before the kill; torchrun boots
everything after it. `nvrx` has one inactive rank as its spare; `torchft` goes on with one rank less. Each has its own
defaults, but for one variable of torchrun: torch 2.13 shares the rendezvous store between attempts, without a prefix of
the attempt, so that a rank of the second attempt finds the address of a dead one and restarts with gloo groups fail.
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` gives each attempt a store of its own (`torchrun-as-shipped` leaves it out).

Beside the seconds: the CPU time that all processes of the method used, the times that they gave up the CPU to wait, and
how many cores were left to them by the rest of the machine. CPU time over cores is what a restart takes when it never
waits; what is beyond it is waiting, or the machine's load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from machine import describe_machine

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "recover" / "in_place.py"
NEEDS = {"nvrx": "nvidia_resiliency_ext", "torchft": "torchft"}
METHODS = ("spare", "no-spare", "torchrun", "nvrx", "torchft")
TORCHRUN = {"torchrun": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, "torchrun-as-shipped": {}}
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What processes had used at one moment."""

    when_s: float
    cpu_s: float
    waits: int
    machine_s: float  # CPU time of everybody on this machine


@dataclass(slots=True, kw_only=True)
class Result:
    """One method, from the kill."""

    method: str
    killed: Usage
    restored: Usage | None = None
    stepped: Usage | None = None
    kept: int = 0
    log: str = ""

    def lines(self) -> list[str]:
        """The total, and each part."""
        if self.stepped is None:
            return [f"{self.method:>9}  no step in time; {self.killed.cpu_s:.1f} s CPU by then"]
        parts = [("to restored", self.killed, self.restored), ("to next step", self.restored, self.stepped)]
        rows = [self._row(f"{self.method:>9} in all", self.killed, self.stepped) + f", processes kept {self.kept}"]
        rows += [self._row(f"{name:>16}", a, b) for name, a, b in parts if a is not None and b is not None]
        said = re.findall(r"^generation \d+(?: starts|:).*", self.log, re.M)
        return rows + [f"{'':>16} {line}" for line in said]

    def _row(self, name: str, begin: Usage, end: Usage) -> str:
        wall_s, cpu_s = end.when_s - begin.when_s, end.cpu_s - begin.cpu_s
        others = max(0.0, end.machine_s - begin.machine_s - cpu_s) / max(wall_s, 1e-9)
        used = f"{wall_s:7.1f} s wall {cpu_s:7.1f} s CPU {end.waits - begin.waits:6} waits"
        return f"{name} {used}, others on {others:.1f} cores"


class Trial:
    """One method in a folder of its own; every process in that folder is its."""

    def __init__(self, method: str, ranks: int, limit_s: float) -> None:
        self.method, self.ranks, self.limit_s = method, ranks, limit_s
        self.folder = Path(tempfile.mkdtemp(prefix="prism-bench-"))
        self.log = self.folder / "log"
        self._cpu_s: dict[int, float] = {}  # by process, also of those that ended
        self._waits: dict[int, int] = {}  # by thread

    def run(self) -> Result:
        """Start, wait for step 60, kill rank 1, wait for the next step."""
        started = self._start()
        if not self._wait(lambda text: "step 60 " in text and (self.method == "torchft" or self._has_saved())):
            return Result(method=self.method, killed=self.usage())
        before = self.members() if self.method != "torchft" else {p.pid: str(n) for n, p in enumerate(started)}
        victim = next(pid for pid, rank in before.items() if rank == "1")
        size = self.log.stat().st_size
        result = Result(method=self.method, killed=self.usage())
        os.kill(victim, signal.SIGKILL)
        result.restored = self._wait(lambda text: "starts from" in text[size:])
        result.stepped = self._wait(lambda text: _begun_again(text[size:]))
        alive = self.members() if self.method != "torchft" else {p.pid: "" for p in started if p.poll() is None}
        result.kept = len(before.keys() & alive.keys())
        time.sleep(0.5)  # for the launcher's own account
        result.log = self.log.read_text(errors="replace")[size:]
        return result

    def _start(self) -> list[subprocess.Popen[bytes]]:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = str(probe.getsockname()[1])
        environment = os.environ | {"STEPS": "1000000", "SAVE_EVERY": "20", "BENCH_RANKS": str(self.ranks)}
        environment |= TORCHRUN.get(self.method, {})
        environment |= {"BENCH_DIR": str(self.folder), "BENCH_PORT": port}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *sys.path[1:]])
        with self.log.open("wb") as handle:
            return [
                subprocess.Popen(
                    [sys.executable, *words],
                    cwd=self.folder,
                    env=environment,
                    stdout=handle,
                    stderr=handle,
                    start_new_session=True,
                )
                for words in _commands(self.method, self.ranks)
            ]

    def _wait(self, true_of: Callable[[str], bool]) -> Usage | None:
        deadline = time.monotonic() + self.limit_s
        while not true_of(self.log.read_text(errors="replace")):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return self.usage()

    def _has_saved(self) -> bool:
        """Whether a checkpoint is on storage: every writer has booted."""
        return any((self.folder / "checkpoints").glob("step-*"))

    def usage(self) -> Usage:
        """What this method's processes have used so far."""
        for pid in self.processes():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self._cpu_s[pid] = (int(fields[11]) + int(fields[12])) * _TICK_S
                for task in Path(f"/proc/{pid}/task").iterdir():
                    count = re.findall(r"\nvoluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text())
                    self._waits[int(task.name)] = int(count[0])
        busy = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return Usage(
            when_s=time.monotonic(),
            cpu_s=sum(self._cpu_s.values()),
            waits=sum(self._waits.values()),
            machine_s=(sum(busy[:3]) + sum(busy[5:8])) * _TICK_S,
        )

    def processes(self) -> list[int]:
        """Every process that works in the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    found.append(int(entry.name))
        return found

    def members(self) -> dict[int, str]:
        """Ranks of processes that train, by the lock that each holds."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    path = link.readlink()
                    if path.name == "lock" and path.parent.name.startswith("rank-"):
                        found[pid] = str(int(path.parent.name.removeprefix("rank-")))
        return found

    def close(self) -> None:
        """End every process of this method, and remove what it left."""
        while left := self.processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.1)
        for path in Path("/dev/shm").glob("prism-*/run.json"):
            if str(self.folder) in path.read_text():
                shutil.rmtree(path.parent, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _commands(method: str, ranks: int) -> list[list[str]]:
    """What Python is started with."""
    if method in ("spare", "no-spare"):
        spares = "1" if method == "spare" else "0"
        start = ["-m", "prism.recover.checkpoint.inplace", "--ranks", str(ranks), "--spares", spares]
        return [[*start, "--", str(EXAMPLE)]]
    if method in TORCHRUN:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [[*start, "--max-restarts", "3", str(EXAMPLE)]]
    peer = Path(__file__).with_name(f"in_process_restart_{method}.py")
    return [[str(peer), str(rank)] for rank in range(ranks + (method == "nvrx"))]


def _begun_again(text: str) -> bool:
    """A step after a new beginning, not one that was still under way at the kill."""
    _, found, after = text.partition("starts from")
    return bool(found) and "\nstep " in after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--limit", type=float, default=400.0, help="seconds to wait for a start, and for a restart")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that every process is ended
    print(f"{describe_machine()}; {options.ranks} ranks")
    for method in options.methods.split(","):
        if method in NEEDS and find_spec(NEEDS[method]) is None:
            print(f"{method:>9}  not installed (pip install {NEEDS[method].replace('_', '-')})")
            continue
        print(f"{'':>9} load {os.getloadavg()[0]:.1f}", flush=True)
        trial = Trial(method, options.ranks, options.limit)
        try:
            print("\n".join(trial.run().lines()), flush=True)
        finally:
            if options.verbose:
                print(trial.log.read_text(errors="replace")[-3_000:])
            trial.close()


if __name__ == "__main__":
    main()
