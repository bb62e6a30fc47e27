"""What a save costs training: torch.save, DCP, DCP's own asynchronous saves, and Prism, one after the other.

    python benchmarks/checkpoint.py                                  # CPU, 1 GB
    python benchmarks/checkpoint.py --device cuda --sizes 1,8,20     # needs PYTHONPATH=src, torch and numpy only

Every method runs in a process of its own, on the same state and the same training step. The stall is what the step
with the save takes longer than the median step without, from the save call to the moment where the state may change
again, so a method that only puts the wait off gains nothing. The first save of a process (memory is allocated, pinned,
a process started) is shown apart. The overhead is how much longer steps take while a background write is going on.
Prism's times include checksums, reading back and the commit; the others only write.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from machine import describe_machine
from prism.recover import Retention
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health

METHODS = ("torch.save", "DCP sync", "DCP async (thread)", "DCP async (best)", "Prism", "Prism (overlap)")
_PIECE_BYTES = 64 << 20
_BASELINE_STEPS = 12


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


class Saver:
    """A way to save: `save` returns when the call does, `settle` when the state may change, `finish` when written."""

    def __init__(self, state: dict[str, Any], folder: Path, device: str) -> None:
        self.state = state
        self.folder = folder
        self.device = device

    def save(self, step: int) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the state may change."""

    def writing(self) -> bool:
        """Whether a write goes on in the background."""
        return False

    def finish(self) -> None:
        """Wait until everything is written."""

    def close(self) -> None:
        """Clean up."""


class TorchSave(Saver):
    def save(self, step: int) -> None:
        with (self.folder / "state.pt").open("wb") as handle:
            torch.save(self.state, handle)
            handle.flush()
            os.fsync(handle.fileno())


class DcpSync(Saver):
    def save(self, step: int) -> None:
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(self.folder / f"dcp-{step}"))


class DcpAsync(Saver):
    """`best`: a process that writes from shared memory, and on a GPU pinned memory and staging on a side stream."""

    def __init__(self, state: dict[str, Any], folder: Path, device: str, *, best: bool) -> None:
        super().__init__(state, folder, device)
        gpu = device == "cuda"
        self.kind = AsyncCheckpointerType.PROCESS if best else AsyncCheckpointerType.THREAD
        self.stager = DefaultStager(StagingOptions(gpu, True, True, gpu)) if best else None
        self.response: Any = None

    def save(self, step: int) -> None:
        self.response = dcp.async_save(
            self.state,
            storage_writer=dcp.FileSystemWriter(self.folder / f"dcp-{step}"),
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )

    def settle(self) -> None:
        if self.stager is not None and self.response is not None:
            self.response.staging_completion.result()

    def _upload(self) -> Any:
        return getattr(self.response, "upload_completion", self.response)

    def writing(self) -> bool:
        return self.response is not None and not self._upload().done()

    def finish(self) -> None:
        if self.response is not None:
            self._upload().result()

    def close(self) -> None:
        if self.stager is not None:
            self.stager.close()


class Prism(Saver):
    def __init__(self, state: dict[str, Any], folder: Path, device: str, memory: Path, *, overlap: bool) -> None:
        super().__init__(state, folder, device)
        size = sum(t.numel() * t.element_size() for t in state["model"].values())
        self.config = CheckpointConfig(
            folder=folder / "prism",
            interval_steps=1,
            memory_dir=memory,
            memory_budget_bytes=int(size * 1.1) + (1 << 20),
            overlap=overlap,
            watch_signals=False,
            retention=Retention(keep_last=1),
        )
        self.checkpointer = Checkpointer(self.config)

    def save(self, step: int) -> None:
        self.checkpointer.save(step, self.state, Health(loss=0.0))

    def settle(self) -> None:
        self.checkpointer.wait_staged()

    def writing(self) -> bool:
        return any(slot.busy for slot in self.checkpointer.memory.slots)

    def finish(self) -> None:
        self.checkpointer.wait_written()
        if self.checkpointer.last_error:
            raise RuntimeError(self.checkpointer.last_error)

    def restore_times(self) -> tuple[float, float]:
        """From memory, then from storage with every checksum."""
        memory = self.checkpointer.restore(self.state)
        assert memory is not None and memory.source == "memory"
        for slot in self.checkpointer.memory.slots:
            slot.header_path.unlink(missing_ok=True)
        storage = self.checkpointer.restore(self.state)
        assert storage is not None and storage.source == "storage"
        return memory.seconds, storage.seconds

    def close(self) -> None:
        self.checkpointer.close()


def make_saver(method: str, state: dict[str, Any], folder: Path, device: str, memory: Path) -> Saver:
    """The saver of that name."""
    makers: dict[str, Callable[[], Saver]] = {
        "torch.save": lambda: TorchSave(state, folder, device),
        "DCP sync": lambda: DcpSync(state, folder, device),
        "DCP async (thread)": lambda: DcpAsync(state, folder, device, best=False),
        "DCP async (best)": lambda: DcpAsync(state, folder, device, best=True),
        "Prism": lambda: Prism(state, folder, device, memory, overlap=False),
        "Prism (overlap)": lambda: Prism(state, folder, device, memory, overlap=True),
    }
    return makers[method]()


