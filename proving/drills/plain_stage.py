"""A drill's stage for a command as its users write it, under `prism supervise` with its default settings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from prism.recover.progress import STEPS_FILE, attempt_dir
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.journal import read_snapshot
from prism.recover.supervise.launchers.node import find_ranks
from prism.recover.supervise.launchers.processes import end_marked, find_marked
from prism.recover.supervise.state import JobState
from proving.drills.outcome import Outcome
from proving.drills.stage import SUPERVISE, DrillError, merge, under_test, wait_supervisor

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINERS = REPOSITORY / "proving" / "drills" / "trainers"
EXAMPLES = REPOSITORY / "examples" / "recover"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where commands run: this machine, or the hosts of a cluster."""

    launcher: str = "local"
    settings: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)  # of every command, on its host
    prepare: Callable[[PlainStage], list[str]] = lambda stage: []  # for one stage; more options of its supervisor


HERE = Place()
PLACE: ContextVar[Place] = ContextVar("place", default=HERE)


@dataclass(slots=True, kw_only=True)
class PlainStage:
    """One supervised command in a folder of its own; everything it is asked about is read from outside."""

    folder: Path
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)  # of its --config file
    variables: dict[str, str] = field(default_factory=dict)
    hosts: int = 1  # on a cluster
    place: Place = field(default_factory=PLACE.get)
    timeout_s: float = 600.0
    supervisor: subprocess.Popen[bytes] | None = None

    @property
    def run_dir(self) -> Path:
        """The supervised run."""
        return self.folder / "run"

    def start(self) -> None:
        """Start the supervisor, also again after it was killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **under_test(), "OMP_NUM_THREADS": "1", **self.variables}
        words = [*SUPERVISE, "--run-dir", str(self.run_dir), *self.options, *self._configure(), "--", *self.command]
        if self.place.launcher != "local":  # a host has an environment of its own
            told = {"OMP_NUM_THREADS": "1", **self.place.variables, **self.variables}
            if "--checkpoint" in self.options:
                told.pop("PYTHONPATH", None)  # the supervisor sets it, with its own folder in front
            words[-len(self.command) :] = ["env", *(f"{name}={value}" for name, value in told.items()), *self.command]
        with (self.folder / "supervisor.log").open("ab") as log:
            self.supervisor = subprocess.Popen(words, stdout=log, stderr=log, env=environment, cwd=self.folder)

    def _configure(self) -> list[str]:
        """The options of the place and of this drill's settings."""
        more = self.place.prepare(self)
        chosen = {"hosts": {"num_hosts": self.hosts}} if self.place.launcher != "local" else {}
        settings = merge(merge(self.place.settings, chosen), self.settings)
        if not settings:
            return []
        (self.folder / "config.yaml").write_text(yaml.safe_dump(settings))
        return ["--launcher", self.place.launcher, "--config", str(self.folder / "config.yaml"), *more]

    @property
    def supervised(self) -> bool:
        """Whether the supervisor is at work."""
        return self.supervisor is not None and self.supervisor.poll() is None

    def state(self) -> JobState:
        """The state on disk."""
        found = read_snapshot(self.run_dir, SuperviseConfig())
        return found.state if found else JobState()

    def said(self) -> str:
        """What the supervisor said."""
        path = self.folder / "supervisor.log"
        return path.read_text() if path.exists() else ""

    def log(self, attempt: int) -> str:
        """What the command printed in an attempt."""
        logs = attempt_dir(self.run_dir, attempt).glob("*.log")
        return "".join(path.read_text(errors="replace") for path in logs)

    def reports(self, attempt: int) -> list[dict[str, Any]]:
        """What the trainer reported in an attempt."""
        path = attempt_dir(self.run_dir, attempt) / STEPS_FILE
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait with folded hands."""
        deadline = time.monotonic() + self.timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise DrillError(f"waited {self.timeout_s:.0f} s for {what}; {self.said()[-600:]}")
            if self.supervisor is not None and self.supervisor.poll() is not None and not condition():
                raise DrillError(f"the supervisor ended before {what}: {self.said()[-600:]}")
            time.sleep(_POLL_S)

    def wait_text(self, attempt: int, pattern: str) -> None:
        """Wait until the command has printed something."""
        self.wait_for(f"{pattern!r} in attempt {attempt}", lambda: re.search(pattern, self.log(attempt)) is not None)

    def wait_report(self, attempt: int, kind: str, count: int = 1) -> None:
        """Wait until the trainer has reported something so often."""
        self.wait_for(
            f"{count} reports of {kind} in attempt {attempt}",
            lambda: sum(report["kind"] == kind for report in self.reports(attempt)) >= count,
        )

    def processes(self, attempt: int) -> list[int]:
        """Every process of an attempt."""
        return find_marked(str(attempt_dir(self.run_dir.resolve(), attempt)))

    def ranks(self, attempt: int) -> list[int]:
        """The processes that train."""
        return find_ranks(self.processes(attempt))

    def launcher(self, attempt: int) -> int:
        """The process of torchrun itself, not of a container whose words end with it."""
        mark = [word.encode() for word in TORCHRUN[1:]]
        words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in self.processes(attempt)}
        return next(pid for pid, found in words.items() if found[1:3] == mark)

    def ask_to_stop(self) -> None:
        """What Ctrl-C, an init system or a scheduler does to the supervisor."""
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGTERM)

    def wait_end(self) -> JobState:
        """Wait until the supervisor has ended by itself."""
        wait_supervisor(self.supervisor, self.timeout_s, self.folder / "supervisor.log")
        return self.state()

    def close(self) -> None:
        """End what is left."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.kill()
            self.supervisor.wait()
        for folder in (self.run_dir.resolve() / "attempts").glob("*"):
            end_marked(str(folder), 0.0)


def outcome_of(stage: PlainStage, name: str, *, lost_steps: int = 0, source: str = "", note: str = "") -> Outcome:
    """What a run came to, as the supervisor's own state tells it."""
    state = stage.state()
    return Outcome(
        drill=name,
        ended=state.outcome or state.phase.value,
        attempts=state.attempt,
        lost_steps=lost_steps,
        recovery_s=None,
        source=source,
        equal=None,
        note=note,
    )
