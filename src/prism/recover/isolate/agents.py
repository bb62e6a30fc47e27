"""Runs probes on hosts, started through ssh, srun, in a network namespace or directly, and gives them orders."""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prism.errors import BadConfigError
from prism.recover.isolate.grading import PASSED, SLOW, Grader
from prism.recover.isolate.search import Round

Backend = Literal["socket", "gloo", "nccl"]
PROBE = Path(__file__).with_name("probe.py")
_KEPT_LINES = 20
_SHOWN_CHARACTERS = 300
_LAST_WORDS_S = 2.0
_CONSOLE = ("Python ", "Type ", "(InteractiveConsole)", ">>> ", "[GCC", "[Clang", "\n")  # its own greeting


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """How hosts are reached and what a test sends."""

    backend: Backend = "socket"
    num_bytes: int = 8 << 20  # per member
    timeout_s: float = 30.0  # of one test
    start_s: float = 60.0  # until a probe must be ready
    python: str = sys.executable
    addresses: Mapping[str, str] = field(default_factory=dict)  # where a host is reached; else by its name
    grader: Grader = field(default_factory=Grader)


def pack_probe() -> str:
    """The probe's source as one line for Python's own console, which needs no quotes in any shell on the way."""
    source = base64.b64encode(zlib.compress(PROBE.read_bytes())).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{source}')));print(flush=True);main()\n"


