"""Run a program that a model wrote in a sandbox: bubblewrap's where it is installed, else our own; else not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from prism.errors import PrismError
from prism.evaluate.run.scoring import checker_side, inside, program_side, remote, walls, wire

Ending = Literal["passed", "failed", "timeout", "memory"]
Walls = Literal["bubblewrap", "own"]
_GRACE_S = 90.0  # for starting and ending what runs in the sandbox
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Limits of one program, its processes together where not said otherwise."""

    wall_s: float = 5.0
    cpu_s: int = 5  # of one process
    memory_bytes: int = 512 << 20  # of one process and of all
    file_bytes: int = 1 << 20  # of one file
    tmp_bytes: int = 16 << 20  # of all files
    output_bytes: int = 1 << 20  # that it may write to stderr
    processes: int = 64
    walls: Walls | None = None  # None: the first that hold


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a program ended, and the last line it wrote on stderr."""

    ending: Ending
    text: str

    @property
    def passed(self) -> bool:
        """Whether it ran to its end, and its test held."""
        return self.ending == "passed"


def run_sandboxed(program: str, test: str, config: SandboxConfig, given: str = "") -> SandboxResult:
    """Run Python source, and a test of what it defines; raises PrismError where no walls hold.

    The test runs in another process, out of the program's reach. `given` is the task's own text: helpers in it that
    the test uses are the task's, whatever the program makes of them.
    """
    chosen = config.walls or _choose_walls()
    if chosen is None:
        raise PrismError(
            f"code of a model is not run here: {why_no_isolation()}; install bubblewrap or allow namespaces"
        )
    return _run(program, test, given, config, chosen)


@cache
def why_no_isolation() -> str | None:
    """Why no walls hold here, or None; found out by building them once."""
    if _choose_walls() is not None:
        return None
    return "; ".join(f"{name}: {why_not(name)}" for name in ("bubblewrap", "own"))


@cache
def _choose_walls() -> Walls | None:
    """Bubblewrap first, unless it would have to go without our interpreter; it is run as nobody where we are root."""
    order: tuple[Walls, ...] = ("bubblewrap", "own") if _has_interpreter() else ("own", "bubblewrap")
    return next((name for name in order if why_not(name) is None), None)


@cache
def why_not(name: Walls) -> str | None:
    """Why one kind of walls does not hold here, or None."""
    if sys.platform != "linux":
        return "it needs Linux namespaces"
    if name == "bubblewrap" and shutil.which("bwrap") is None:
        return "not installed"
    done = _run("x = 1", "assert x == 1", "", SandboxConfig(), name)
    return None if done.passed else done.text


def _make_task(program: str, test: str, given: str, config: SandboxConfig, python: str) -> dict[str, Any]:
    limits = {key: value for key, value in asdict(config).items() if key != "walls"}
    texts = {"program": program, "test": test, "given": given}
    return {**texts, "limits": limits, "python": python, "sources": _sources()}


@cache
def _sources() -> dict[str, str]:
    """The texts of both sides, each after that of the wire between them."""

    def read(module: ModuleType) -> str:
        lines = Path(str(module.__file__)).read_text().splitlines(keepends=True)
        return "".join(line for line in lines if "# cut out when sent" not in line)

    both = read(remote) + read(wire)
    return {"program": both + read(program_side), "checker": both + read(checker_side)}


def view_of(config: SandboxConfig, *more: str) -> dict[str, Any]:
    """What is seen in the sandbox: the system's programs, the interpreter with its packages, and `more` folders.

    Not a folder that holds /tmp: it would hide the one in which programs write, and show what others keep there.
    """
    prefixes = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, *more)}
    shown = [str(p) for p in sorted(prefixes) if not p.is_relative_to("/usr") and not Path("/tmp").is_relative_to(p)]
    return {"folders": [*_SYSTEM, *shown], "tmp_bytes": config.tmp_bytes}


def _run(program: str, test: str, given: str, config: SandboxConfig, name: Walls) -> SandboxResult:
    python = "/usr/bin/python3" if name == "bubblewrap" and not _has_interpreter() else sys.executable
    task = json.dumps(_make_task(program, test, given, config, python)).encode()
    with tempfile.TemporaryDirectory(prefix="prism-sandbox-", ignore_cleanup_errors=True) as folder:
        process = _start(name, python, config, folder)
        last_s = 10 * config.wall_s + _GRACE_S  # the first process in the sandbox ends both long before
        try:
            out, told = process.communicate(task, timeout=last_s)
        except subprocess.TimeoutExpired:
            return SandboxResult(ending="timeout", text=f"stopped after {last_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    try:
        found = json.loads(out)
        return SandboxResult(ending=found["ending"], text=found["text"])
    except (ValueError, KeyError):
        last = (told.decode(errors="replace").strip().splitlines() or [f"ended with {process.returncode}"])[-1]
        return SandboxResult(ending="failed", text=f"the sandbox could not be set up: {last[:300]}")


def _start(name: Walls, python: str, config: SandboxConfig, folder: str) -> subprocess.Popen[bytes]:
    view = view_of(config)
    texts = [Path(str(module.__file__)).read_text() for module in (walls, inside)]
    enter = "enter(json.loads(sys.argv[1]), sys.argv[2])\n" if name == "own" else ""
    source = "\n".join([*texts, f"{enter}main(limit, hide_from_peers)\n"])
    command = [python, "-I", "-S", "-c", source, json.dumps(view), folder]
    as_nobody: dict[str, Any] = {}
    if name == "bubblewrap":
        command = [*_bubblewrap(view), "--", *command]
        as_nobody = {"user": walls.NOBODY, "group": walls.NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        start_new_session=True,
        **as_nobody,
    )


def _bubblewrap(view: dict[str, Any]) -> list[str]:
    spaces = [f"--unshare-{kind}" for kind in ("user", "ipc", "pid", "net", "uts", "cgroup-try")]
    words = ["bwrap", *spaces, "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--uid", str(walls.NOBODY), "--gid", str(walls.NOBODY)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path, part in (("/tmp", 3), ("/dev/shm", 1)):
        words += ["--size", str(max(4096, view["tmp_bytes"] * part // 4)), "--tmpfs", path]
    for path in view["folders"]:
        if Path(path).is_symlink():
            words += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists() and os.getuid() == 0 and not _open_to_all(Path(path)):
            continue  # nobody cannot see it
        elif Path(path).exists():
            words += ["--ro-bind", path, path]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def _has_interpreter() -> bool:
    """Whether our interpreter and its libraries can be read in bubblewrap, where root is nobody."""
    needed = (Path(sys.executable), Path(sys.base_prefix, "lib"))
    return os.getuid() != 0 or all(_open_to_all(path.resolve()) for path in needed)


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)
