"""Host tests of healthy hosts on a machine that is busy with other things: nobody may be condemned.

    python proving/benchmarks/isolate_loaded.py [--runs 1000] [--hosts 4] [--load 8] [--kilobytes 64] [--dead 1]
    [--bursts]

With `--dead` that many more hosts do not answer; they are the only ones that may be condemned. With `--bursts` the
neighbours move bytes and rest in turn instead of computing all the time, so that the noise comes and goes.

Real probes on real sockets, one process per host, all on this machine, beside `--load` processes that compute all the
time. The probes stay between runs, and each run is a whole search with its proofs, by the command's own settings but
for the size of a message, so that a run takes a fraction of a second of CPU time. Every test is recorded; the same
decisions are then made on tests drawn from the record in another order, as often again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, fields, replace

import numpy as np

from machine import describe_machine
from prism.recover.isolate.agents import Agents, Measured, ProbeConfig
from prism.recover.isolate.examine import examine_with
from prism.recover.isolate.grading import Grader

_COMPUTE = "while True: pass"
_BURSTS = """
import os, random, socket, threading, time
one, other = socket.socketpair()
threading.Thread(target=lambda: [None for _ in iter(lambda: other.recv(1 << 16), b"")], daemon=True).start()
while True:
    end = time.monotonic() + random.expovariate(5.0)
    while time.monotonic() < end:
        one.sendall(bytes(1 << 16))
    time.sleep(random.expovariate(5.0))
"""
Test = tuple[bool, float, float, bool, float]  # the fields of Measured


class RecordingAgents(Agents):
    """Probes whose tests are kept, by the number of members."""

    record: dict[int, list[Test]]

    def measure(self, rows: list[list[int]]) -> Measured:
        found = super().measure(rows)
        columns = [getattr(found, column.name).tolist() for column in fields(Measured)]
        for row, values in zip(rows, zip(*columns, strict=True), strict=True):
            self.record.setdefault(len(row), []).append(values)
        return found

    def changed_counters(self) -> dict[str, str]:
        return {}  # of the machine's network cards, which others use


class BlindAgents(RecordingAgents):
    """Real tests, without the probes' own word that a host was at other work."""

    def measure(self, rows: list[list[int]]) -> Measured:
        found = super().measure(rows)
        return replace(found, busy=np.zeros(len(rows), dtype=np.bool_), most_bandwidth=found.bandwidth)


class ReplayedAgents(RecordingAgents):
    """Tests drawn from a record: neighbours in time stay together, as a busy moment hits all tests of a round."""

    def __init__(self, hosts: list[str], record: dict[int, list[Test]], seed: int) -> None:
        self.config, self.busy, self.errors, self._agents = ProbeConfig(), Counter(), {}, hosts  # type: ignore[assignment]
        self._past, self._random = record, np.random.default_rng(seed)

    def measure(self, rows: list[list[int]]) -> Measured:
        drawn = []
        starts = {size: int(self._random.integers(len(past))) for size, past in self._past.items()}
        for row in rows:
            size = min(self._past, key=lambda known: abs(known - len(row)))
            drawn.append(self._past[size][starts[size] % len(self._past[size])])
            starts[size] += 1
        columns = (np.array(column) for column in zip(*drawn, strict=True))
        return Measured(**dict(zip((column.name for column in fields(Measured)), columns, strict=True)))


@dataclass(slots=True)
class Count:
    """What the runs came to."""

    runs: int = 0
    condemned: int = 0
    suspected: int = 0
    links: int = 0
    tests: int = 0
    accused: list[str] = field(default_factory=list)

    def run(self, agents: RecordingAgents, hosts: list[str], dead: frozenset[str] = frozenset()) -> None:
        """One whole examination; the dead hosts are rightly condemned."""
        agents.config = replace(agents.config, grader=Grader())
        agents.busy.clear()
        report = examine_with(agents, hosts)
        self.runs += 1
        self.tests += report.num_tests
        condemned = not dead >= {*report.condemned}
        self.condemned += condemned
        self.suspected += bool(report.suspected)
        self.links += bool(report.bad_links)
        if condemned:
            self.accused.append(str(report.evidence))

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.tests / max(1, self.runs):.0f} tests each: a host condemned in {self.condemned}, "
            f"suspected in {self.suspected}, a link in {self.links}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--load", type=int, default=8, help="processes that compute all the time")
    parser.add_argument("--kilobytes", type=int, default=64)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for the real runs")
    parser.add_argument("--blind", action="store_true", help="real runs as if no host were known to be busy, too")
    parser.add_argument("--dead", type=int, default=0, help="more hosts, which do not answer; without replay")
    parser.add_argument("--bursts", action="store_true", help="neighbours that move bytes and rest in turn")
    options = parser.parse_args()
    hosts = [f"host-{number}" for number in range(1, options.hosts + options.dead + 1)]
    dead = frozenset(hosts[options.hosts :])
    config = ProbeConfig(num_bytes=options.kilobytes << 10, addresses=dict.fromkeys(hosts, "127.0.0.1"))
    around = f"{options.hosts} healthy hosts, {options.dead} dead, {options.load} busy processes beside them"
    print(f"{describe_machine()}; {around}", flush=True)
    program = _BURSTS if options.bursts else _COMPUTE
    neighbours = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(options.load)]
    real, start = Count(), time.monotonic()
    RecordingAgents.record = {}
    try:
        with (BlindAgents if options.blind else RecordingAgents)(
            hosts, lambda host: ("false",) * (host in dead), config
        ) as agents:
            while real.runs < options.runs and time.monotonic() < start + options.limit:
                real.run(agents, hosts, dead)
    finally:
        for process in neighbours:
            process.kill()
            process.wait()
    print(f"real     {real}; load {os.getloadavg()[0]:.0f}, {time.monotonic() - start:.0f} s", flush=True)
    tests = [value for past in RecordingAgents.record.values() for value in past]
    speeds = np.array([bandwidth for alive, bandwidth, *_ in tests if alive])
    spread = np.percentile(speeds, [1, 50, 99]) / 1e6
    busy = np.mean([busy for *_, busy, _ in tests])
    print(f"         {len(tests)} tests, {busy:.0%} with a host at other work; ", end="")
    print(f"MB/s: 1 % below {spread[0]:.0f}, half below {spread[1]:.0f}, 99 % below {spread[2]:.0f}")
    if dead:
        print("\n".join(real.accused))
        return
    again = Count()
    for seed in range(options.runs):
        again.run(ReplayedAgents(hosts, RecordingAgents.record, seed), hosts)
    print(f"replayed {again}")
    # Without the probes' own word that a host was at other work, the decision has only the repeats.
    blind = {
        size: [(*values[:3], False, values[1]) for values in past] for size, past in RecordingAgents.record.items()
    }
    unaware = Count()
    for seed in range(options.runs):
        unaware.run(ReplayedAgents(hosts, blind, seed), hosts)
    print(f"replayed {unaware} (as if no host had been known to be busy)")
    print("\n".join((*real.accused, *again.accused)))


if __name__ == "__main__":
    main()
