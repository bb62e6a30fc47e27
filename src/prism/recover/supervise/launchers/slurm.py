"""Attempts as Slurm jobs: submitted once, requeued for every further attempt, cordoned nodes excluded and drained.

The batch script only runs the run folder's `launch.sh`, which is written anew for each attempt: a requeued job keeps
its script, but needs new orders. Slurm may requeue by itself when a node fails; `launch.sh` then sees a restart count
that it was not written for and leaves, so that every restart is the supervisor's decision.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prism.errors import BadConfigError
from prism.machine.files import write_durably
from prism.machine.hosts import expand_hosts
from prism.recover.progress import ATTEMPT_KEY, HOST
from prism.recover.supervise.config import LaunchSettings
from prism.recover.supervise.launchers import LaunchPlan, Look, first_to_fail, no_hurry
from prism.recover.supervise.launchers.local import NODE_PROGRAM, attempt_key
from prism.recover.supervise.launchers.processes import find_marked

_JOB_FILE = "slurm.json"
_DRAIN_REASON = "prism"
_QUEUED = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_ALIVE = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}
_COMMAND_S = 60.0
_SETTLE_S = 30.0
_POLL_S = 0.5

# Runs once on each node of the job. node.py writes log and exit code: a full run folder must not end the command, as
# it does where Slurm writes the log itself.
_NODE_SCRIPT = """\
export {host}="$SLURMD_NODENAME" PRISM_NODE_RANK="$SLURM_NODEID" PET_NODE_RANK="$SLURM_NODEID"
exec {python} -S "{folder}/node.py" run "{folder}/$SLURMD_NODENAME.exit" "{folder}/$SLURMD_NODENAME.log" "$@"
"""
_LAUNCH_SCRIPT = """\
[ "${{SLURM_RESTART_COUNT:-0}}" = "{restarts}" ] || exit 0
{exports}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 7 + {attempt}) % 20000))
export PRISM_NUM_NODES="$SLURM_JOB_NUM_NODES" PET_NNODES="$SLURM_JOB_NUM_NODES"
export PET_MASTER_ADDR="$MASTER_ADDR" PET_MASTER_PORT="$MASTER_PORT"
srun --kill-on-bad-exit=1 --ntasks-per-node=1 --output=none sh {folder}/node.sh {command}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """Slurm's record of a job."""

    state: str
    restarts: int
    nodes: str
    exit_code: int


