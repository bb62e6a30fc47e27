"""A real Slurm of a few nodes on one machine: munged, slurmctld and one slurmd per node, in a folder. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_CONFIG = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
KillWait=3
Waittime=0
InactiveLimit=0
MinJobAge=600
SchedulerParameters=batch_sched_delay=1
NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP
{more}
"""
_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_READY_S = 90.0


def why_no_slurm() -> str | None:
    """Why Slurm cannot be started here, or None."""
    if os.geteuid() != 0:
        return "needs root, to start Slurm's daemons"
    missing = [tool for tool in _DAEMONS if shutil.which(tool, path=_path()) is None]
    return f"needs Slurm and munge (Debian: slurm-wlm munge); missing {', '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What several clusters have in common: one munge, and lines for their configuration."""

    munge: Path  # its socket
    config: str


class SlurmCluster:
    """Nodes n1..nk. Sets SLURM_CONF for this process and its children while it lives, unless several live at once."""

    def __init__(
        self, folder: Path, count: int = 3, name: str = "prism", *, alone: bool = True, shared: Shared | None = None
    ) -> None:
        self.folder = folder
        self.count = count
        self.name = name
        self.alone = alone
        self.shared = shared
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._before = os.environ.get("SLURM_CONF")

    def __enter__(self) -> SlurmCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        first = free_port_run(self.count + 1)
        config = _CONFIG.format(
            name=self.name,
            host=socket.gethostname(),
            folder=self.folder,
            port=first,
            first_port=first + 1,
            last_port=first + self.count,
            count=self.count,
            munge=self.folder / "munge.socket" if self.shared is None else self.shared.munge,
            more="" if self.shared is None else self.shared.config,
        )
        (self.folder / "slurm.conf").write_text(config)
        (self.folder / "state").mkdir(exist_ok=True)
        if self.alone:
            os.environ["SLURM_CONF"] = str(self.conf)
        try:
            if self.shared is None:
                self._daemons["munged"] = start_munge(self.folder)
            self.start_controller()
            for number in range(1, self.count + 1):
                self.start_node(f"n{number}")
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start_controller(self) -> None:
        """Start slurmctld, which reads back what an earlier one had saved."""
        self._start("slurmctld", ["slurmctld", "-D"])

    def kill_controller(self) -> None:
        """End slurmctld at once, as a crash of its machine would."""
        daemon = self._daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()

    def freeze_controller(self, *, frozen: bool) -> None:
        """Let slurmctld take calls and answer none, as behind a network that is cut; or let it go on."""
        self._daemons["slurmctld"].send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._start(node, ["slurmd", "-D", "-N", node])

    def lose_node(self, node: str) -> None:
        """A node goes away: its daemon and everything that it runs are gone at once."""
        daemon = self._daemons.pop(node)
        for pid in [daemon.pid, *self._tasks_of(node)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        daemon.wait()

    def node_state(self, node: str) -> str:
        """What Slurm says of a node."""
        return self._ask("scontrol", "show", "node", node, "--oneliner")

    def close(self) -> None:
        """End the daemons that we started, by their process ids."""
        for number in range(1, self.count + 1):
            for pid in self._tasks_of(f"n{number}"):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        if not self.alone:
            return
        if self._before is None:
            os.environ.pop("SLURM_CONF", None)
        else:
            os.environ["SLURM_CONF"] = self._before

    def _tasks_of(self, node: str) -> list[int]:
        """Processes that this cluster started on a node: they carry its configuration and the node's name."""
        marks = {f"SLURM_CONF={self.folder}/slurm.conf".encode(), f"SLURMD_NODENAME={node}".encode()}
        found = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    found |= {int(entry.name), *([parent] if _is_step_daemon(parent) else [])}
            except OSError:
                continue
        return sorted(found)

    def _start(self, name: str, command: list[str]) -> None:
        self._daemons[name] = start_daemon(self.folder, name, command, self._environment())

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            states = self._ask("sinfo", "-h", "-N", "-o", "%T").split()
            if states == ["idle"] * self.count:
                return
            time.sleep(0.5)
        raise RuntimeError(f"Slurm did not come up within {_READY_S:.0f} s; see {self.folder}/slurmctld.log")

    def _ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=self._environment())
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}


def start_daemon(
    folder: Path, name: str, command: list[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process of its own session whose words go to a file."""
    path = shutil.which(command[0], path=_path())
    assert path is not None
    with (folder / f"{name}.out").open("ab") as log:
        return subprocess.Popen([path, *command[1:]], stdout=log, stderr=log, start_new_session=True, env=environment)


def start_munge(folder: Path) -> subprocess.Popen[bytes]:
    """munged with a key and a socket in this folder, ready to be used."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    options = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.log"}
    words = [f"--{name}={folder / file}" for name, file in options.items()]
    words = ["munged", "--foreground", "--force", *words, f"--seed-file={folder / 'munge.seed'}"]
    daemon = start_daemon(folder, "munged", words)
    deadline = time.monotonic() + _READY_S
    while not (folder / "munge.socket").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return daemon


def _is_step_daemon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"slurmstepd")
    except OSError:
        return False


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def free_port_run(count: int) -> int:
    """The first of several free ports in a row."""
    for first in range(31_000, 60_000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                one = socket.socket()
                sockets.append(one)
                one.bind(("", port))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise RuntimeError("no free ports in a row")
