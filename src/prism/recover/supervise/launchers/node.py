"""The process around the command on each host: keeps its output and exit code, and passes signals on to the ranks.

It uses the standard library only and is run by its path, so the host needs nothing but Python. It outlives the
supervisor, and so does the job. A full disk does not end training: output that cannot be written is dropped.

    python -S node.py run EXIT_FILE LOG_FILE COMMAND...
    python -S node.py end KEY GRACE_S      # end an attempt's processes on this host
    python -S node.py ask KEY              # ask the ranks among them to save and leave
    python -S node.py count KEY            # print how many there are
    python -S node.py leave                # in a container, before it is ended: ask its ranks and wait for them
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_EXIT_TRIES_S = 5.0
_DRAIN_S = 2.0
_RELAYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_RANK_VARIABLES = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK")
_KEY = "PRISM_ATTEMPT_KEY"
_POLL_S = 0.1
_ROLE = b"PRISM_ROLE"  # a helper process of ours names its role
_SHELLS = {"sh", "bash", "dash", "zsh", "ash", "env", "timeout", "nice", "stdbuf", "script", "srun", "ssh"}
_LAUNCHERS = {
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
}
_LAUNCHERS |= {"deepspeed", "mpirun", "mpiexec", "horovodrun", "uv", "poetry", "node.py"}


def main() -> int:
    """Run the subcommand that the first argument names."""
    what, *words = sys.argv[1:]
    if what == "end":
        end_marked(words[0], float(words[1]))
        return 0
    if what == "ask":
        return 0 if ask_ranks(words[0]) else 1
    if what == "leave":
        leave(os.environ.get(_KEY, ""))
        return 0
    if what == "count":
        sys.stdout.write(f"{len(find_marked(words[0]))}\n")
        return 0
    return run(Path(words[0]), Path(words[1]), words[2:])


def run(exit_path: Path, log_path: Path, command: list[str]) -> int:
    """Run the command to its end; its own exit code is this program's."""
    reader, writer = os.pipe()
    child = subprocess.Popen(command, stdout=writer, stderr=writer, start_new_session=True)
    os.close(writer)
    for number in _RELAYED:
        signal.signal(number, lambda got, frame: send(find_ranks(find_tree(child.pid)), got))
    pump = threading.Thread(target=copy_output, args=(reader, log_path), daemon=True)
    pump.start()
    code = child.wait()
    pump.join(_DRAIN_S)  # write the last output before the code; a process that lives on may keep the pipe open
    write_exit(exit_path, code)
    pump.join()
    return code if code >= 0 else 128 - code


def copy_output(reader: int, path: Path) -> None:
    """Append what the command writes to its log until it and its children are gone."""
    dropped = 0
    while chunk := os.read(reader, _CHUNK_BYTES):
        notice = f"\n[prism: {dropped} bytes of output were lost: the log could not be written]\n" if dropped else ""
        try:
            log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                written = os.write(log, notice.encode() + chunk) - len(notice.encode())
                dropped = max(0, len(chunk) - written) if written >= 0 else dropped + len(chunk)
            finally:
                os.close(log)
        except OSError:
            dropped += len(chunk)


def write_exit(path: Path, code: int) -> None:
    """Write the exit code in one step; if the disk is full, try again for a few seconds."""
    deadline = time.monotonic() + _EXIT_TRIES_S
    while True:
        try:
            aside = path.with_name(f"{path.name}.tmp")
            aside.write_text(f"{code}\n")
            aside.replace(path)
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.5)


# -- the processes of an attempt, found by its key in their environment, whatever session or parent they have


def find_marked(key: str) -> list[int]:
    """Live processes of an attempt, without this one: those with its key in their environment, and their children.

    A child without any key was started with an environment of its own (env -i); one with another key is an attempt of a
    supervisor that runs below this one.
    """
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    keys = {pid: variables_of(pid).get(_KEY.encode()) for pid in pids}
    if key.encode() not in keys.values():
        return []
    parents = {pid: parent_of(pid) for pid in pids}
    nearest = {pid: next((up for up in (pid, *_ancestors(pid, parents)) if keys.get(up)), 0) for pid in pids}
    marked = [pid for pid in pids if pid != os.getpid() and keys.get(nearest[pid]) == key.encode()]
    return sorted(pid for pid in marked if (stat := read_stat(pid)) is not None and stat[0] != "Z")


def ask_ranks(key: str) -> int:
    """Send SIGTERM to the ranks of an attempt; returns how many there were."""
    marked = find_marked(key)
    ranks = find_reported(marked, Path(key)) or find_ranks(marked)
    send(ranks, signal.SIGTERM)
    return len(ranks)


def interrupt(marked: list[int]) -> bool:
    """Send SIGINT to the processes that a terminal would send it to, unless a rank is prepared for SIGTERM.

    torchrun passes it on to its ranks and gives them time to save. Returns False if nobody would act on it.
    """
    if any(catches(pid, signal.SIGTERM) for pid in find_ranks(marked)):
        return False
    tops = [pid for pid in marked if str(Path(__file__)) in words_of(parent_of(pid))]
    group = [pid for pid in marked if group_of(pid) in tops]
    return any(catches(pid, signal.SIGINT) for pid in group) and send(group, signal.SIGINT) > 0


