"""Start the jobs of the corpus: forked ranks, plain programs, torchrun; each with a time limit and its own log."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from way import CannotMake, Place

LIMIT_S = 100.0
PROGRAM = "train.py"
_OFTEN = ("torch._dynamo", "torch.nn.parallel", "torch.distributed.nn")  # torch loads them late, each rank again


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A program that runs once per rank, forked from a process that has already loaded the heavy libraries."""

    program: str
    num_ranks: int = 2
    load: tuple[str, ...] = ("torch",)
    file: str = "rank_{rank}.log"
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Place, int], None] | None = None  # in the rank's process, before the program starts

    def __call__(self, place: Place) -> None:
        for name in (*self.load, *(_OFTEN if "torch" in self.load else ())):
            importlib.import_module(name)
        (place.scratch / PROGRAM).write_text(self.program)
        port = free_port()
        wait_for([self._fork(place, rank, port) for rank in range(self.num_ranks)])

    def _fork(self, place: Place, rank: int, port: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        redirect(place.logs / self.file.format(rank=rank))
        os.setpgid(0, 0)
        os.environ.update(rank_environment(rank, self.num_ranks, port))
        os.environ.update(self.environment)
        code = 1
        try:
            os.chdir(place.scratch)
            if self.prepare is not None:
                self.prepare(place, rank)
            code = run_program()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def run_program() -> int:
    """Run the program as the interpreter would: an error is shown with the program's own frames only."""
    sys.argv = [PROGRAM]
    sys.path.insert(0, str(Path.cwd()))
    try:
        runpy.run_path(PROGRAM, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        place = error.__traceback__
        while place is not None and not place.tb_frame.f_code.co_filename.endswith(PROGRAM):
            place = place.tb_next
        traceback.print_exception(type(error), error, place)
        return 1
    return 0


def rank_environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """What a launcher tells a rank."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip


def redirect(path: Path) -> None:
    """Send this process's output, and that of its children, to a file."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)


def wait_for(pids: list[int], limit_s: float = LIMIT_S) -> None:
    """Wait for forked ranks; what outlives the limit is killed with its children."""
    deadline, waiting = time.monotonic() + limit_s, set(pids)
    while waiting and time.monotonic() < deadline:
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.05)
    for pid in waiting:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if waiting:
        raise CannotMake("it outlived its time limit")


def run_to_file(command: list[str], place: Place, *, file: str = "job.log",
                environment: Mapping[str, str] | None = None, limit_s: float = LIMIT_S) -> int:  # fmt: skip
    """Run a command in the scratch folder, both streams into one log; returns its exit status."""
    with (place.logs / file).open("ab") as out:
        process = subprocess.Popen(command, cwd=place.scratch, stdout=out, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})})  # fmt: skip
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise CannotMake("it outlived its time limit") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A Python program in an interpreter of its own."""

    text: str
    wrap: tuple[str, ...] = ()  # a command that the interpreter is started by
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __call__(self, place: Place) -> None:
        (place.scratch / PROGRAM).write_text(self.text)
        command = [*self.wrap, sys.executable, PROGRAM, *self.arguments]
        run_to_file(command, place, environment=self.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """A program under torchrun; its output is one log in which the ranks are mixed."""

    text: str
    options: tuple[str, ...] = ("--tee", "3")
    num_ranks: int = 2

    def __call__(self, place: Place) -> None:
        (place.scratch / PROGRAM).write_text(self.text)
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self.num_ranks)]
        run_to_file([*start, "--master-port", str(free_port()), *self.options, PROGRAM], place)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
