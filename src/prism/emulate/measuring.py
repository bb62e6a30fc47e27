"""Start one measuring process per rank of this host, and gather the points; needs no more than torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prism.emulate.inside.measure_plan import MeasurePlan
from prism.emulate.launch import choose_core
from prism.errors import BadConfigError, PrismError


def measure_collectives(
    plan: MeasurePlan, num_ranks: int, *, pin: bool, timeout_s: float = 600
) -> list[dict[str, Any]]:
    """Points of every collective of the plan over `num_ranks` processes, one core each where `pin` says so."""
    for size in {wanted.num_ranks for wanted in plan.wanted}:
        if size < 2 or num_ranks % size:
            raise BadConfigError(f"groups of {size} do not divide {num_ranks} ranks; choose sizes that do")
    with tempfile.TemporaryDirectory(prefix="prism-") as scratch:
        asked, answer = Path(scratch) / "plan.json", Path(scratch) / "points.json"
        asked.write_text(json.dumps(asdict(plan)))
        start_ranks("measure", asked, answer, num_ranks, pin=pin, timeout_s=timeout_s)
        points: list[dict[str, Any]] = json.loads(answer.read_text())
        return points


def start_ranks(module: str, asked: Path, answer: Path, num_ranks: int, *, pin: bool, timeout_s: float) -> None:
    """Run a module of `inside` once per rank, from a plan to an answer, until all have ended."""
    command = [sys.executable, "-P", "-m", f"prism.emulate.inside.{module}", str(asked), str(answer)]
    port = _free_port()
    processes = []
    for rank in range(num_ranks):
        process = subprocess.Popen(
            command, env=_environment(rank, num_ranks, port), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if pin:
            os.sched_setaffinity(process.pid, {choose_core(rank, num_ranks)})
        processes.append(process)
    _wait(processes, timeout_s)


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    try:
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=timeout_s)
            if process.returncode:
                last = (errors.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]
                raise PrismError(f"rank {rank} failed with exit code {process.returncode}: {last[:200]}")
    except subprocess.TimeoutExpired:
        raise PrismError(f"measuring did not end in {timeout_s:g} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def _environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    source = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
