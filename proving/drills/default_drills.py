"""Drills on scripts as users write them, with the default settings of everything."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prism.recover.catalog import Catalog
from proving.drills.outcome import Outcome, require
from proving.drills.plain_stage import EXAMPLES, TORCHRUN, TRAINERS, PlainStage, outcome_of


def kill_rank_of_the_example(folder: Path) -> Outcome:
    """kill -9 of one rank of the shipped example, after its first checkpoint."""
    stage = PlainStage(
        folder=folder,
        command=(*TORCHRUN, "--nproc-per-node", "2", str(EXAMPLES / "plain_loop.py")),
        variables={"STEPS": "1000000"},
        hosts=2,
    )
    stage.start()
    try:
        stage.wait_report(1, "saved")
        os.kill(stage.ranks(1)[-1], signal.SIGKILL)
        stage.wait_report(2, "step")
        require(not stage.state().over, f"the run to go on: {stage.said()}")
        restored = next(r for r in stage.reports(2) if r["kind"] == "restored")
        last = max(r["step"] for r in stage.reports(1) if r["kind"] == "step")
        return outcome_of(stage, "kill-example", lost_steps=last - restored["step"], source=restored["source"])
    finally:
        stage.close()


_UNDER_WAY = {"hf_trainer.py": "'loss'", "lightning_fit.py": "Modules in train mode"}


def kill_unchanged(folder: Path, script: str, launcher: tuple[str, ...], options: tuple[str, ...] = ()) -> Outcome:
    """kill -9 of a training script without Prism in it: it is restarted and ends as done, exit code 0."""
    stage = PlainStage(
        folder=folder,
        command=(*launcher, str(TRAINERS / script), str(folder / "out"), "40"),
        options=options,
        variables={"STEP_S": "0.2"},
    )
    stage.start()
    try:
        stage.wait_text(1, _UNDER_WAY[script])
        time.sleep(1.0)
        os.kill(stage.ranks(1)[0], signal.SIGKILL)
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome_text}: {stage.said()}")
        require(stage.supervisor is not None and stage.supervisor.returncode == 0, "exit code 0")
        require("weights" in stage.log(state.attempt), "the script to have come to its own end")
        require(state.attempt == 2, f"one restart, not {state.attempt - 1}")
        weights = stage.log(state.attempt).rsplit("weights", 1)[1].strip()
        return outcome_of(stage, f"kill {script}", note=f"weights {weights}")
    finally:
        stage.close()


def resume_exactly(folder: Path, script: str, launcher: tuple[str, ...]) -> Outcome:
    """kill -9 of an unchanged script under `--checkpoint auto`: it ends with the weights of an undisturbed run."""
    words = (*launcher, str(TRAINERS / script))
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}  # as the stage sets it: sums depend on the number of threads
    alone = subprocess.run((*words, str(folder / "alone"), "40"), capture_output=True, text=True, env=plain)
    stage = PlainStage(
        folder=folder / "prism",
        command=(*words, "out", "40"),
        options=("--checkpoint", "auto"),
        settings={"checkpoint": {"interval_steps": 5}},
        variables={"STEP_S": "0.2"},
    )
    stage.start()
    try:
        stage.wait_report(1, "step", 12)
        os.kill(stage.ranks(1)[0], signal.SIGKILL)
        state = stage.wait_end()
        require(state.outcome == "done", f"the run to be done, not {state.outcome_text}: {stage.said()}")
        restored = next(r for r in stage.reports(2) if r["kind"] == "restored")
        weights = [text.rsplit("weights", 1)[-1].strip() for text in (alone.stdout, stage.log(2))]
        require(weights[0] == weights[1], f"equal weights, not {weights}")
        found = outcome_of(
            stage, f"resume {script}", lost_steps=max(0, 12 - restored["step"]), source=restored["source"]
        )
        return replace(found, equal=True)
    finally:
        stage.close()


def stop_with_loaders(folder: Path) -> Outcome:
    """SIGTERM to the supervisor of a job with data loader workers: the last step is saved and committed."""
    stage = _loader_stage(folder)
    stage.start()
    try:
        stage.wait_report(1, "step", 10)
        stage.ask_to_stop()
        state = stage.wait_end()
        require(state.outcome == "stopped", f"the run to be stopped, not {state.outcome}: {stage.said()}")
        last = max(r["step"] for r in stage.reports(1) if r["kind"] == "step")
        saved = [entry.step for entry in Catalog(folder / "checkpoints").entries()]
        require(bool(saved) and saved[-1] == last, f"step {last} to be committed, found {saved}: {stage.log(1)[-500:]}")
        return outcome_of(stage, "stop-with-loaders", note=f"step {last} committed")
    finally:
        stage.close()


def terminate_torchrun(folder: Path) -> Outcome:
    """SIGTERM to torchrun, which passes it to loaders as well: saved, and started again as a preemption."""
    stage = _loader_stage(folder)
    stage.start()
    try:
        stage.wait_report(1, "step", 10)
        os.kill(stage.launcher(1), signal.SIGTERM)
        stage.wait_report(2, "step")
        state = stage.state()
        require(not state.failures, f"no failure to be counted: {state.failures}")
        last = max(r["step"] for r in stage.reports(1) if r["kind"] == "step")
        restored = next(r["step"] for r in stage.reports(2) if r["kind"] == "restored")
        require(restored == last, f"no step to be lost: {last} reached, {restored} restored")
        return outcome_of(stage, "terminate-torchrun", note=f"asked to end at step {last}")
    finally:
        stage.close()


def _loader_stage(folder: Path) -> PlainStage:
    return PlainStage(
        folder=folder,
        command=(*TORCHRUN, "--nproc-per-node", "2", str(TRAINERS / "ddp_loop.py"), "checkpoints", "100000"),
        variables={"STEP_S": "0.1"},
        hosts=2,
    )


TALKING = """\
import sys, time
for step in range(1, 100000):
    print(f"step {step} loss {1 / step:.4f}", "x" * 2000, flush=True)
    time.sleep(0.02)
