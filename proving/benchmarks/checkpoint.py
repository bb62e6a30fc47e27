"""What a save costs training: torch.save, DCP, DCP's own asynchronous saves, and Prism, one after the other.

    python proving/benchmarks/checkpoint.py                                  # CPU, 1 GB
    python proving/benchmarks/checkpoint.py --device cuda --sizes 1,8,20     # needs torch and numpy only

Every method runs in a process of its own, on the same state and the same training step. The stall is what the step
with the save takes longer than the median step without, from the save call to the moment where the state may change
again, so a method that only puts the wait off gains nothing. The first save of a process (memory is allocated, pinned,
a process started) is shown apart. The overhead is how much longer steps take on the mean while a background write goes
on, against the steps just before. Prism's times include checksums, reading back and the commit; the others only write.

Without a GPU the training is played in one of two ways, and both are worth knowing:
  waiting    most of a step the host waits, as it does for a GPU, so a core is free (the default)
  computing  one thread per core computes all the time, so whatever is done in the background is paid by the step
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import torch
import torch.distributed as dist

from machine import describe_machine
from savers import METHODS, SYNCHRONOUS, Prism, Saver, make_saver

_PIECE_BYTES = 64 << 20
_BASELINE_STEPS = 8
_HOST_SHARE = 0.1  # of a step that waits: the host's own work


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One method at one size, in seconds."""

    method: str
    first_s: float
    stall_s: float
    write_s: float
    overhead_pct: float | None
    restore_memory_s: float | None = None
    restore_storage_s: float | None = None