class Agent:
    """One host's probe."""

    def __init__(self, host: str, command: Sequence[str], program: str = "") -> None:
        self.host = host
        self.port: int | None = None
        self.ports: list[int] = []
        self.devices = 1
        self.trouble = "its probe did not start"
        self._complaints: deque[str] = deque(maxlen=_KEPT_LINES)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                bufsize=1,
                errors="replace",
            )
        except OSError as error:
            self._process = None
            self.trouble = f"its probe did not start ({error})"
            return
        threading.Thread(target=self._read, daemon=True).start()
        self._listener = threading.Thread(target=self._read_errors, daemon=True)
        self._listener.start()
        if program:
            self._write(program)

    def wait_ready(self, deadline: float) -> None:
        """Wait until the probe reports its port."""
        answer = self._next(deadline) or {}
        if "error" in answer:
            self.trouble = str(answer["error"])
        elif not answer.get("ready") and self._process is not None:
            self._listener.join(_LAST_WORDS_S)  # the output of ssh or the shell is the reason
            said = " ".join(" ".join(self._complaints).split())[-_SHOWN_CHARACTERS:]
            self.trouble = f"{self.trouble}: {said}" if said else self.trouble
        if answer.get("ready"):
            self.port = int(answer["port"])
            self.ports = [int(p) for p in answer.get("ports", [])]
            self.devices = int(answer.get("devices", 1))

    def order(self, document: dict[str, Any]) -> None:
        """Send an order; a dead probe does not answer."""
        self._write(json.dumps(document) + "\n")

    def _write(self, text: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except OSError:
            return

    def answer(self, number: int, deadline: float) -> dict[str, Any]:
        """The answer to an order; late answers to earlier orders are ignored."""
        while (found := self._next(deadline)) is not None:
            if found.get("id") == number:
                return found
        return {"ok": False, "error": "no answer"}

    def close(self) -> None:
        """End the probe."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    self._answers.put(json.loads(line))
        except ValueError:
            pass
        self._answers.put({"ended": True})

    def _read_errors(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        for line in self._process.stderr:
            if not line.startswith(_CONSOLE):
                self._complaints.append(line)

    def _next(self, deadline: float) -> dict[str, Any] | None:
        try:
            return self._answers.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements, one entry per test, of its slowest member."""

    alive: NDArray[np.bool_]
    bandwidth: NDArray[np.float64]
    latency_s: NDArray[np.float64]  # of one hop
    busy: NDArray[np.bool_]  # a member's processor was busy with other work
    # What it may have reached without other work on its hosts; endless where nobody knows how much that took.
    most_bandwidth: NDArray[np.float64]


class Agents:
    """All probes; runs rounds of tests and grades them."""

    def __init__(self, hosts: Sequence[str], prefix: Callable[[str], Sequence[str]], config: ProbeConfig) -> None:
        self.config = config
        command, program = self._program()
        self._agents = [Agent(host, [*prefix(host), *command], program) for host in hosts]
        self._number = 0
        self.errors: dict[str, str] = {}
        self.busy: Counter[str] = Counter()  # number of tests in which a host was busy with other work
        deadline = time.monotonic() + config.start_s
        for agent in self._agents:
            agent.wait_ready(deadline)
        reached = [agent for agent in self._agents if agent.port is not None]
        if len(reached) < 2:
            self.__exit__(None, None, None)
            first = next(agent for agent in self._agents if agent.port is None)
            raise BadConfigError(
                f"{len(reached)} of {len(hosts)} hosts could be reached; {first.host}: {first.trouble}; check --shell"
            )
        self._counters = self._read_counters()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for agent in self._agents:
            agent.close()

    def run(self, tests: Round) -> NDArray[np.int8]:
        """Run a round, all its tests side by side; a slow one is run once more, since a busy moment is no fault."""
        rows = [[host for host in row if host >= 0] for row in tests.tolist()]
        measured = self.measure(rows)
        outcomes = self._grade(measured)
        slow = np.flatnonzero(outcomes == SLOW)
        if len(slow):
            again = self.measure([rows[number] for number in slow])
            better = Measured(
                alive=again.alive,
                bandwidth=np.maximum(measured.bandwidth[slow], again.bandwidth),
                latency_s=np.minimum(measured.latency_s[slow], again.latency_s),
                busy=again.busy | measured.busy[slow],
                most_bandwidth=np.maximum(measured.most_bandwidth[slow], again.most_bandwidth),
            )
            outcomes[slow] = self._grade(better)
        return outcomes

    def measure(self, rows: list[list[int]]) -> Measured:
        """Run tests side by side."""
        numbers = [self._order(row) for row in rows]
        deadline = time.monotonic() + self.config.timeout_s + min(5.0, self.config.timeout_s)
        answers = [self._collect(row, number, deadline) for row, number in zip(rows, numbers, strict=True)]
        seconds = np.array([max(a.get("seconds", np.inf) for a in group) for group in answers])
        latency = np.array([max(a.get("latency_s", np.inf) for a in group) for group in answers])
        moved = np.array([self.config.num_bytes * (len(row) - 1) for row in rows], dtype=np.float64)
        busy = np.array([any(a.get("busy", False) for a in group) for group in answers])
        # Members wait for each other, so what each of them waited for a core may all have been waited in turn.
        queued = np.array([sum(a.get("queued_s", a.get("seconds", 0.0)) for a in group) for group in answers])
        bandwidth = moved / np.maximum(seconds, 1e-9)
        return Measured(
            alive=np.array([all(a["ok"] for a in group) for group in answers]),
            bandwidth=bandwidth,
            latency_s=latency / np.array([len(row) for row in rows]),
            busy=busy,
            most_bandwidth=np.where(busy, moved / np.maximum(seconds - queued, 1e-9), bandwidth),
        )

    def _grade(self, found: Measured) -> NDArray[np.int8]:
        grader, num_hosts = self.config.grader, len(self._agents)
        outcomes = grader.grade(found.alive, found.bandwidth, found.latency_s, num_hosts)
        excused = found.busy & grader.is_usual(found.most_bandwidth, num_hosts)
        return np.where(excused & (outcomes == SLOW), PASSED, outcomes).astype(np.int8)

    def changed_counters(self) -> dict[str, str]:
        """Error counters that rose during the tests, per host."""
        changed = {}
        for host, now in self._read_counters().items():
            before = self._counters.get(host, {})
            risen = [
                f"{name} +{value - before[name]}" for name, value in now.items() if value > before.get(name, value)
            ]
            if risen:
                changed[host] = ", ".join(risen)
        return changed

    def _program(self) -> tuple[list[str], str]:
        """What to run on a host, and what to send it first: the plain probe travels over stdin, no file is needed."""
        if self.config.backend == "socket":
            return [self.config.python, "-m", "code"], pack_probe()
        return [self.config.python, "-m", "prism.recover.checkpoint.collective_probe", self.config.backend], ""

    def _order(self, row: list[int]) -> int:
        self._number += 1
        agents = [self._agents[host] for host in row]
        if any(agent.port is None for agent in agents):
            return self._number  # a probe that never came up: the test has failed before it began
        members = [[self.config.addresses.get(a.host, a.host), self._port_of(a)] for a in agents]
        devices = min(agent.devices for agent in agents)
        common = {"kind": "test", "id": self._number, "members": members, "devices": devices}
        sizes = {"num_bytes": self.config.num_bytes, "timeout_s": self.config.timeout_s}
        for place, agent in enumerate(agents):
            agent.order({**common, **sizes, "place": place})
        return self._number

    def _port_of(self, agent: Agent) -> int:
        """The probe's listening port, or for torch's rendezvous a port that this test has for itself."""
        assert agent.port is not None
        return agent.ports[self._number % len(agent.ports)] if agent.ports else agent.port

    def _collect(self, row: list[int], number: int, deadline: float) -> list[dict[str, Any]]:
        agents = [self._agents[host] for host in row]
        if any(agent.port is None for agent in agents):
            for agent in agents:
                if agent.port is None:
                    self.errors[agent.host] = agent.trouble
            return [{"ok": False}]
        answers = [agent.answer(number, deadline) for agent in agents]
        for agent, answer in zip(agents, answers, strict=True):
            self.busy[agent.host] += bool(answer.get("busy", False))
            if not answer["ok"]:
                self.errors[agent.host] = str(answer.get("error", ""))
        return answers

    def _read_counters(self) -> dict[str, dict[str, int]]:
        live = [agent for agent in self._agents if agent.port is not None]
        self._number += 1
        for agent in live:
            agent.order({"kind": "counters", "id": self._number})
        deadline = time.monotonic() + self.config.timeout_s
        return {agent.host: agent.answer(self._number, deadline).get("counters", {}) for agent in live}
