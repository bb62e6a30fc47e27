"""`prism evaluate` as a user starts it, and what its files say while it runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIMIT_S = 600.0  # processes import torch, transformers and the harness; a busy machine takes its time


def start(plan: Path, output: Path, *flags: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the command."""
    words = ["evaluate", str(plan), "--output", str(output), "--json", *flags]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", "from prism.cli.main import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=env,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Its document, once it has ended well."""
    out, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, told[-3000:]
    document: dict[str, Any] = json.loads(out)
    return document


def phases(output: Path, phase: str) -> list[dict[str, Any]]:
    """Loads, inferences or scores that have ended well."""
    with contextlib.suppress(FileNotFoundError):
        lines = [json.loads(line) for line in (output / "trials.jsonl").read_text().splitlines()]
        return [line for line in lines if line["phase"] == phase and line["state"] == "done"]
    return []


def wait_until(is_there: Callable[[], object], process: subprocess.Popen[str], what: str) -> None:
    """Wait for something that a running command will do."""
    end = time.monotonic() + LIMIT_S
    while not is_there():
        assert process.poll() is None and time.monotonic() < end, f"{what} never came"
        time.sleep(0.05)


def wait_for_first_part(output: Path, process: subprocess.Popen[str]) -> None:
    """Until something was inferred."""
    wait_until(lambda: phases(output, "infer"), process, "a first part")


def descendants(pid: int) -> dict[int, str]:
    """All processes below one, with their command lines."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args", "--no-headers"], capture_output=True, text=True)
    rows = [row.split(None, 2) for row in listed.stdout.splitlines()]
    found: dict[int, str] = {}
    level = {pid}
    while level:
        below = {int(p): args for p, parent, args in rows if int(parent) in level}
        found |= below
        level = set(below)
    return found


def inferred_twice(output: Path) -> list[tuple[str, int]]:
    """Samples whose inference was finished more than once."""
    seen: dict[tuple[str, int], int] = {}
    for line in phases(output, "infer"):
        first, last = line["trial"].rpartition("[")[2].rstrip("]").split(":")
        for sample in range(int(first), int(last)):
            seen[line["dataset"], sample] = seen.get((line["dataset"], sample), 0) + 1
    return [key for key, count in seen.items() if count > 1]
