"""Programs that models might write to get out or to forge their verdict: all held, by both kinds of walls."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from escapes import ESCAPES, FORGERIES

from prism.evaluate.run.scoring import sandbox
from prism.evaluate.run.scoring.sandbox import SandboxConfig, Walls, run_sandboxed

_WRONG, _TEST = "\n\ndef double(x):\n    return x + 1\n", "assert double(2) == 4 and abs(double(3) - 6) < 1e-6"
ATTEMPTS = ESCAPES | FORGERIES
_MARKER = f"prism-marker-{os.getpid()}"


def _walls_here() -> list[Walls]:
    """All kinds that hold on this machine, the one that is used first."""
    names: tuple[Walls, ...] = ("own", "bubblewrap")
    return sorted((n for n in names if sandbox.why_not(n) is None), key=lambda n: n != sandbox._choose_walls())


WALLS = _walls_here()
pytestmark = pytest.mark.skipif(not WALLS, reason="no walls hold on this machine")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a program would find if there were no walls."""
    folder = tmp_path_factory.mktemp("host")
    for above in (folder, *folder.parents[:-2]):
        above.chmod(0o755)
    secret, shared = folder / "secret", Path("/dev/shm") / _MARKER
    secret.write_text("42")
    shared.write_text("42")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        pytest.MonkeyPatch.context() as patch,
    ):
        abstract.bind(f"\0{_MARKER}")
        abstract.listen()
        patch.setenv("SECRET", _MARKER)
        yield {
            "secret": str(secret),
            "port": server.getsockname()[1],
            "name": _MARKER,
            "pid": os.getpid(),
            "marker": _MARKER,
        }
    shared.unlink()


def _run(name: str, host: dict[str, Any], config: SandboxConfig) -> bool:
    if name in FORGERIES:
        return run_sandboxed(_fill(FORGERIES[name], host) + _WRONG, _TEST, config).passed
    return run_sandboxed(_fill(ESCAPES[name], host) + "\ndone = 1", "assert done == 1", config).passed


def _fill(program: str, host: dict[str, Any]) -> str:
    for key, value in host.items():
        program = program.replace(f"{{{key}!r}}", repr(value)).replace(f"{{{key}}}", str(value))
    return program


def test_there_are_at_least_forty() -> None:
    assert len(ESCAPES) >= 40 and len(FORGERIES) >= 20


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_held(name: str, host: dict[str, Any]) -> None:
    config = SandboxConfig(wall_s=1.5, cpu_s=1, walls=WALLS[0])
    assert not _run(name, host, config)


@pytest.mark.slow
@pytest.mark.parametrize("walls", WALLS[1:])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_held_by_the_other_walls_too(name: str, walls: Walls, host: dict[str, Any]) -> None:
    assert not _run(name, host, SandboxConfig(wall_s=1.5, cpu_s=1, walls=walls))


def test_nothing_of_the_attempts_is_left(host: dict[str, Any]) -> None:
    """Runs last in this file: no file, no process."""
    running = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
    assert "4217" not in running
    assert Path("/dev/shm") / _MARKER in Path("/dev/shm").iterdir()
    assert not [path for path in Path("/tmp").glob("prism-sandbox-*") if path.is_dir() and list(path.iterdir())]
    assert shutil.which(_MARKER) is None


@pytest.mark.parametrize("walls", WALLS)
def test_the_host_programs_would_have_worked(walls: Walls, host: dict[str, Any]) -> None:
    """The attempts fail for the walls and not for a mistake in them: outside, those that do no harm succeed."""
    for name in ("read a file that everybody may read", "read /etc/passwd", "reach a server of this machine",
                 "reach an abstract socket", "use memory shared with the host", "find variables of ours",
                 "signal a process of the host"):  # fmt: skip
        done = subprocess.run(["python3", "-c", _fill(ATTEMPTS[name], host)], capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)
