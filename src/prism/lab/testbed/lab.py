"""Real training jobs on namespace hosts, with injected faults, while their packets are captured."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prism.errors import PrismError
from prism.lab.testbed.cpu_share import limit_cpu, run_first, why_no_cpu_limits
from prism.lab.testbed.namespaces import Namespaces, why_no_namespaces

PROGRAM = Path(__file__).with_name("training_program.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """The size of the lab and the strength of its faults."""

    hosts: int = 8  # 4: one job, dp 2 x pp 2; 8: a sharded one as well
    link_kbit: int = 1_000_000  # every cable
    slow_link_kbit: int = 60_000
    slow_host_share: float = 0.12  # of one core
    steps: int = 30  # healthy steps before each fault, and steps during it
    patience_s: float = 420.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A job and where it runs."""

    name: str
    layout: str  # pipeline or sharded
    blocks: int  # of a stage, or of the whole sharded model
    passes: int  # over a block's matrices: the work of the hosts' cores
    hosts: tuple[str, ...]
    dp: int
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run that is diagnosed separately."""

    name: str  # healthy, slow host or slow link
    culprit: str | None  # the host with the fault
    start_ns: int
    harmed_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """The results of a run: a capture, and the truth."""

    capture: Path
    addresses: dict[str, str]  # host -> address
    tenants: tuple[Tenant, ...]
    phases: tuple[Phase, ...]
    steps: dict[str, list[tuple[int, int]]]  # tenant -> start and end of every step, first rank in to last rank out


def why_no_lab() -> str | None:
    """Why the lab cannot run here, or None."""
    if shutil.which("tcpdump") is None:
        return "needs tcpdump"
    return why_no_namespaces() or why_no_cpu_limits()


def run_lab(
    config: LabConfig, folder: Path, exporter_port: int | None = None, tell: Callable[[str], None] = lambda _: None
) -> LabRun:
    """Run the jobs, slow a host and then a cable, and capture all packets; softflowd exports to `exporter_port`."""
    if problem := why_no_lab():
        raise PrismError(f"prism lab: {problem}")
    folder.mkdir(parents=True, exist_ok=True)
    tenants = _tenants(config)
    with ExitStack() as stack:
        network = stack.enter_context(Namespaces(config.hosts))
        for host in network.hosts:
            network.slow(host, config.link_kbit)
        capture = folder / "capture.pcap"
        stack.enter_context(capture_packets(network.bridge, capture))
        if exporter_port is not None:
            stack.enter_context(export_flows(network.bridge, exporter_port, folder))
        tell("starting the jobs")
        ranks = {t.name: stack.enter_context(_running(t, config, network, folder)) for t in tenants}
        watch = _Progress(folder / "job-1-0.jsonl", [p for group in ranks.values() for p in group], config.patience_s)
        phases = _harm(config, network, tenants[0], ranks, watch, tell)
        tell("stopping the jobs")
    steps = {t.name: _read_steps(folder, t) for t in tenants}
    return LabRun(capture=capture, addresses=network.addresses, tenants=tenants, phases=phases, steps=steps)


def _tenants(config: LabConfig) -> tuple[Tenant, ...]:
    hosts = tuple(f"h{number}" for number in range(1, config.hosts + 1))
    first = Tenant(name="job-1", layout="pipeline", blocks=1, passes=3, hosts=hosts[:4], dp=2, pp=2)
    rest = hosts[4:]
    return (
        (first, Tenant(name="job-2", layout="sharded", blocks=3, passes=1, hosts=rest, dp=len(rest), pp=1))
        if rest
        else (first,)
    )


def _harm(config: LabConfig, network: Namespaces, victim: Tenant, ranks: dict[str, list[subprocess.Popen[bytes]]],
          watch: _Progress, tell: Callable[[str], None]) -> tuple[Phase, ...]:  # fmt: skip
    """Alternate healthy and faulty phases."""
    slow_host, slow_cable = victim.hosts[2], victim.hosts[1]
    watch.wait_for(5)  # the first steps set up connections
    tell("healthy")
    phases = [_phase("healthy", None, start := time.time_ns(), start, watch.wait_more(config.steps))]
    start = time.time_ns()
    harmed = watch.wait_more(config.steps)
    tell(f"{slow_host} gets {config.slow_host_share:.0%} of a core")
    with limit_cpu([ranks[victim.name][victim.hosts.index(slow_host)].pid], config.slow_host_share):
        phases.append(_phase("slow host", slow_host, start, harmed, watch.wait_more(config.steps)))
    start = watch.wait_more(3)
    harmed = watch.wait_more(config.steps)
    tell(f"the cable of {slow_cable} carries {config.slow_link_kbit / 1000:.0f} Mbit/s")
    network.slow(slow_cable, config.slow_link_kbit)
    phases.append(_phase("slow link", slow_cable, start, harmed, watch.wait_more(config.steps)))
    return tuple(phases)


def _phase(name: str, culprit: str | None, start_ns: int, harmed_ns: int, end_ns: int) -> Phase:
    return Phase(name=name, culprit=culprit, start_ns=start_ns, harmed_ns=harmed_ns, end_ns=end_ns)


class _Progress:
    """Waits for steps of a job, and notices if it dies."""

    def __init__(self, lines: Path, processes: list[subprocess.Popen[bytes]], patience_s: float) -> None:
        self._lines, self._processes, self._deadline = lines, processes, time.monotonic() + patience_s

    def wait_more(self, steps: int) -> int:
        """Wait for this many further steps; returns the time."""
        return self.wait_for(self._done() + steps)

    def wait_for(self, steps: int) -> int:
        """Wait until this many steps are done; returns the time."""
        while self._done() < steps:
            if dead := [p.returncode for p in self._processes if p.poll() is not None]:
                raise PrismError(f"prism lab: a rank ended with exit code {dead[0]}; see *.log beside the capture")
            if time.monotonic() > self._deadline:
                raise PrismError("prism lab: the jobs are too slow on this machine; try --num-hosts 4")
            time.sleep(0.02)
        return time.time_ns()

    def _done(self) -> int:
        return self._lines.read_bytes().count(b"\n") if self._lines.exists() else 0


@contextmanager
def _running(
    tenant: Tenant, config: LabConfig, network: Namespaces, folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks of a job, one per host."""
    many = 1_000_000  # ended from outside
    ranks = []
    try:
        for rank, host in enumerate(tenant.hosts):
            words = [word.format(host=host) for word in network.prefix]
            words += [sys.executable, str(PROGRAM), "--layout", tenant.layout, "--pp", str(tenant.pp),
                      "--blocks", str(tenant.blocks), "--passes", str(tenant.passes),
                      "--steps", str(many), "--truth", str(folder / f"{tenant.name}-{rank}.jsonl")]  # fmt: skip
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(tenant.hosts)),
                "MASTER_PORT": "29400",
                "MASTER_ADDR": network.addresses[tenant.hosts[0]],
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            (folder / f"{tenant.name}-{rank}.jsonl").unlink(missing_ok=True)
            with (folder / f"{tenant.name}-{rank}.log").open("wb") as log:
                ranks.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True))
            run_first(ranks[-1].pid)
        yield ranks
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


