"""An embedded Ray that does not start: it is tried again, and what a failed start began does not stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from prism.errors import PrismError  # noqa: E402
from prism.evaluate.run.engines.ray_engine import RayEngine  # noqa: E402

WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"


def start_child(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WAIT, *words]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


@pytest.mark.ray
def test_what_a_failed_start_left_running_is_ended_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = start_child("of the user")
    begun: list[subprocess.Popen[str]] = []

    def fail(**unused: Any) -> None:
        assert all(child.poll() is not None for child in begun), "the start before left nothing"
        begun.append(start_child(str(Path(ray.__file__).parent / "core")))
        raise RuntimeError("the node did not appear in time")

    monkeypatch.setattr(ray, "init", fail)
    try:
        with pytest.raises(PrismError, match="cannot be started .*did not appear in time"):
            RayEngine(None, 1)
        assert len(begun) == 3 and all(child.poll() is not None for child in begun)
        assert ours.poll() is None
    finally:
        for child in (ours, *begun):
            child.kill()
            child.communicate()