def leave(key: str) -> None:
    """Send SIGTERM to the ranks of this container and wait for their end, at most the container's grace."""
    marked = find_marked(key)
    ranks = find_reported(marked, Path(key)) or find_ranks(marked)
    send(ranks, signal.SIGTERM)
    while set(ranks) & set(find_marked(key)):
        time.sleep(_POLL_S)


def end_marked(
    key: str, grace_s: float, hurry: Callable[[], bool] = lambda: False, *, interrupted: bool = False
) -> int:
    """End all processes of an attempt; returns how many there were.

    With grace the ranks alone are asked, since a data loader or writer that goes first takes the save with it; the
    others end with their ranks. Then SIGKILL until none is left that we may signal. After a Ctrl-C, ranks that would
    die of a request to save are interrupted instead.
    """
    first = find_marked(key)
    if first and grace_s > 0:
        if not (interrupted and interrupt(first)):
            ask_ranks(key)
        _wait(lambda: bool(find_marked(key)), grace_s, hurry)
    while send(find_marked(key), signal.SIGKILL):
        time.sleep(_POLL_S)
    return len(first)


def read_stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process; None when it is gone."""
    fields = _fields(pid)
    return (fields[0].decode(), int(fields[19])) if fields else None


def read_processor_ticks(pid: int) -> int:
    """Processor time that a process has used, in clock ticks; 0 when it is gone."""
    fields = _fields(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _wait(busy: Callable[[], bool], limit_s: float, hurry: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not hurry() and busy():
        time.sleep(_POLL_S)


# -- which processes train


def find_reported(pids: list[int], folder: Path) -> list[int]:
    """Those of the processes that write a rank's heartbeat into the attempt's folder."""
    found = []
    for path in folder.glob("beat-*.json"):
        try:
            beat = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        pid, host = beat.get("pid"), str(beat.get("host", "")).encode()
        if pid in pids and variables_of(pid).get(b"PRISM_HOST", host) == host:
            found.append(pid)
    return found


def find_ranks(pids: list[int]) -> list[int]:
    """The processes of a job that train: not its launchers, shells, data loaders, writers or other helpers.

    A rank has its number in its environment and a parent without it. Without such numbers, the topmost Python program
    that is no launcher.
    """
    parents = {pid: parent_of(pid) for pid in pids}
    programs = {pid: variables_of(pid) for pid in pids if not is_launcher(pid)}
    programs = {pid: variables for pid, variables in programs.items() if _ROLE not in variables}
    for name in _RANK_VARIABLES:
        numbers = {pid: variables[name] for pid, variables in programs.items() if variables.get(name)}
        if numbers:
            return [pid for pid in numbers if numbers.get(parents[pid]) != numbers[pid]]
    scripts = [pid for pid in programs if "python" in Path(words_of(pid)[0]).name]
    if scripts:
        return [pid for pid in scripts if not any(up in scripts for up in _ancestors(pid, parents))]
    return [pid for pid in pids if str(Path(__file__)) not in words_of(pid)]  # unknown: all but this process


def find_tree(root: int) -> list[int]:
    """A process and its descendants."""
    parents = {int(entry.name): parent_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return [pid for pid in parents if pid == root or root in _ancestors(pid, parents)]


def send(pids: list[int], number: int) -> int:
    """Signal processes; one that is gone or another user's is no error. Returns how many got it."""
    sent = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            sent += 1
    return sent


def variables_of(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with."""
    return dict(part.partition(b"=")[::2] for part in _read(pid, "environ").split(b"\0"))


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def group_of(pid: int) -> int:
    """The process group of a process, which `run` makes for its command; 0 when it is gone."""
    fields = _fields(pid)
    return int(fields[2]) if fields else 0


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    found = re.search(rb"^SigCgt:\s*([0-9a-f]+)", _read(pid, "status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def is_launcher(pid: int) -> bool:
    """Whether a process only starts others. Words after the name of a script are the script's arguments."""
    words = words_of(pid)[:4]
    words = words[: next((i for i, word in enumerate(words, 1) if word.endswith(".py")), None)]
    names = [Path(word).name for word in words]
    if not words[0] or names[0] in _SHELLS:
        return True
    return any(name in _LAUNCHERS for name in (*names, *words))


def words_of(pid: int) -> list[str]:
    """The command line of a process; one empty word when it is gone."""
    return _read(pid, "cmdline").decode(errors="replace").split("\0")


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    found: list[int] = []
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.append(pid)
    return found


def _fields(pid: int) -> list[bytes]:
    """The fields of a process's status from its state on, behind its name; none when it is gone."""
    stat = _read(pid, "stat")
    fields = stat[stat.rfind(b")") + 2 :].split()
    return fields if len(fields) > 19 else []


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
