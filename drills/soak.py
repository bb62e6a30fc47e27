"""`python -m drills.soak`: a long run under hundreds of random faults; nothing may be lost."""

# ruff: noqa: T201 (a program of its own)
from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from drills.outcome import require
from drills.stage import DrillError, Job, Stage, read_losses, undisturbed_losses
from prism.recover.catalog import Catalog

_STEPS_PER_FAULT = 16
_SETTINGS = {
    "restarts": {
        "budgets": {"infrastructure": 10_000, "hang": 10_000, "unknown": 10_000, "framework": 10_000},
        "backoff_s": 0.1,
        "max_without_progress": 20,
    },
    "pace": {"min_silence_s": 6.0, "hang_steps": 50.0, "slow_factor": 0.0},
    "losses": {"max_rollbacks": 0},
}


@dataclass(slots=True, kw_only=True)
class Soak:
    """The run, and what was done to it."""

    stage: Stage
    random: random.Random
    done: Counter[str] = field(default_factory=Counter)
    recovery_s: list[float] = field(default_factory=list)
    lost_steps: list[int] = field(default_factory=list)

    def hurt(self) -> str:
        """Do one random harm; its name."""
        name = self.random.choice(list(FAULTS))
        FAULTS[name](self)
        self.done[name] += 1
        return name

    def a_rank(self) -> int:
        """The process of a random rank."""
        return self.stage.rank_pid(self.random.randrange(self.stage.job.ranks))


def kill_rank(soak: Soak) -> None:
    """kill -9 a rank."""
    os.kill(soak.a_rank(), signal.SIGKILL)


def kill_tree(soak: Soak) -> None:
    """kill -9 all of them."""
    for pid in soak.stage.attempt_pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def stop_rank(soak: Soak) -> None:
    """A hang."""
    os.kill(soak.a_rank(), signal.SIGSTOP)


def abort_rank(soak: Soak) -> None:
    """A crash in native code."""
    os.kill(soak.a_rank(), signal.SIGSEGV)


def preempt(soak: Soak) -> None:
    """The warning before a machine is taken away."""
    os.kill(soak.a_rank(), signal.SIGTERM)


def kill_supervisor(soak: Soak) -> None:
    """kill -9 the supervisor and a rank; init starts the supervisor again."""
    supervisor = soak.stage.supervisor
    assert supervisor is not None
    supervisor.kill()
    supervisor.wait()
    kill_rank(soak)
    soak.stage.start()


def corrupt_newest(soak: Soak) -> None:
    """Damage the newest checkpoint, then kill a rank."""
    newest = Catalog(soak.stage.checkpoints).entries()[-1:]
    for entry in newest:
        for path in entry.path.glob("*.distcp"):
            with path.open("r+b") as handle:
                handle.write(b"\0" * 16)
    kill_rank(soak)


FAULTS: dict[str, Callable[[Soak], None]] = {
    "kill a rank": kill_rank,
    "kill the tree": kill_tree,
    "stop a rank": stop_rank,
    "crash a rank": abort_rank,
    "preempt": preempt,
    "kill the supervisor": kill_supervisor,
    "corrupt a checkpoint": corrupt_newest,
}


def run_soak(folder: Path, num_faults: int, seed: int) -> Soak:
    """Hurt the run again and again, each time after it has recovered."""
    job = Job(steps=num_faults * _STEPS_PER_FAULT, save_every=5, step_s=0.02)
    expected = undisturbed_losses(folder / "reference", job)
    soak = Soak(
        stage=Stage(folder=folder / "soak", job=job, settings=dict(_SETTINGS), timeout_s=300.0),
        random=random.Random(seed),
    )
    stage = soak.stage
    try:
        stage.start()
        for number in range(num_faults):
            ahead = soak.random.randint(2, _STEPS_PER_FAULT - 2)
            stage.wait_step(min(job.steps - 2, max(stage.hurt_at_step, stage.last_step()) + ahead))
            stage.mark_hurt()
            name = soak.hurt()
            _wait_recovery(soak, number)
            told = f"{soak.recovery_s[-1]:.1f} s, {soak.lost_steps[-1]} steps lost"
            print(f"{number + 1:4} {name:22} at step {stage.hurt_at_step:5}: {told}", flush=True)
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
        found = read_losses(stage.losses)
        require({s: found.get(s) for s in expected} == expected, "the losses of an undisturbed run")
        return soak
    finally:
        stage.close()


def _wait_recovery(soak: Soak, number: int) -> None:
    """Wait for a step beyond the one that was hit, in a later attempt."""
    stage = soak.stage

    def recovered() -> bool:
        require(
            stage.state().outcome in ("", "done"), f"no stop after fault {number + 1}: {stage.state().outcome_text}"
        )
        later = [r for r in stage.reports(newest=2) if r["time"] >= stage.hurt_at_s and r["kind"] == "restored"]
        return bool(later) and stage.last_step() > stage.hurt_at_step

    stage.wait_for(f"recovery from fault {number + 1}", recovered)
    restored = next(r for r in stage.reports(newest=2) if r["time"] >= stage.hurt_at_s and r["kind"] == "restored")
    lost = max(0, stage.hurt_at_step - int(restored["step"]))
    require(lost <= 2 * stage.job.save_every, f"at most one interval and one damaged checkpoint lost, not {lost} steps")
    soak.lost_steps.append(lost)
    soak.recovery_s.append(time.time() - stage.hurt_at_s)


def main() -> int:
    """Run the soak and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prism-soak-") as folder:
        try:
            soak = run_soak(Path(folder), options.faults, options.seed)
        except DrillError as error:
            print(f"soak FAILED: {error}")
            return 1
    times, lost = sorted(soak.recovery_s), soak.lost_steps
    print(f"{sum(soak.done.values())} faults ({', '.join(f'{k} {v}' for k, v in soak.done.items())})")
    print(f"recovery: median {times[len(times) // 2]:.1f} s, worst {times[-1]:.1f} s; steps lost: worst {max(lost)}")
    print("no wrong stop; every loss equal to the undisturbed run's, to the bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