class Training:
    """A step of fixed work that reads nothing of the state, then changes every tensor of it, as an optimizer does."""

    def __init__(self, state: dict[str, Any], device: str, step_s: float) -> None:
        self.state = state
        self.device = device
        side = 4096 if device == "cuda" else 512
        self.matrix = torch.randn(side, side, device=device) / side
        self.repeats = 1
        took = min(self._timed() for _ in range(5))
        self.repeats = max(1, round(step_s / max(took, 1e-6)))

    def step(self, saver: Saver, save_at: int | None = None) -> float:
        """Seconds of one step; with a save at its start if wanted."""
        start = time.perf_counter()
        if save_at is not None:
            saver.save(save_at)
        self._compute()
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
        torch.set_num_threads(1)  # leave a core to the background, as a GPU job does
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    pieces = max(1, round(gigabytes * 1e9 / _PIECE_BYTES))
    model = {f"layer{i}": torch.randn(_PIECE_BYTES // 4, device=options.device) for i in range(pieces)}
    state: dict[str, Any] = {"model": model, "position": {"step": 0}}
    folder = Path(tempfile.mkdtemp(prefix="prism-bench-", dir=options.folder))
    saver = make_saver(method, state, folder, options.device, options.memory_dir)
    try:
        training = Training(state, options.device, options.step_s)
        baseline = statistics.median(training.step(saver) for _ in range(_BASELINE_STEPS))
        synchronous = method in METHODS[:2]
        first = 0.0 if synchronous else training.step(saver, 0) - baseline
        saver.finish()
        stalls, writes, during = [], [], []
        for save in range(1, options.saves + 1):
            start = time.perf_counter()
            stalls.append(training.step(saver, save) - baseline)
            while saver.writing():
                took = training.step(saver)
                if saver.writing():
                    during.append(took)
            saver.finish()
            writes.append(time.perf_counter() - start)
            for old in folder.glob("dcp-*"):
                shutil.rmtree(old)
        memory_s, storage_s = saver.restore_times() if isinstance(saver, Prism) else (None, None)
        # The mean, not the median: a few long steps are a cost too.
        overhead = 100.0 * (statistics.fmean(during) / baseline - 1.0) if len(during) >= 3 else None
        return Result(
            method=method,
            first_s=first,
            stall_s=statistics.median(stalls),
            write_s=statistics.median(writes),
            overhead_pct=overhead,
            restore_memory_s=memory_s,
            restore_storage_s=storage_s,
        )
    finally:
        saver.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Compare the methods at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", default="1", help="gigabytes of state, with commas")
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.5)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="storage to write to")
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "GB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        result = measure(options.one[0], float(options.one[1]), options)
        print("RESULT " + json.dumps(asdict(result)), flush=True)
        return
    device = torch.cuda.get_device_name(0) if options.device == "cuda" else "CPU, one thread for the step"
    print(f"{describe_machine()}; {device}; torch {torch.__version__}; steps of {options.step_s:g} s")
    for size in options.sizes.split(","):
        compare(float(size), options)


def compare(gigabytes: float, options: argparse.Namespace) -> None:
    """Run all methods at one size, each in its own process, and print the table."""
    print(f"\n{gigabytes:g} GB of state{'method':>12} {'stall':>10} {'vs torch.save':>14} {'first save':>11} ", end="")
    print(f"{'written':>9} {'step overhead':>14} {'restore: memory':>16} {'storage':>9}")
    results: dict[str, Result] = {}
    for method in options.methods.split(","):
        command = [sys.executable, __file__, "--one", method, str(gigabytes), *sys.argv[1:]]
        done = subprocess.run(command, capture_output=True, text=True)
        line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
        if line is None:
            print(f"{method:>30}  failed: {(done.stderr.strip().splitlines() or ['no output'])[-1][:120]}", flush=True)
            continue
        results[method] = Result(**json.loads(line.removeprefix("RESULT ")))
        print(render(results[method], results.get("torch.save")), flush=True)
    judge(results)


def render(result: Result, reference: Result | None) -> str:
    """One row."""
    ratio = f"{reference.stall_s / max(result.stall_s, 1e-4):.1f}x less" if reference else ""
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
    slow = [results[name] for name in METHODS[:2] if name in results]
    if not ours or not theirs or not slow:
        return
    best = min(ours, key=lambda r: r.stall_s)
    peer = min(theirs, key=lambda r: r.stall_s)
    floor = 1e-3  # below a millisecond the clock of a step says nothing
    ratio = min(r.stall_s for r in slow) / max(best.stall_s, floor)
    print(f"  at least 20x less than synchronous: {'yes' if ratio >= 20 else 'NO'} ({ratio:.1f}x, {best.method})")
    worse = best.stall_s > max(peer.stall_s, floor) * 1.1
    print(f"  no worse than DCP's best: {'NO' if worse else 'yes'} ({best.stall_s:.3f} s against {peer.stall_s:.3f} s)")
    known = [r.overhead_pct for r in ours if r.overhead_pct is not None]
    if known:
        print(f"  step overhead under 3 % while writing: {'yes' if min(known) < 3 else 'NO'} ({min(known):+.1f} %)")


if __name__ == "__main__":
    main()
