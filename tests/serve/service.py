"""The service as a process of its own, for tests that need real sockets or a browser."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PROGRAM = "import typer; from prism.cli.serve import run_serve; typer.run(run_serve)"
WITH_PATIENCE = """
import sys; from pathlib import Path; from prism.serve import ServeConfig, serve
request_s, answer_s = float(sys.argv[2]), float(sys.argv[3])
config = ServeConfig(folder=Path(sys.argv[1]), port=0, request_s=request_s, answer_s=answer_s, ask_token=False)
serve(config, lambda line: print(line, file=sys.stderr))
"""


@dataclass(frozen=True)
class RunningService:
    """Where it listens."""

    address: str  # without the slash at the end
    pid: int

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def rss_bytes(self) -> int:
        """Memory it holds now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory it has held."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """CPU time it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100.0


@contextmanager
def run_service(folder: Path, *options: str, patience: tuple[float, float] | None = None) -> Iterator[RunningService]:
    """Start the service on a free port, wait until it answers, stop it at the end.

    `patience`: seconds that it waits for a request, and for an answer to be taken.
    """
    command = [sys.executable, "-c", PROGRAM, str(folder), "--port", "0", "--every", "0.3", *options]
    if "--host" not in options and not any("token" in option for option in options):
        command.append("--no-token")
    if patience is not None:
        command = [sys.executable, "-c", WITH_PATIENCE, str(folder), *map(str, patience)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://(\S+?)/", line)
            assert found, f"the service said: {line}{process.stderr.read() if process.poll() is not None else ''}"
            address = f"http://{found[1]}"
            _wait_until_up(address)
            yield RunningService(address=address, pid=process.pid)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_up(address: str) -> None:
    for _ in range(6_000):
        try:
            if httpx.get(f"{address}/healthz", timeout=60.0).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(f"{address} did not come up")
