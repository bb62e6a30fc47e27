"""Harm to processes, files and numbers, on one machine and without privileges (but for the full disk)."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prism.recover.catalog import Catalog
from proving.drills.outcome import Outcome, measure, require
from proving.drills.stage import Job, Stage, undisturbed_losses

JOB = Job()
HANG_SETTINGS: dict[str, Any] = {"pace": {"min_silence_s": 8.0, "hang_steps": 20.0}}
_FULL_DISK_KB = 3_000


class Script:
    """Drills that share an undisturbed run."""

    def __init__(
        self, folder: Path, stage: Callable[..., Stage] = Stage, shrink: Callable[[Job], Job] = lambda job: job
    ) -> None:
        self.folder = folder
        self._make_stage = stage  # another kind of place to run on
        self._shrink = shrink  # where less than the whole job will do
        self._references: dict[tuple[int, int, str], dict[int, str]] = {}

    def stage(self, name: str, job: Job = JOB, **settings: object) -> Stage:
        """A stage with a folder of its own."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return self._make_stage(folder=folder, job=self._shrink(job), settings=dict(settings))

    def reference(self, job: Job = JOB, skip: str = "", ranks: int | None = None) -> dict[int, str]:
        """The undisturbed losses, computed once."""
        job = self._shrink(job)
        key = (job.steps, ranks or job.ranks, skip)
        if key not in self._references:
            folder = self.folder / f"reference-{len(self._references)}"
            self._references[key] = undisturbed_losses(folder, replace(job, ranks=key[1]), skip)
        return self._references[key]


def kill_rank(script: Script) -> Outcome:
    """kill -9 one rank."""
    stage = script.stage("kill-rank", replace(JOB, writer="process"))
    return disturb(script, "kill -9 a rank", stage, 25, lambda: os.kill(stage.rank_pid(2), signal.SIGKILL))


def kill_tree(script: Script) -> Outcome:
    """kill -9 every process of the job at once."""
    stage = script.stage("kill-tree")

    def hurt() -> None:
        for pid in stage.attempt_pids():
            os.kill(pid, signal.SIGKILL)

    return disturb(script, "kill the process tree", stage, 25, hurt)


def kill_supervisor(script: Script) -> Outcome:
    """kill -9 the supervisor, then a rank while no one looks; the supervisor is started again, as init would."""
    stage = script.stage("kill-supervisor")

    def hurt() -> None:
        assert stage.supervisor is not None
        stage.supervisor.kill()
        stage.supervisor.wait()
        before = stage.last_step()
        stage.wait_step(before + 3)  # training does not need its supervisor
        stage.mark_hurt()
        os.kill(stage.rank_pid(1), signal.SIGKILL)
        time.sleep(1.0)
        stage.start()

    return disturb(script, "kill -9 the supervisor", stage, 25, hurt)


def stop_rank(script: Script) -> Outcome:
    """SIGSTOP one rank: no exit, no log line, only silence."""
    stage = script.stage("stop-rank", **HANG_SETTINGS)
    outcome = disturb(script, "stop a rank (hang)", stage, 25, lambda: os.kill(stage.rank_pid(3), signal.SIGSTOP))
    if stage.launcher != "local":
        return outcome  # stacks are taken on this machine only
    stacks = (stage.run_dir / "attempts" / "0001" / "stacks.txt").read_text()
    require("train" in stacks, "the stacks of the hung ranks")
    require("T (stopped)" in stacks, "the stopped rank in the stacks")
    return outcome