class SlurmLauncher:
    """One Slurm job per run; every attempt is one start of that job."""

    def __init__(self, settings: LaunchSettings | None = None) -> None:
        self.settings = settings or LaunchSettings()
        missing = [tool for tool in ("sbatch", "scontrol", "scancel", "srun") if shutil.which(tool) is None]
        if missing:
            raise BadConfigError(f"--launcher slurm needs {', '.join(missing)} on this machine; run it on a login node")

    def start(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Requeue the run's job with new orders, or submit it."""
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.stop(plan.folder, 0.0)
        run_dir = plan.folder.parent.parent
        earlier = _read_job_id(run_dir)
        held = _hold(earlier) if earlier is not None else None
        if earlier is not None and held is not None:
            self._write_orders(plan, held.restarts, earlier)
            changes = [f"ExcNodeList={','.join(plan.excluded)}", f"NumNodes={plan.num_hosts}"]
            changes.append("StartTime=now")  # Slurm lets a requeued job wait for two minutes otherwise
            _slurm("scontrol", "update", f"JobId={earlier}", *changes)
            _slurm("scontrol", "release", earlier)
            return ()
        number = self._submit(plan, run_dir)
        self._write_orders(plan, 0, number)
        _slurm("scontrol", "release", number)
        return ()

    def look(self, folder: Path) -> Look:
        """Ask Slurm. If the job was requeued since this attempt, the attempt is over."""
        record = _read_record(folder)
        if record is None:
            return Look(running=False)
        number, restarts = str(record["job"]), int(record["restarts"])
        codes = {path.stem: int(path.read_text().strip() or -1) for path in folder.glob("*.exit")}
        job = show_job(number)
        if job is None:
            return _over(folder, codes, None)
        hosts = tuple(expand_hosts(job.nodes))
        if job.restarts != restarts:
            return _over(folder, codes, _first_down(_read_hosts(folder)))
        if hosts and not (folder / "hosts.json").exists():
            write_durably(folder / "hosts.json", json.dumps(hosts))
        if job.state in _QUEUED:
            return Look(running=True, queued=True)
        if job.state in _ALIVE:
            return Look(running=True, hosts=hosts)
        down = _first_down(_read_hosts(folder)) if job.state == "NODE_FAIL" else None
        return _over(folder, codes or dict.fromkeys(hosts, job.exit_code), down)

    def stop(self, folder: Path, grace_s: float, hurry: Callable[[], bool] = no_hurry) -> None:
        """Ask the tasks, wait, then kill them; the job itself stays, to be requeued."""
        record = _read_record(folder)
        if record is None:
            return
        number = str(record["job"])
        if grace_s > 0 and self.look(folder).running:
            if not self._ask_ranks(folder, number):
                _slurm("scancel", "--signal=TERM", number, check=False)
            _wait_until(lambda: hurry() or not self.look(folder).running, grace_s)
        for _ in range(3):
            if not self.look(folder).running:
                return
            if self.look(folder).queued:
                _slurm("scontrol", "hold", number, check=False)
                return
            _slurm("scancel", "--signal=KILL", number, check=False)
            _wait_until(lambda: not self.look(folder).running, _SETTLE_S)
        _slurm("scancel", number, check=False)

    def _ask_ranks(self, folder: Path, number: str) -> bool:
        """Signal only the ranks, by a job step on every node; scancel would also signal their helpers."""
        hosts = _read_hosts(folder)
        if not hosts:
            return False
        program = [self.settings.python, "-S", str(folder / "node.py"), "ask", attempt_key(folder)]
        step = ["srun", f"--jobid={number}", "--overlap", "--quiet", f"--nodes={len(hosts)}", "--ntasks-per-node=1"]
        try:
            done = subprocess.run([*step, *program], capture_output=True, text=True, timeout=_SETTLE_S)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def logs(self, folder: Path) -> list[Path]:
        """One log per node, and the batch script's."""
        return sorted(folder.glob("*.log"))

    def pids(self, folder: Path) -> list[int]:
        """Only those on this machine."""
        return find_marked(attempt_key(folder))

    def cordon(self, host: str, reason: str) -> None:
        """Drain the node if the user has the permission. Our own attempts exclude it in any case."""
        if self.settings.drain:
            text = f"{_DRAIN_REASON}: {reason}"[:120]
            _slurm("scontrol", "update", f"NodeName={host}", "State=DRAIN", f"Reason={text}", check=False)

    def uncordon(self, host: str) -> None:
        """Resume a node that we drained; one that an administrator drained stays drained."""
        shown = _slurm("scontrol", "show", "node", host, check=False)
        if self.settings.drain and f"Reason={_DRAIN_REASON}" in shown:
            _slurm("scontrol", "update", f"NodeName={host}", "State=RESUME", check=False)

    def prefix(self, host: str) -> tuple[str, ...]:
        """A job step on that node."""
        return ("srun", "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--immediate=30")

    def _submit(self, plan: LaunchPlan, run_dir: Path) -> str:
        script = run_dir / "batch.sh"
        write_durably(script, f"#!/bin/sh\nexec sh {shlex.quote(str(run_dir / 'launch.sh'))}\n")
        options = [f"--nodes={plan.num_hosts}", "--hold", "--requeue", "--parsable", "--open-mode=append"]
        options += [f"--job-name=prism-{run_dir.name}", f"--output={run_dir / 'batch.log'}"]
        options += [f"--exclude={','.join(plan.excluded)}"] if plan.excluded else []
        number = _slurm("sbatch", *options, *self.settings.sbatch, str(script)).strip().split(";")[0]
        write_durably(run_dir / _JOB_FILE, json.dumps({"job": number}))
        return number

    def _write_orders(self, plan: LaunchPlan, restarts: int, number: str) -> None:
        """Write what the next start of the job runs, before it may start."""
        variables = {**plan.orders.to_environment(), **plan.variables, ATTEMPT_KEY: attempt_key(plan.folder)}
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items() if name != HOST)
        text = _LAUNCH_SCRIPT.format(
            restarts=restarts,
            exports=exports,
            attempt=plan.orders.attempt,
            folder=shlex.quote(str(plan.folder)),
            command=shlex.join(plan.command),
        )
        shutil.copyfile(NODE_PROGRAM, plan.folder / "node.py")
        script = _NODE_SCRIPT.format(host=HOST, folder=plan.folder, python=shlex.quote(self.settings.python))
        write_durably(plan.folder / "node.sh", script)
        write_durably(plan.folder.parent.parent / "launch.sh", text)
        write_durably(plan.folder / _JOB_FILE, json.dumps({"job": number, "restarts": restarts}))


