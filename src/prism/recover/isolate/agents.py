"""Probes on real hosts: started through ssh, srun, a network namespace or plainly, ordered round by round."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prism.recover.isolate.grading import SLOW, Grader
from prism.recover.isolate.search import Round

Backend = Literal["socket", "gloo", "nccl"]
PROBE = Path(__file__).with_name("probe.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """How hosts are reached and what a test sends."""

    backend: Backend = "socket"
    num_bytes: int = 8 << 20  # per member
    timeout_s: float = 30.0  # of one test
    start_s: float = 60.0  # for a probe to say that it is ready
    python: str = sys.executable
    addresses: Mapping[str, str] = field(default_factory=dict)  # where a host is reached; else by its name
    grader: Grader = field(default_factory=Grader)


class Agent:
    """One host's probe."""

    def __init__(self, host: str, command: Sequence[str]) -> None:
        self.host = host
        self.port: int | None = None
        self.ports: list[int] = []
        self.devices = 1
        self.trouble = "its probe did not start"
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
            )
        except OSError:
            self._process = None
            return
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self, deadline: float) -> None:
        """Wait for the probe to say its port."""
        answer = self._next(deadline) or {}
        self.trouble = str(answer.get("error", self.trouble))
        if answer.get("ready"):
            self.port = int(answer["port"])
            self.ports = [int(p) for p in answer.get("ports", [])]
            self.devices = int(answer.get("devices", 1))

    def order(self, document: dict[str, Any]) -> None:
        """Send an order; a dead probe does not answer."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()
        except OSError:
            return

    def answer(self, number: int, deadline: float) -> dict[str, Any]:
        """The answer to an order; answers to orders that were given up are passed over."""
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

    def _next(self, deadline: float) -> dict[str, Any] | None:
        try:
            return self._answers.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What tests showed, one entry each; the slowest member counts."""

    alive: NDArray[np.bool_]
    bandwidth: NDArray[np.float64]
    latency_s: NDArray[np.float64]  # of one hop


class Agents:
    """All probes; runs rounds of tests and grades them."""

    def __init__(self, hosts: Sequence[str], prefix: Callable[[str], Sequence[str]], config: ProbeConfig) -> None:
        self.config = config
        self._agents = [Agent(host, [*prefix(host), *self._program()]) for host in hosts]
        self._number = 0
        self.errors: dict[str, str] = {}
        deadline = time.monotonic() + config.start_s
        for agent in self._agents:
            agent.wait_ready(deadline)
        self._counters = self._read_counters()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for agent in self._agents:
            agent.close()

    def run(self, tests: Round) -> NDArray[np.int8]:
        """Run a round, all its tests side by side; a slow one is run once more, since a busy moment is no fault."""
        rows = [[host for host in row if host >= 0] for row in tests.tolist()]
        measured = self._measure(rows)
        outcomes = self._grade(measured)
        slow = np.flatnonzero(outcomes == SLOW)
        if len(slow):
            again = self._measure([rows[number] for number in slow])
            better = Measured(
                alive=again.alive,
                bandwidth=np.maximum(measured.bandwidth[slow], again.bandwidth),
                latency_s=np.minimum(measured.latency_s[slow], again.latency_s),
            )
            outcomes[slow] = self._grade(better)
        return outcomes

    def _measure(self, rows: list[list[int]]) -> Measured:
        numbers = [self._order(row) for row in rows]
        deadline = time.monotonic() + self.config.timeout_s + min(5.0, self.config.timeout_s)
        answers = [self._collect(row, number, deadline) for row, number in zip(rows, numbers, strict=True)]
        seconds = np.array([max(a.get("seconds", np.inf) for a in group) for group in answers])
        latency = np.array([max(a.get("latency_s", np.inf) for a in group) for group in answers])
        moved = np.array([self.config.num_bytes * (len(row) - 1) for row in rows], dtype=np.float64)
        return Measured(
            alive=np.array([all(a["ok"] for a in group) for group in answers]),
            bandwidth=moved / np.maximum(seconds, 1e-9),
            latency_s=latency / np.array([len(row) for row in rows]),
        )

    def _grade(self, found: Measured) -> NDArray[np.int8]:
        return self.config.grader.grade(found.alive, found.bandwidth, found.latency_s, len(self._agents))

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

    def _program(self) -> list[str]:
        if self.config.backend == "socket":
            return [self.config.python, str(PROBE)]
        return [self.config.python, "-m", "prism.recover.checkpoint.collective_probe", self.config.backend]

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