class Training:
    """A step of fixed length that reads nothing of the state, then changes every tensor of it, as an optimizer does."""

    def __init__(self, state: dict[str, Any], options: argparse.Namespace) -> None:
        self.state = state
        self.device = options.device
        waits = options.device == "cpu" and options.training == "waiting"
        self.wait_s = options.step_s * (1.0 - _HOST_SHARE) if waits else 0.0
        side = 4096 if options.device == "cuda" else 512
        self.matrix = torch.randn(side, side, device=options.device) / side
        self.repeats = 1
        took = min(self._timed() for _ in range(5))
        self.repeats = max(1, round((options.step_s - self.wait_s) / max(took, 1e-6)))

    def step(self, saver: Saver, save_at: int | None = None) -> float:
        """Seconds of one step; with a save at its start if wanted."""
        start = time.perf_counter()
        if save_at is not None:
            saver.save(save_at)
        self._compute()
        time.sleep(self.wait_s)
        saver.settle()
        for tensor in self.state["model"].values():
            tensor[:1].add_(1.0)
        self._sync()
        return time.perf_counter() - start

    def _timed(self) -> float:
        start = time.perf_counter()
        self._compute()
        self._sync()
        return time.perf_counter() - start

    def _compute(self) -> None:
        product = self.matrix
        for _ in range(self.repeats):
            product = product @ self.matrix

    def _sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure(method: str, gigabytes: float, options: argparse.Namespace) -> Result:
    """Run one method in this process."""
    if options.device == "cpu":
        torch.set_num_threads(1 if options.training == "waiting" else os.cpu_count() or 1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    pieces = max(1, round(gigabytes * 1e9 / _PIECE_BYTES))
    model = {f"layer{i}": torch.randn(_PIECE_BYTES // 4, device=options.device) for i in range(pieces)}
    state: dict[str, Any] = {"model": model, "position": {"step": 0}}
    folder = Path(tempfile.mkdtemp(prefix="prism-bench-", dir=options.folder))
    saver = make_saver(method, state, folder, options.device, options.memory_dir)
    try:
        return measure_saves(saver, Training(state, options), method, options.saves)
    finally:
        for writer in multiprocessing.active_children():  # the last write tells nothing new: no one waits for it
            writer.kill()
            writer.join()
        saver.close()
        shutil.rmtree(folder, ignore_errors=True)


def measure_saves(saver: Saver, training: Training, method: str, num_saves: int) -> Result:
    """One save to warm up, then the ones that count; restores in between, while nothing is being written."""
    stalls: list[float] = []
    writes: list[float] = []
    ratios: list[float] = []
    restored: tuple[float | None, float | None] = (None, None)
    first = 0.0
    for save in range(num_saves if method in SYNCHRONOUS else num_saves + 1):
        steps = [training.step(saver) for _ in range(_BASELINE_STEPS)]
        usual = statistics.median(steps)
        start = time.perf_counter()
        stall = training.step(saver, save) - usual
        if save == 0 and method not in SYNCHRONOUS:
            first = stall
        else:
            stalls.append(stall)
        if save < num_saves or method in SYNCHRONOUS:  # the last write is given up
            ratios += [took / statistics.fmean(steps) for took in steps_while_writing(saver, training)]
            saver.finish()
            writes.append(time.perf_counter() - start)
        for old in list(saver.folder.glob("dcp-*"))[:-1]:
            shutil.rmtree(old)
        if save == 0 and isinstance(saver, Prism):
            restored = saver.restore_times()
    return Result(
        method=method,
        first_s=first,
        stall_s=statistics.median(stalls),
        write_s=statistics.median(writes),
        # The mean, not the median: a few long steps are a cost too.
        overhead_pct=100.0 * (statistics.fmean(ratios) - 1.0) if len(ratios) >= 3 else None,
        restore_memory_s=restored[0],
        restore_storage_s=restored[1],
    )


def steps_while_writing(saver: Saver, training: Training) -> list[float]:
    """Train on until the write is over; steps that lay wholly within it, once the writer's process has started."""
    during = []
    while saver.writing():
        begun = any(saver.folder.rglob("*.distcp"))
        took = training.step(saver)
        if begun and saver.writing():
            during.append(took)
    return during


def run_apart(work: Callable[[], Any]) -> Any:
    """Do something in a child, which has torch loaded already, and hand its answer back."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(there, work))
    child.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = "ended without an answer"
    child.join()
    return answer


def _answer(there: Connection, work: Callable[[], Any]) -> None:
    try:
        there.send(work())
    except Exception as error:  # the outermost loop of the child: told, and the next method goes on
        traceback.print_exc()
        there.send(f"{type(error).__name__}: {str(error)[:160]}")
    there.close()
    os._exit(0)  # without waiting for threads that wait for the writer


def main() -> None:
    """Compare the methods at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--training", default="waiting", choices=("waiting", "computing"), help="on the CPU")
    parser.add_argument("--sizes", default="1", help="gigabytes of state, with commas")
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.5)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="storage to write to")
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    device = f"a CPU that is {options.training}"
    if options.device == "cuda":
        device = run_apart(lambda: torch.cuda.get_device_name(0))  # apart: a process that has used CUDA cannot fork
    print(f"{describe_machine()}; {device}; torch {torch.__version__}; steps of {options.step_s:g} s")
    for size in options.sizes.split(","):
        compare(float(size), options)


def compare(gigabytes: float, options: argparse.Namespace) -> None:
    """Run all methods at one size and print the table."""
    print(f"\n{gigabytes:g} GB of state{'method':>12} {'stall':>10} {'vs torch.save':>14} {'first save':>11} ", end="")
    print(f"{'written':>9} {'step overhead':>14} {'restore: memory':>16} {'storage':>9}")
    results: dict[str, Result] = {}
    for method in options.methods.split(","):
        start = time.perf_counter()
        answer = run_apart(lambda method=method: measure(method, gigabytes, options))  # type: ignore[misc]
        if not isinstance(answer, Result):
            print(f"{method:>30}  failed: {answer}", flush=True)
            continue
        results[method] = answer
        took = time.perf_counter() - start
        print(f"{render(answer, results.get('torch.save'))}   ({took:.0f} s in all)", flush=True)
    judge(results)


def render(result: Result, reference: Result | None) -> str:
    """One row."""
    ratio = f"{reference.stall_s / max(result.stall_s, 1e-3):.1f}x less" if reference else ""
    overhead = "" if result.overhead_pct is None else f"{result.overhead_pct:+.1f} %"
    restored = [f"{x:.2f} s" if x is not None else "" for x in (result.restore_memory_s, result.restore_storage_s)]
    return (
        f"{result.method:>30} {result.stall_s:9.3f}s {ratio:>14} {result.first_s:10.2f}s {result.write_s:8.1f}s "
        f"{overhead:>14} {restored[0]:>16} {restored[1]:>9}"
    )


def judge(results: dict[str, Result]) -> None:
    """Say whether the goals are met."""
    ours = [r for name, r in results.items() if name.startswith("Prism")]
    theirs = [r for name, r in results.items() if name.startswith("DCP async")]
    slow = [results[name] for name in SYNCHRONOUS if name in results]
    if not ours or not theirs or not slow:
        return
    best = min(ours, key=lambda r: r.stall_s)
    peer = min(theirs, key=lambda r: r.stall_s)
    floor = 1e-3  # below a millisecond the clock of a step says nothing
    for reference in slow:
        ratio = reference.stall_s / max(best.stall_s, floor)
        said = "yes" if ratio >= 20 else "NO"
        print(f"  at least 20x less than {reference.method}: {said} ({ratio:.1f}x, {best.method})")
    worse = best.stall_s > max(peer.stall_s, floor) * 1.1
    print(f"  no worse than DCP's best: {'NO' if worse else 'yes'} ({best.stall_s:.3f} s against {peer.stall_s:.3f} s)")
    known = [r.overhead_pct for r in ours if r.overhead_pct is not None]
    if known:
        print(f"  step overhead under 3 % while writing: {'yes' if max(known) < 3 else 'NO'} ({max(known):+.1f} %)")


if __name__ == "__main__":
    main()
