"""Putting a supervisor together: launcher, host test, run folder."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal

from prism.errors import BadConfigError
from prism.recover.isolate.agents import ProbeConfig
from prism.recover.isolate.examine import isolate_hosts
from prism.recover.isolate.grading import Grader
from prism.recover.isolate.report import IsolationReport
from prism.recover.isolate.search import SearchConfig
from prism.recover.supervise.config import SuperviseConfig
from prism.recover.supervise.investigating import Investigations
from prism.recover.supervise.launchers import Launcher
from prism.recover.supervise.launchers.local import LocalLauncher, check_command
from prism.recover.supervise.launchers.slurm import SlurmLauncher
from prism.recover.supervise.launchers.ssh import SshLauncher
from prism.recover.supervise.runner import Examiner, Supervisor, Tools
from prism.recover.supervise.state import JobState

LauncherName = Literal["local", "slurm", "ssh", "kubernetes"]


def supervise(
    run_dir: Path,
    command: tuple[str, ...],
    config: SuperviseConfig,
    *,
    launcher: LauncherName = "local",
    again: bool = False,
    say: Callable[[str], None],
) -> JobState:
    """Supervise a command to its end. Continues where an earlier supervisor of the same run folder was.

    A run that was stopped continues too. With `again`, so does one that failed, or one of another command.
    """
    if launcher != "kubernetes":  # there the command is inside a container image
        check_command(command)
    requests = StopRequests()  # installed first: no signal may end us while we hold the run folder
    investigations = Investigations()
    tools = Tools(
        launcher=make_launcher(launcher, config, say, requests.by_ctrl_c),
        examiner=make_examiner(config),
        investigate=investigations.start,
        stop_asked=requests.take,
        hurry=requests.waiting,
        say=say,
    )
    supervisor = Supervisor(run_dir, command, config, tools)
    if (why := _why_not(supervisor.state, command, again)) is not None:
        supervisor.journal.close()
        raise BadConfigError(f"{run_dir}: {why} name another --run-dir for a new run")
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # Slurm's --signal, sent to every process or to this one alone
        signal.signal(number, lambda got, frame: supervisor.relay(got))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a closed terminal ends neither job nor supervision;
        signal.signal(signal.SIGHUP, lambda got, frame: None)  # not SIG_IGN, which the job would inherit
    supervisor.state.command = list(command)
    if supervisor.state.over:
        supervisor.take_up()
    try:
        return supervisor.run()
    finally:
        investigations.close(wait=supervisor.state.outcome == "failed")


def _why_not(state: JobState, command: tuple[str, ...], again: bool) -> str | None:
    """Why a run is not continued. An init system must not restart a run for ever that always fails."""
    if state.outcome == "done":
        return "this run is done;"
    if again:
        return None
    if state.outcome == "failed":
        return f"this run failed ({state.outcome_text}); fix the cause and continue it with --again, or"
    if state.command and command and state.command != list(command):
        # The checkpoints of one program would be restored into another.
        return f"this run is of another command ({shlex.join(state.command)}); continue it with --again, or"
    return None


class StopRequests:
    """Counts SIGTERM and SIGINT as requests to end the run."""

    def __init__(self) -> None:
        self._count = 0
        self._interrupted = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def take(self) -> bool:
        """Whether there is a request; removes it."""
        if self._count == 0:
            return False
        self._count -= 1
        return True

    def waiting(self) -> bool:
        """Whether there is a request; leaves it."""
        return self._count > 0

    def by_ctrl_c(self) -> bool:
        """Whether any request was a Ctrl-C."""
        return self._interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self._interrupted |= number == signal.SIGINT


def make_examiner(config: SuperviseConfig) -> Examiner:
    """The host test with the run's settings."""

    def examine(hosts: tuple[str, ...], launcher: Launcher) -> IsolationReport:
        settings = config.examine
        probes = ProbeConfig(
            backend=settings.backend,
            num_bytes=int(settings.megabytes * 1e6),
            timeout_s=settings.timeout_s,
            addresses=config.launch.addresses.named,
            grader=Grader(slow_ratio=settings.slow_ratio),
        )
        return isolate_hosts(hosts, launcher.prefix, probes, SearchConfig(group_rounds=settings.group_rounds))

    return examine


def make_launcher(
    name: str, config: SuperviseConfig, say: Callable[[str], None], interrupted: Callable[[], bool] = lambda: False
) -> Launcher:
    """The launcher of that name."""
    if name == "kubernetes":
        from prism.recover.supervise.launchers.kubernetes.launcher import KubernetesLauncher  # needs an extra

        return KubernetesLauncher(config.launch, say)
    if name == "local":
        return LocalLauncher(config.launch, interrupted)
    return SlurmLauncher(config.launch) if name == "slurm" else SshLauncher(config.launch)
