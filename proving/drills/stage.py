"""A drill's stage: a supervised four-rank job in a folder of its own, and the hands that do it harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from prism.recover.catalog import Catalog
from prism.recover.progress import SKIP_BATCHES, STEPS_FILE, attempt_dir
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.journal import read_snapshot
from prism.recover.supervise.launchers.local import rendezvous
from prism.recover.supervise.launchers.processes import end_marked, find_marked
from prism.recover.supervise.state import JobState

SUPERVISE = (sys.executable, "-c", "from prism.cli.supervise import app; app()", "run")
REHEARSAL = (sys.executable, str(Path(__file__).with_name("trainers") / "rehearsal.py"))
_POLL_S = 0.1
RISK = "PRISM_DRILL_RISK"  # the variable with the file of risks that drills are run with
SOURCE = "PRISM_DRILL_SOURCE"  # the variable with the folder of another version of Prism, which is put under test


class DrillError(Exception):
    """A drill did not go as a person would want."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The training that is disturbed."""

    steps: int = 60
    save_every: int = 10
    step_s: float = 0.1
    ranks: int = 4
    writer: str = "thread"
    more: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Stage:
    """One drill under way."""

    folder: Path
    job: Job
    settings: dict[str, Any] = field(default_factory=dict)
    launcher: str = "local"
    timeout_s: float = 600.0  # a busy machine takes long
    supervisor: subprocess.Popen[bytes] | None = None
    hurt_at_s: float = 0.0
    hurt_at_step: int = -1

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Drills of judgements need them to act; drills of user scripts run with the default, only to restart.
        config = {
            "poll_s": 0.1,
            "restarts": {"backoff_s": 0.5},
            "launch": {"grace_s": 20.0},
            "act_on": ["spike", "slow", "hang", "corruption", "bug"],
            "losses": {"skip_batches": True},
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(merge(config, self.settings)))

    @property
    def run_dir(self) -> Path:
        """The supervised run."""
        return self.folder / "run"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints of the job."""
        return self.folder / "checkpoints"

    @property
    def memory(self) -> Path:
        """The staged states of the job."""
        return Path("/dev/shm") / f"prism-drill-{self.folder.name}-{os.getpid()}"

    def command(self) -> list[str]:
        """The training command."""
        job = self.job
        flags = {"--steps": job.steps, "--save-every": job.save_every, "--step-s": job.step_s, "--ranks": job.ranks}
        words = [word for flag, value in flags.items() for word in (flag, str(value))]
        places = ["--checkpoints", str(self.checkpoints), "--memory-dir", str(self.memory)]
        return [*REHEARSAL, *words, *places, "--writer", job.writer, "--losses", str(self.losses), *job.more]

    @property
    def losses(self) -> Path:
        """Every loss that was reported, step by step, also those that were lost again."""
        return self.folder / "losses.txt"

    def start(self) -> None:
        """Start the supervisor; also again after it was killed."""
        options = ["--run-dir", str(self.run_dir), "--config", str(self.folder / "config.yaml")]
        risk = os.environ.get(RISK)
        options += ["--launcher", self.launcher, *(["--risk", risk] if risk else []), *self.options(), "--"]
        environment = {**os.environ, **under_test(), **self.variables()}
        with (self.folder / "supervisor.log").open("ab") as log:
            words = [*SUPERVISE, *options, *self.command()]
            self.supervisor = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def options(self) -> list[str]:
        """More options of the supervisor."""
        return []

    def variables(self) -> dict[str, str]:
        """More variables of its environment."""
        return {}

    def state(self) -> JobState:
        """The state on disk."""
        found = read_snapshot(self.run_dir, SuperviseConfig())
        return found.state if found else JobState()

    def reports(self, newest: int = 0) -> list[dict[str, Any]]:
        """What the trainers reported, in order: of all attempts, or of the newest few."""
        lines: list[dict[str, Any]] = []
        for folder in sorted((self.run_dir / "attempts").glob("*"))[-newest:]:
            path = folder / STEPS_FILE
            text = path.read_text() if path.exists() else ""
            lines += [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return lines

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait with folded hands."""
        deadline = time.monotonic() + self.timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise DrillError(f"waited {self.timeout_s:.0f} s for {what}")
            time.sleep(_POLL_S)

    def wait_step(self, step: int) -> None:
        """Wait until training has reached a step, in any attempt."""
        self.wait_for(f"step {step}", lambda: self.last_step() >= step)

    def wait_saved(self, step: int) -> None:
        """Wait until a step is committed."""
        self.wait_for(f"checkpoint {step}", lambda: Catalog(self.checkpoints).final_path(step).is_dir())

    def last_step(self) -> int:
        """The step the newest report tells."""
        steps = [line["step"] for line in self.reports(newest=2) if line["kind"] == "step"]
        return steps[-1] if steps else -1

    def wait_end(self) -> JobState:
        """Wait until the supervisor has ended by itself."""
        wait_supervisor(self.supervisor, self.timeout_s, self.folder / "supervisor.log")
        return self.state()

    def mark_hurt(self) -> None:
        """Note the moment of the fault."""
        self.hurt_at_step = self.last_step()
        self.hurt_at_s = time.time()

    def rank_pid(self, rank: int) -> int:
        """The process of a rank, by its heartbeat."""
        path = attempt_dir(self.run_dir, self.state().attempt) / f"beat-{rank:05d}.json"
        return int(json.loads(path.read_text())["pid"])

    def attempt_pids(self) -> list[int]:
        """Every process of the present attempt."""
        return find_marked(str(attempt_dir(self.run_dir.resolve(), self.state().attempt)))

    def close(self) -> None:
        """End what is left and remove the memory."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.kill()
            self.supervisor.wait()
        for folder in (self.run_dir.resolve() / "attempts").glob("*"):
            end_marked(str(folder), 0.0)
        shutil.rmtree(self.memory, ignore_errors=True)


def under_test() -> dict[str, str]:
    """Where supervisors and trainers find Prism: beside these drills, or another version."""
    source = os.environ.get(SOURCE)
    return {"PYTHONPATH": source} if source else {}


def wait_supervisor(supervisor: subprocess.Popen[bytes] | None, timeout_s: float, log: Path) -> None:
    """Wait until a supervisor has ended by itself."""
    assert supervisor is not None
    try:
        supervisor.wait(timeout_s)
    except subprocess.TimeoutExpired:
        said = log.read_text()[-600:]
        raise DrillError(f"the supervisor did not end in {timeout_s:.0f} s; {said}") from None


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Settings over settings, section by section."""
    both = {**under, **over}
    return {k: merge(under[k], v) if isinstance(v, dict) and k in under else v for k, v in both.items()}


def undisturbed_losses(folder: Path, job: Job, skip: str = "") -> dict[int, str]:
    """The losses of the same job with nothing done to it, leaving out the same batches."""
    folder.mkdir(parents=True, exist_ok=True)
    losses = folder / "losses.txt"
    losses.unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    command = [*REHEARSAL, "--steps", str(job.steps), "--ranks", str(job.ranks), "--save-every", "1000000"]
    command += ["--checkpoints", str(folder / "checkpoints"), "--memory-dir", str(folder / "memory")]
    command += ["--writer", "thread", "--losses", str(losses)]
    environment = {**os.environ, **rendezvous(1, "127.0.0.1"), SKIP_BATCHES: skip}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise DrillError(f"the undisturbed run failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return read_losses(losses)


def read_losses(path: Path) -> dict[int, str]:
    """The last loss told for each step, exact to the bit."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {int(step): loss for step, loss in pairs}