def corrupt_newest(script: Script) -> Outcome:
    """Flip bytes in the newest checkpoint, lose the memory, kill the job: the one before must be used."""
    stage = script.stage("corrupt")

    def hurt() -> None:
        stage.wait_saved(20)
        victim = max(Catalog(stage.checkpoints).final_path(20).glob("*.distcp"), key=lambda p: p.stat().st_size)
        with victim.open("r+b") as handle:
            handle.seek(victim.stat().st_size // 2)
            handle.write(b"\xff" * 64)
        shutil.rmtree(stage.memory, ignore_errors=True)
        for pid in stage.attempt_pids():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(stage.memory, ignore_errors=True)

    outcome = disturb(script, "corrupt the newest checkpoint", stage, 23, hurt, most_lost=2 * JOB.save_every)
    require(outcome.source == "storage", "a restore from storage")
    told = (stage.run_dir / "decisions.log").read_text()
    require("checkpoint 20 is damaged" in told, "the damage in the decision log")
    return replace(outcome, note="the newest was the damage; the one before was used")


def fill_disk(script: Script) -> Outcome:
    """Fill the disk under the checkpoints during training: saves fail, training does not, nothing good is lost."""
    stage = script.stage("full-disk", replace(JOB, steps=80))
    stage.checkpoints.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_FULL_DISK_KB}k", "prism-drill", str(stage.checkpoints)], check=True
    )
    try:
        ballast = stage.checkpoints / "step-ballast"  # a name that a catalog passes over

        def hurt() -> None:
            stage.wait_saved(10)
            with ballast.open("wb") as handle:
                free = shutil.disk_usage(stage.checkpoints).free
                handle.write(b"\0" * max(0, free - 8_192))
            stage.wait_for("a failed save", lambda: any(r["kind"] == "save_failed" for r in stage.reports()))
            require(Catalog(stage.checkpoints).last_good() is not None, "a good checkpoint on the full disk")
            ballast.unlink()

        outcome = disturb(script, "fill the disk during a save", stage, 12, hurt)
        failed = [r["step"] for r in stage.reports() if r["kind"] == "save_failed"]
        saved = [r["step"] for r in stage.reports() if r["kind"] == "saved"]
        require(outcome.attempts == 1, "no restart")
        require(max(saved) > max(failed), "saves after space came back")
        return replace(outcome, note=f"saves {failed} failed, the next were good")
    finally:
        subprocess.run(["umount", str(stage.checkpoints)], check=False)


def poison_nan(script: Script) -> Outcome:
    """One batch makes the loss NaN, every time it is met."""
    return _poison(script, "NaN in the loss", "nan:34-34", {"min_history": 15})


def poison_spike(script: Script) -> Outcome:
    """A stretch of batches throws the loss up, and the model with it."""
    return _poison(script, "a loss spike", "spike:34-36", {"min_history": 15, "patience": 3})


def bug_at_start(script: Script) -> Outcome:
    """A TypeError before the first step: no restart can help."""
    return _stopped(script, "a TypeError at start-up", replace(JOB, more=("--raise-at", "0")))


def bug_at_step_50(script: Script) -> Outcome:
    """A TypeError in the middle of training: still a bug of the program."""
    return _stopped(script, "a TypeError at step 50", replace(JOB, more=("--raise-at", "50")))


def disturb(
    script: Script, name: str, stage: Stage, step: int, hurt: Callable[[], None], most_lost: int | None = None
) -> Outcome:
    """Let it run to a step, do harm, fold hands, check."""
    expected = script.reference(stage.job)
    try:
        stage.start()
        stage.wait_step(step)
        stage.mark_hurt()
        hurt()
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
        outcome = measure(name, stage, expected)
        require(outcome.equal is True, "the losses of an undisturbed run")
        allowed = stage.job.save_every if most_lost is None else most_lost
        require(outcome.lost_steps <= allowed, f"at most {allowed} steps lost, not {outcome.lost_steps}")
        return outcome
    finally:
        stage.close()


def _poison(script: Script, name: str, poison: str, losses: dict[str, object]) -> Outcome:
    stage = script.stage(poison.partition(":")[0], replace(JOB, more=("--poison", poison)), losses=losses)
    try:
        stage.start()
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome} ({state.outcome_text})")
        require(state.num_rollbacks in (1, 2), f"one rollback or two, not {state.num_rollbacks}")
        skip = ",".join(map(str, state.skip))
        bad = next(r for r in stage.reports() if r["kind"] == "step" and _is_bad(r["loss"]))
        stage.hurt_at_step, stage.hurt_at_s = bad["step"], bad["time"]
        outcome = measure(name, stage, script.reference(stage.job, skip), note=f"left out batches {skip}")
        require(outcome.equal is True, "the losses of an undisturbed run without those batches")
        require(outcome.lost_steps <= stage.job.save_every, "at most one interval lost")
        return outcome
    finally:
        stage.close()


def _is_bad(loss: float | str) -> bool:
    return not math.isfinite(float(loss)) or float(loss) > 100.0


def _stopped(script: Script, name: str, job: Job) -> Outcome:
    stage = script.stage(name.replace(" ", "-"), job)
    try:
        stage.start()
        state = stage.wait_end()
        require(state.outcome == "failed", f"the run to be stopped, not {state.outcome}")
        require(state.attempt == 1, f"one attempt, not {state.attempt}")
        require("TypeError" in state.outcome_text, f"the TypeError named, not: {state.outcome_text}")
        return measure(name, stage, None, note="stopped and told, not restarted")
    finally:
        stage.close()
