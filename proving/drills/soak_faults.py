"""The faults of a soak: every kind that the drills show one by one, drawn at random and done to a supervised run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prism.recover.catalog import Catalog
from prism.recover.supervise.launchers.node import parent_of, words_of
from proving.drills.outcome import require
from proving.drills.plain_stage import PlainStage
from proving.drills.soak_ledger import Tally

STEPS_PER_FAULT = 14
GRACEFUL = ("terminate the launcher", "stop the supervisor")  # the trainer is told, so that no step may be lost
FAULTS = (
    "kill a rank",
    "crash a rank",
    "stop a rank",
    "kill a loader",
    "kill the tree",
    "kill the supervisor",
    "corrupt",
    "fill the disk",
    *GRACEFUL,
)
_BALLAST = "step-ballast"  # a name that a catalog passes over
_DISK_MB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done, so many steps after the run got over the last one."""

    name: str
    ahead: int


def draw(count: int, seed: int, without: Collection[str] = ()) -> list[Fault]:
    """The faults of a seed."""
    lot, names = random.Random(seed), [name for name in FAULTS if name not in without]
    return [Fault(name=lot.choice(names), ahead=lot.randint(3, STEPS_PER_FAULT - 4)) for _ in range(count)]


@contextmanager
def small_disk(folder: Path, faults: list[Fault]) -> Iterator[None]:
    """A disk of its own under a folder, if one of the faults is to fill it."""
    folder.mkdir(parents=True)
    if all(fault.name != "fill the disk" for fault in faults):
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "prism-soak", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Leave no room for a checkpoint; the file that takes it."""
    ballast = folder / _BALLAST
    with ballast.open("wb", buffering=0) as handle, suppress(OSError):  # a save under way may be quicker
        handle.write(b"\0" * max(0, shutil.disk_usage(folder).free - 8_192))
    return ballast


def find_loaders(pids: list[int], rank: int) -> list[int]:
    """The data loader workers of a rank: its forks."""
    return [pid for pid in pids if parent_of(pid) == rank and words_of(pid) == words_of(rank)]


def damage(files: list[Path]) -> None:
    """Overwrite the beginning of files."""
    for path in files:
        with path.open("r+b") as handle:
            handle.write(b"\0" * 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What was done."""

    kept: int  # the newest step that may not be lost by it
    over_s: float = 0.0  # how long the run was over, for it was stopped on purpose


def harm(stage: PlainStage, fault: Fault, tally: Tally) -> Harm:
    """Do it, to another rank each time."""
    attempt, checkpoints = stage.state().attempt, stage.run_dir / "checkpoints"
    saved = [0, *(entry.step for entry in Catalog(checkpoints).entries())]
    ranks = stage.ranks(attempt)
    rank = ranks[tally.faults % len(ranks)]
    match fault.name:
        case "crash a rank":
            os.kill(rank, signal.SIGSEGV)
        case "stop a rank":
            os.kill(rank, signal.SIGSTOP)
        case "kill a loader":
            stage.wait_for("a loader", lambda: bool(find_loaders(stage.processes(attempt), rank)))
            os.kill(find_loaders(stage.processes(attempt), rank)[0], signal.SIGKILL)
        case "kill the tree":
            for pid in stage.processes(attempt):
                os.kill(pid, signal.SIGKILL)
        case "kill the supervisor":
            assert stage.supervisor is not None
            stage.supervisor.kill()
            stage.supervisor.wait()
            os.kill(rank, signal.SIGKILL)
            stage.start()
        case "corrupt":
            damage([path for entry in Catalog(checkpoints).entries()[-1:] for path in entry.path.glob("*.distcp")])
            os.kill(rank, signal.SIGKILL)
            return Harm(kept=saved[-2] if len(saved) > 1 else 0)
        case "fill the disk":
            _fill_for_one_save(stage, attempt, checkpoints)
        case "terminate the launcher":
            os.kill(stage.launcher(attempt), signal.SIGTERM)
            return Harm(kept=tally.reached)
        case "stop the supervisor":
            return Harm(kept=tally.reached, over_s=_stop_and_start(stage))
        case _:
            os.kill(rank, signal.SIGKILL)
    return Harm(kept=saved[-1])


def _stop_and_start(stage: PlainStage) -> float:
    """As a user does; how long the run was over."""
    stage.ask_to_stop()
    stage.wait_for("the run to be stopped", lambda: stage.state().over)
    over_s = time.time()
    stage.wait_end()
    stage.start()
    stage.wait_for("the stopped run to be taken up", lambda: not stage.state().over)
    return time.time() - over_s


def _fill_for_one_save(stage: PlainStage, attempt: int, checkpoints: Path) -> None:
    """Training goes on over a save that fails, and the first with room again is good."""

    def count(kind: str) -> int:
        require(stage.state().attempt == attempt, f"no other attempt because of a full disk: {stage.said()[-600:]}")
        return sum(report["kind"] == kind for report in stage.reports(attempt))

    failed, ballast = count("save_failed"), fill(checkpoints)
    stage.wait_for("a failed save", lambda: count("save_failed") > failed)
    ballast.unlink()
    saved = count("saved")
    stage.wait_for("a save with room again", lambda: count("saved") > saved)
