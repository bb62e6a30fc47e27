"""Attempts on hosts that are reached over ssh and share the run folder: one command per host, started and left alone.

What stands around the command is `node.py`, copied into the attempt's folder. It lives on when the connection goes;
its exit code is read from the folder. A host that no longer answers, several times in a row, is lost.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prism.errors import BadConfigError
from prism.machine.files import write_durably
from prism.recover.progress import ATTEMPT_KEY, HOST
from prism.recover.supervise.config import LaunchSettings
from prism.recover.supervise.launchers import LaunchPlan, Look, first_to_fail, no_hurry
from prism.recover.supervise.launchers.local import (
    NODE_PROGRAM,
    attempt_key,
    check_command,
    exit_path,
    read_code,
    rendezvous,
)

_HOSTS_FILE = "ssh.json"
_COMMAND_S = 60.0
_ASK_EVERY_S = 10.0  # interval of asking a host whether its processes are still there
_LOST_AFTER = 3  # consecutive requests without an answer
_UNREACHABLE = 255  # ssh's own exit code


class SshLauncher:
    """Starts the command once per host of `hosts`, which must be named."""

    def __init__(self, settings: LaunchSettings | None = None) -> None:
        self.settings = settings or LaunchSettings()
        if shutil.which(self.settings.ssh[0]) is None:
            raise BadConfigError(f"--launcher ssh needs '{self.settings.ssh[0]}' on this machine")
        self._asked: dict[str, tuple[float, bool]] = {}  # per host: when it was asked, and whether it had processes
        self._unanswered: dict[str, int] = {}

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Write each host's orders into the folder and start them."""
        if not plan.hosts:
            raise BadConfigError("--launcher ssh needs names under 'hosts.hosts' in the --config file")
        check_command(plan.command)
        plan.folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(NODE_PROGRAM, plan.folder / "node.py")
        write_durably(plan.folder / _HOSTS_FILE, json.dumps(plan.hosts))
        self.stop(plan.folder, 0.0)
        self._asked, self._unanswered = {}, {}
        shared = rendezvous(len(plan.hosts), self._address(plan.hosts[0]))
        for rank, host in enumerate(plan.hosts):
            exit_path(plan.folder, host).unlink(missing_ok=True)
            self._write_orders(plan, host, {**shared, "PRISM_NODE_RANK": str(rank), "PET_NODE_RANK": str(rank)})
        for host, done in self._on_each(plan.hosts, lambda host: f"setsid -f sh {_orders(plan.folder, host)}").items():
            if done.returncode != 0:
                # Treated as a host that fails at once: the attempt ends and another host takes its place.
                write_durably(exit_path(plan.folder, host), f"{_UNREACHABLE}\n")
                write_durably(plan.folder / f"{host}.log", f"prism: {host} could not be started: {done.stderr}\n")
        return plan.hosts

    def look(self, folder: Path) -> Look:
        """Read exit codes from the folder, and ask hosts without one whether their processes still run."""
        hosts = _read_hosts(folder)
        codes: dict[str, int | None] = {
            h: read_code(exit_path(folder, h)) for h in hosts if exit_path(folder, h).exists()
        }
        lost = None
        for host, alive in self._ask(folder, [h for h in hosts if h not in codes]).items():
            if alive is None:
                codes[host], lost = None, host
            elif not alive and not exit_path(folder, host).exists():
                codes[host] = None
        failed = [host for host, code in codes.items() if code != 0]
        first = lost or first_to_fail(codes, lambda host: _moment(exit_path(folder, host)))
        return Look(
            running=not failed and len(codes) < len(hosts), codes=codes, first_failed=first, lost=lost is not None
        )

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """End the attempt's processes on all hosts in parallel."""
        hosts = _read_hosts(folder)
        with ThreadPoolExecutor(max(1, len(hosts))) as pool:
            asked = [pool.submit(self._ssh, h, self._node(folder, "end", grace_s), grace_s + _COMMAND_S) for h in hosts]
            while grace_s > 0 and not all(one.done() for one in asked):
                if hurry():
                    self._on_each(hosts, lambda host: self._node(folder, "end", 0.0))
                    break
                time.sleep(0.1)
        self._asked = {}

    def logs(self, folder: Path) -> list[Path]:
        """One log per host."""
        return sorted(folder.glob("*.log"))

    def pids(self, folder: Path) -> list[int]:
        """None on this machine."""
        return []

    def cordon(self, host: str, reason: str) -> None:
        """Do nothing: there is no scheduler."""

    def uncordon(self, host: str) -> None:
        """Do nothing."""

    def prefix(self, host: str) -> tuple[str, ...]:
        """The ssh command of that host."""
        return (*self.settings.ssh, self._address(host))

    def _address(self, host: str) -> str:
        return self.settings.addresses.named.get(host, host)

    def _write_orders(self, plan: LaunchPlan, host: str, own: dict[str, str]) -> None:
        variables = {**plan.orders.to_environment(), **plan.variables, **own, HOST: host}
        variables[ATTEMPT_KEY] = attempt_key(plan.folder)
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
        words = [self.settings.python, "-S", str(plan.folder / "node.py"), "run", str(exit_path(plan.folder, host))]
        words += [str(plan.folder / f"{host}.log"), *plan.command]
        text = f"cd {shlex.quote(str(Path.cwd()))}\n{exports}\nexec {shlex.join(words)} </dev/null >/dev/null 2>&1\n"
        write_durably(plan.folder / f"{host}.sh", text)

    def _node(self, folder: Path, what: str, *more: object) -> str:
        words = [self.settings.python, "-S", str(folder / "node.py"), what, attempt_key(folder), *map(str, more)]
        return shlex.join(words)

    def _ask(self, folder: Path, hosts: list[str]) -> dict[str, bool | None]:
        """Whether processes are left on each host; None for one that is lost."""
        now = time.monotonic()
        due = [h for h in hosts if h not in self._asked or now - self._asked[h][0] > _ASK_EVERY_S]
        for host, done in self._on_each(due, lambda host: self._node(folder, "count")).items():
            answered = done.returncode == 0
            self._unanswered[host] = 0 if answered else self._unanswered.get(host, 0) + 1
            self._asked[host] = (now, done.stdout.strip() != "0" if answered else True)
        return {h: None if self._unanswered.get(h, 0) >= _LOST_AFTER else self._asked[h][1] for h in hosts}

    def _on_each(
        self, hosts: list[str] | tuple[str, ...], command: Callable[[str], str]
    ) -> dict[str, subprocess.CompletedProcess[str]]:
        if not hosts:
            return {}
        with ThreadPoolExecutor(len(hosts)) as pool:
            return dict(
                zip(hosts, pool.map(lambda host: self._ssh(host, command(host), _COMMAND_S), hosts), strict=True)
            )

    def _ssh(self, host: str, command: str, limit_s: float) -> subprocess.CompletedProcess[str]:
        words = [*self.prefix(host), command]
        try:
            return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, _UNREACHABLE, "", f"no answer within {limit_s:.0f} s")


def _orders(folder: Path, host: str) -> str:
    return shlex.quote(str(folder / f"{host}.sh"))


def _read_hosts(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(json.loads((folder / _HOSTS_FILE).read_text()))
    except (OSError, ValueError):
        return ()


def _moment(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else float("inf")