"""


def fill_run_folder(folder: Path) -> Outcome:
    """A run folder that its own log fills: job and supervisor continue, and a later kill leads to a restart."""
    script = folder / "train.py"
    script.write_text(TALKING)
    stage = PlainStage(folder=folder, command=(sys.executable, str(script)))
    stage.run_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(stage.run_dir)], check=True)
    try:
        stage.start()
        room = stage.run_dir / "room"
        stage.wait_for("the first steps", lambda: "step 5 " in stage.log(1))
        room.write_bytes(b"\0" * 3_000_000)
        stage.wait_for("a full disk", lambda: shutil.disk_usage(stage.run_dir).free == 0)
        time.sleep(5.0)
        require(stage.supervised, f"a supervisor: {stage.said()}")
        ranks = stage.ranks(1)
        require(len(ranks) == 1, f"a job that is still there, with nowhere to write to: {stage.said()}")
        os.kill(ranks[0], signal.SIGKILL)
        stage.wait_for("a complaint", lambda: "No space left" in stage.said())
        require(stage.supervised, f"a supervisor: {stage.said()}")
        room.unlink()
        stage.wait_for("a second attempt", lambda: "step 5 " in stage.log(2))
        return outcome_of(stage, "full-run-folder", note="started again when there was room")
    finally:
        stage.close()
        subprocess.run(["umount", str(stage.run_dir)], check=False)


PYTHON = (sys.executable,)
TWO_RANKS = (*TORCHRUN, "--nproc-per-node", "2")
DRILLS: dict[str, Callable[[Path], Outcome]] = {
    "kill-example": kill_rank_of_the_example,
    "kill-hugging-face": lambda folder: kill_unchanged(folder, "hf_trainer.py", TORCHRUN),
    "kill-lightning": lambda folder: kill_unchanged(folder, "lightning_fit.py", PYTHON),
    "resume-hugging-face": lambda folder: resume_exactly(folder, "hf_trainer.py", TORCHRUN),
    "resume-lightning": lambda folder: resume_exactly(folder, "lightning_fit.py", PYTHON),
    "resume-deepspeed": lambda folder: resume_exactly(folder, "deepspeed_loop.py", TWO_RANKS),
    "resume-torchtitan": lambda folder: resume_exactly(folder, "torchtitan_loop.py", TWO_RANKS),
    "stop-with-loaders": stop_with_loaders,
    "terminate-torchrun": terminate_torchrun,
    "full-run-folder": fill_run_folder,
}