def show_job(number: str) -> SlurmJob | None:
    """Slurm's record of a job; None if Slurm no longer has one."""
    text = _slurm("scontrol", "show", "job", number, "--oneliner", check=False)
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobState" not in fields:
        return None
    nodes = fields.get("NodeList", "")
    return SlurmJob(
        state=fields["JobState"],
        restarts=int(fields.get("Restarts", "0")),
        nodes="" if nodes in ("(null)", "None") else nodes,
        exit_code=int(fields.get("ExitCode", "0:0").split(":")[0]),
    )


def _hold(number: str) -> SlurmJob | None:
    """Requeue a job and hold it; None if that is no longer possible."""
    job = show_job(number)
    if job is None:
        return None
    if job.state in _QUEUED:
        _slurm("scontrol", "hold", number, check=False)
    else:
        _slurm("scontrol", "requeuehold", number, check=False)
    held: list[SlurmJob] = []

    def is_held() -> bool:
        found = show_job(number)
        held[:] = [found] if found is not None else []
        return found is not None and found.state in _QUEUED

    _wait_until(is_held, _SETTLE_S)
    return held[0] if held and held[0].state in _QUEUED else None


def _over(folder: Path, codes: dict[str, int], down: str | None) -> Look:
    """The status of an attempt that is over: a node is down, or one failed first."""
    known: dict[str, int | None] = dict(codes)
    if down is not None:
        known[down] = None
        return Look(running=False, codes=known, first_failed=down, lost=True)
    first = first_to_fail(codes, lambda host: _mtime(folder / f"{host}.exit"))
    return Look(running=False, codes=known, first_failed=first, ended=True)


def _mtime(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else float("inf")


def _first_down(hosts: tuple[str, ...]) -> str | None:
    for host in hosts:
        state = re.search(r"State=(\S+)", _slurm("scontrol", "show", "node", host, check=False))
        if state is not None and ("DOWN" in state[1] or "NOT_RESPONDING" in state[1]):
            return host
    return None


def _read_record(folder: Path) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads((folder / _JOB_FILE).read_text())
    except (OSError, ValueError):
        return None
    return found


def _read_job_id(run_dir: Path) -> str | None:
    record = _read_record(run_dir)
    return None if record is None else str(record["job"])


def _read_hosts(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(json.loads((folder / "hosts.json").read_text()))
    except (OSError, ValueError):
        return ()


def _wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _slurm(*command: str, check: bool = True) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except subprocess.TimeoutExpired:
        raise BadConfigError(f"{command[0]} did not answer within {_COMMAND_S:.0f} s; check the controller") from None
    if check and done.returncode != 0:
        raise BadConfigError(f"{command[0]} refused ({' '.join(done.stderr.split())[:200]}); check options and rights")
    return done.stdout