@contextmanager
def capture_packets(interface: str, capture: Path) -> Iterator[None]:
    """tcpdump on the bridge: headers only."""
    command = ["tcpdump", "-i", interface, "-s", "96", "-w", str(capture), "-U", "-B", "32768", "tcp"]
    with _helper(command, capture.with_suffix(".log")):
        deadline = time.monotonic() + 10
        while not (capture.exists() and capture.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield
        time.sleep(0.3)  # for packets that the kernel still buffers


@contextmanager
def export_flows(interface: str, port: int, folder: Path) -> Iterator[None]:
    """softflowd, sending IPFIX records of what the bridge carries."""
    if shutil.which("softflowd") is None:
        raise PrismError("prism lab: needs softflowd to export IPFIX")
    command = ["softflowd", "-d", "-i", interface, "-n", f"127.0.0.1:{port}", "-v", "10", "-A", "milli",
               "-t", "maxlife=2", "-t", "expint=1", "-p", str(folder / "softflowd.pid"),
               "-c", str(folder / "softflowd.ctl")]  # fmt: skip
    with _helper(command, folder / "softflowd.log"):
        yield


@contextmanager
def _helper(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_steps(folder: Path, tenant: Tenant) -> list[tuple[int, int]]:
    """Steps that every rank finished, from the first rank's start to the last rank's end."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for rank in range(len(tenant.hosts)):
        for line in (folder / f"{tenant.name}-{rank}.jsonl").read_text().splitlines():
            if line.endswith("}"):  # the last may be cut
                record = json.loads(line)
                spans.setdefault(record["step"], []).append((record["start_ns"], record["end_ns"]))
    whole = [step for step, ranks in sorted(spans.items()) if len(ranks) == len(tenant.hosts)]
    return [(min(s for s, _ in spans[step]), max(e for _, e in spans[step])) for step in whole]
