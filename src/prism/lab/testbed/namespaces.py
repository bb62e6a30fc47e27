"""Hosts made of network namespaces on one bridge, whose cables can be cut and slowed. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType


def why_no_namespaces() -> str | None:
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces and mounts"
    missing = [tool for tool in ("ip", "tc", "mount") if shutil.which(tool) is None]
    return f"needs the tools {', '.join(missing)}" if missing else None


class Namespaces:
    """Hosts h1..hn; removed again at the end."""

    def __init__(self, count: int) -> None:
        self._tag = f"{os.getpid() % 100_000}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() % 250}"
        self.hosts = tuple(f"h{number}" for number in range(1, count + 1))

    def __enter__(self) -> Namespaces:
        try:
            _ip(f"link add {self.bridge} type bridge")
            _ip(f"link set {self.bridge} up")
            for number, host in enumerate(self.hosts, start=1):
                self._add(number, host)
        except subprocess.CalledProcessError:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    @property
    def prefix(self) -> list[str]:
        """The command prefix that runs a command on {host}."""
        return ["ip", "netns", "exec", f"prism{self._tag}-{{host}}"]

    @property
    def addresses(self) -> dict[str, str]:
        """Where each host is reached."""
        return {host: f"{self._net}.{number}" for number, host in enumerate(self.hosts, start=1)}

    def cut(self, host: str) -> None:
        """Pull the cable."""
        _ip(f"link set {self._cable(host)} down")

    def slow(self, host: str, kbit_per_s: int) -> None:
        """Limit the rate of the cable in both directions; another call changes the rate."""
        # A bucket holds 5 ms of traffic, too little to hide the rate: enough for one timer tick, and for a packet.
        burst = max(10_000, kbit_per_s * 5 // 8)
        shape = f"root tbf rate {kbit_per_s}kbit burst {burst}b latency 400ms"
        _run(f"tc qdisc replace dev {self._cable(host)} {shape}")
        _run(f"ip netns exec {self._name(host)} tc qdisc replace dev eth0 {shape}")

    @property
    def bridge(self) -> str:
        """The interface that sees everything."""
        return f"pzb{self._tag}"

    def _name(self, host: str) -> str:
        return f"prism{self._tag}-{host}"

    def _cable(self, host: str) -> str:
        return f"pz{self._tag}{host}"

    def _add(self, number: int, host: str) -> None:
        name, cable = self._name(host), self._cable(host)
        _ip(f"netns add {name}")
        _ip(f"link add {cable} type veth peer name eth0 netns {name}")
        # Packets of the size that a cable between machines carries, without segmentation offload.
        packets = "mtu 9000 gso_max_segs 1"
        _ip(f"link set {cable} {packets} master {self.bridge} up")
        for command in (f"addr add {self._net}.{number}/24 dev eth0", f"link set eth0 {packets} up", "link set lo up"):
            _run(f"ip -n {name} {command}")

    def _remove(self) -> None:
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", self._name(host)], capture_output=True)
            subprocess.run(["ip", "link", "del", self._cable(host)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)


def _ip(arguments: str) -> None:
    _run(f"ip {arguments}")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
