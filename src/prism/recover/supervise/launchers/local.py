"""Attempts as processes of this machine: one command per host, where hosts may be network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from prism.errors import BadConfigError
from prism.machine.files import write_durably
from prism.recover.progress import ATTEMPT_KEY, HOST
from prism.recover.supervise.config import LaunchSettings
from prism.recover.supervise.launchers import LaunchPlan, Look, first_to_fail, no_hurry, node
from prism.recover.supervise.launchers.processes import ProcessId, end_marked, find_marked, read_stat

_LAUNCH_FILE = "launch.json"
NODE_PROGRAM = Path(node.__file__).resolve()


class LocalLauncher:
    """Starts the command once per host, each in its own session, so that it outlives the supervisor."""

    def __init__(self, settings: LaunchSettings | None = None, interrupted: Callable[[], bool] = lambda: False) -> None:
        self.settings = settings or LaunchSettings()
        self._interrupted = interrupted  # whether Ctrl-C was pressed
        self._children: set[int] = set()
        self._started: dict[Path, dict[str, dict[str, int]]] = {}  # as in the launch file, which may be deleted
        self._input_at = _position(0)
        self._codes: dict[int, int] = {}  # of our own children; known even if the file could not be written

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Start one process tree per host."""
        check_command(plan.command)
        plan.folder.mkdir(parents=True, exist_ok=True)
        key = attempt_key(plan.folder)
        end_marked(key, 0.0)
        hosts = plan.hosts or (socket.gethostname(),)
        for name in hosts:
            exit_path(plan.folder, name).unlink(missing_ok=True)
        shared = {**os.environ, **plan.orders.to_environment(), **plan.variables, ATTEMPT_KEY: key}
        first = self.settings.addresses.named.get(hosts[0], hosts[0] if len(hosts) > 1 else "127.0.0.1")
        found = rendezvous(len(hosts), first)
        # On one host the user's own choice stays: the command may be one node of a job that was started by hand.
        shared |= {name: value for name, value in found.items() if len(hosts) > 1 or name not in os.environ}
        started = {}
        for rank, host in enumerate(hosts):
            own = {HOST: host, "PRISM_NODE_RANK": str(rank)}
            if len(hosts) > 1 or "PET_NODE_RANK" not in os.environ:
                own["PET_NODE_RANK"] = str(rank)
            pid = self._spawn(plan, host, {**shared, **own}, reads=rank == 0)
            stat = read_stat(pid)
            started[host] = asdict(ProcessId(pid=pid, start_ticks=stat[1] if stat else 0))
        self._started[plan.folder] = started
        write_durably(plan.folder / _LAUNCH_FILE, json.dumps(started))
        return hosts

    def look(self, folder: Path) -> Look:
        """Read exit codes and check which processes are alive."""
        self._reap()
        started = self._read_started(folder)
        if not started:
            return Look(running=bool(self.pids(folder)))
        codes: dict[str, int | None] = {}
        ended_at: dict[str, float] = {}
        for host, identity in started.items():
            path = exit_path(folder, host)
            alive = ProcessId(**identity).alive
            if path.exists():
                codes[host] = read_code(path)
                ended_at[host] = path.stat().st_mtime
            elif not alive:
                codes[host] = self._codes.get(int(identity["pid"]))
                ended_at[host] = 0.0
        failed = [host for host, code in codes.items() if code != 0]
        first = first_to_fail(codes, ended_at.__getitem__)
        return Look(running=not failed and len(codes) < len(started), codes=codes, first_failed=first)

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """End every process that has the attempt's key in its environment."""
        end_marked(attempt_key(folder), grace_s, hurry, interrupted=self._interrupted())
        self._reap()

    def logs(self, folder: Path) -> list[Path]:
        """One log per host."""
        return sorted(folder.glob("*.log"))

    def pids(self, folder: Path) -> list[int]:
        """The processes that have the attempt's key in their environment."""
        return find_marked(attempt_key(folder))

    def cordon(self, host: str, reason: str) -> None:
        """Do nothing: there is no scheduler."""

    def uncordon(self, host: str) -> None:
        """Do nothing."""

    def prefix(self, host: str) -> tuple[str, ...]:
        """`launch.host_prefix` for that host."""
        return tuple(part.format(host=host) for part in self.settings.host_prefix)

    def _spawn(self, plan: LaunchPlan, host: str, environment: dict[str, str], *, reads: bool) -> int:
        """Start the command on one host. A later supervisor must be able to watch it, so it needs no parent."""
        places = [str(exit_path(plan.folder, host)), str(plan.folder / f"{host}.log")]
        command = [*self.prefix(host), sys.executable, "-S", str(NODE_PROGRAM), "run", *places, *plan.command]
        program = shutil.which(command[0])
        if program is None:
            raise BadConfigError(f"'{command[0]}' of launch.host_prefix not found; check the setting")
        source = self._open_input() if reads else os.open(os.devnull, os.O_RDONLY)
        files = [
            (os.POSIX_SPAWN_DUP2, source, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            pid = os.posix_spawn(program, command, environment, file_actions=files, setsid=True)
        finally:
            os.close(source)
        self._children.add(pid)
        return pid

    def _open_input(self) -> int:
        """Our standard input, for the command. A file is read from the same place by every attempt."""
        with contextlib.suppress(OSError):
            if self._input_at is None:
                return os.dup(0)  # a terminal or a pipe; what one attempt has read, the next cannot
            again = os.open("/proc/self/fd/0", os.O_RDONLY)
            os.lseek(again, self._input_at, os.SEEK_SET)
            return again
        return os.open(os.devnull, os.O_RDONLY)

    def _read_started(self, folder: Path) -> dict[str, dict[str, int]]:
        """The process of each host of an attempt; empty if it was not started here, or its record is lost."""
        try:
            found: dict[str, dict[str, int]] = json.loads((folder / _LAUNCH_FILE).read_text())
        except (OSError, ValueError):
            return self._started.get(folder, {})
        return found

    def _reap(self) -> None:
        """Reap children that have ended, and keep their exit codes."""
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found == 0:
                    continue
                if os.WIFEXITED(status):
                    self._codes[pid] = os.WEXITSTATUS(status)
            self._children.discard(pid)


def _position(descriptor: int) -> int | None:
    """Where the next read from a file begins; None for anything that has no places, such as a pipe."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return None


def check_command(command: tuple[str, ...]) -> None:
    """Refuse a command that does not exist, before anything is started."""
    if not command:
        raise BadConfigError("no command given; write it after --, as in: prism supervise -- torchrun train.py")
    if shutil.which(command[0]) is None:
        raise BadConfigError(f"command '{command[0]}' not found or not executable; check the path")


def attempt_key(folder: Path) -> str:
    """The value of PRISM_ATTEMPT_KEY, by which an attempt's processes are found."""
    return str(folder.resolve())


def rendezvous(num_hosts: int, address: str) -> dict[str, str]:
    """The variables by which the hosts find each other; torchrun reads those that begin with PET_."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    variables = {"MASTER_ADDR": address, "MASTER_PORT": port, "PRISM_NUM_NODES": str(num_hosts)}
    return variables | {"PET_NNODES": str(num_hosts), "PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}


def read_code(path: Path) -> int:
    """The exit code in a file; negative for a signal."""
    try:
        return int(path.read_text().strip() or -1)
    except (OSError, ValueError):
        return -1


def exit_path(folder: Path, host: str) -> Path:
    """Where a host's exit code is written."""
    return folder / f"{host}.exit"
