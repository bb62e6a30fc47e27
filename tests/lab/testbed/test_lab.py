"""Real hosts on one machine: cables, CPU shares, and the lab end to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from prism.collect import read_packets
from prism.lab.real_jobs import check_lab
from prism.lab.testbed.cpu_share import limit_cpu, why_no_cpu_limits
from prism.lab.testbed.lab import LabConfig, run_lab, why_no_lab
from prism.lab.testbed.namespaces import Namespaces, why_no_namespaces

needs_namespaces = pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))
needs_cpu_limits = pytest.mark.skipif(why_no_cpu_limits() is not None, reason=str(why_no_cpu_limits()))
needs_lab = pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))

SEND = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7000)); start = time.monotonic()
s.sendall(bytes(int(sys.argv[2]))); s.shutdown(socket.SHUT_WR); s.recv(1); print(time.monotonic() - start)
"""
RECEIVE = """
import socket
server = socket.create_server(("0.0.0.0", 7000)); print("ready", flush=True); peer, _ = server.accept()
while peer.recv(1 << 16): pass
peer.sendall(b"x")
"""


def send_seconds(network: Namespaces, size: int) -> float:
    """How long the first host takes to send so much to the second."""

    def on(host: str) -> list[str]:
        return [word.format(host=host) for word in network.prefix]

    with subprocess.Popen([*on("h2"), sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        told = subprocess.check_output([*on("h1"), sys.executable, "-c", SEND, network.addresses["h2"], str(size)])
    return float(told)


@pytest.mark.netns
@needs_namespaces
def test_a_slowed_cable_carries_what_it_was_told_to() -> None:
    with Namespaces(2) as network:
        network.slow("h1", 8_000)
        network.slow("h2", 80_000)
        took = send_seconds(network, 1_000_000)
    assert took > 0.9, "1 MB at 1 MB/s"


@pytest.mark.netns
@needs_namespaces
def test_namespaces_leave_nothing_behind() -> None:
    with Namespaces(2) as network:
        bridge = network.bridge
    assert bridge not in subprocess.check_output(["ip", "link"], text=True)


@needs_cpu_limits
def test_a_limited_process_gets_its_share_of_a_core_and_no_more() -> None:
    burn = (
        "import time, os\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    )
    process = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE, text=True)
    with limit_cpu([process.pid], 0.2):
        output, _ = process.communicate(timeout=600)
    assert float(output) < 0.6 * 1.5, "a fifth of a core and the time before the limit took hold"


@pytest.mark.netns
@needs_lab
def test_every_step_that_the_lab_program_made_is_on_the_wire(tmp_path: Path) -> None:
    run = run_lab(LabConfig(hosts=4, steps=10), tmp_path)
    assert [phase.name for phase in run.phases] == ["healthy", "slow host", "slow link"]
    flows = read_packets(run.capture).flows
    h1, h2 = run.addresses["h1"], run.addresses["h2"]
    first, last = run.steps["job-1"][5][0], run.steps["job-1"][-2][1]
    inside = flows.filter(pl.col("src") == h1, pl.col("dst") == h2, pl.col("start_ns").is_between(first, last))
    # dp 2 of a block of two 256 x 256 matrices with their biases: 2 x (256 x 256 + 256) x 4 bytes a step.
    gradients = run.tenants[0].blocks * 2 * (256 * 256 + 256) * 4
    steps = len(run.steps["job-1"]) - 6
    assert inside["bytes"].sum() == pytest.approx(gradients * steps, rel=0.05)


@pytest.mark.slow
@pytest.mark.netns
@needs_lab
def test_jobs_layout_steps_and_culprits_of_the_lab_come_out_right(tmp_path: Path) -> None:
    checks = check_lab(LabConfig(hosts=8), tmp_path, lambda _: None)
    assert not [check for check in checks if not check.is_right]


def test_the_lab_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert why_no_lab() == "needs tcpdump"
