"""What a cluster is made of: GPUs, NVLink, NICs, leaf and spine switches, and where a GPU sits among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from prism.errors import BadConfigError
from prism.records.settings import Checked, nearest, number, one_of

Arch = Literal["volta", "ampere", "hopper", "blackwell", "cdna"]
Cpu = Literal["intel", "amd", "arm"]
Backend = Literal["nccl", "gloo"]
# How NCCL reaches the network: verbs on InfiniBand or RoCE; libfabric on AWS EFA; Google's GPUDirect-TCPX and TCPXO;
# verbs on Omni-Path, where the CPU moves the bytes; TCP sockets.
Transport = Literal["rdma", "efa", "tcpx", "omni-path", "sockets"]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat"]

_NCCL_VERSION = re.compile(r"2\.\d{1,3}(\.\d{1,3})?")

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink(Checked):
    """The links of one GPU inside its host, each way."""

    lanes: int = number(18, 1, 256)
    gb_per_s_per_lane: float = number(20.6, 0.1, 1000)
    sharp: bool = True  # the switch can reduce (NVLS)

    @property
    def gb_per_s(self) -> float:
        """One GPU to its switch, one way."""
        return self.lanes * self.gb_per_s_per_lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Nics(Checked):
    """The network cards of one host; card k is rail k."""

    count: int = number(8, 1, 128)  # those that NCCL uses, which may be fewer than the host has
    gbps: float = number(400.0, 0.1, 6400)
    latency_us: float = number(0.0, 0, 10_000)  # per hop, on top of what the cost model already holds
    transport: Transport = field(default="rdma", metadata=one_of(Transport))
    gpu_direct: bool = True  # NICs read and write GPU memory; without it every message goes through host memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Checked):
    """Leaf and spine switches."""

    hosts_per_leaf: int = number(32, 1, 100_000)
    num_spines: int = number(16, 1, 10_000)
    oversubscription: float = number(1.0, 1, 1000)  # leaf down capacity over up capacity
    rail_optimized: bool = True  # each rail of a group of hosts has its own leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcp(Checked):
    """What a TCP stream costs where the CPU moves the bytes."""

    latency_us: float = number(45.0, 0.1, 1_000_000)  # one message, application to application
    stream_gbps: float = number(20.0, 0.001, 6400)  # what one stream reaches on an idle fast network
    loopback_gbps: float = number(26.0, 0.001, 6400)  # two ranks of one host


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Checked):
    """One directed link whose rate differs from the rest of its tier."""

    src: str
    dst: str
    gbps: float = field(metadata={"low": 0.001, "high": 1_000_000})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Checked):
    """A cluster of equal hosts. Ranks are placed on it as (host, local GPU)."""

    name: str = "cluster"
    gpu: str = "H100"
    arch: Arch = field(default="hopper", metadata={"choices": get_args(Arch)})
    cpu: Cpu = field(default="intel", metadata={"choices": get_args(Cpu)})
    backend: Backend = field(default="nccl", metadata={"choices": get_args(Backend)})
    nccl: str = "2.30"  # its version decides which algorithms there are and how they are scored
    nccl_algo: tuple[Algorithm, ...] = ()  # what NCCL_ALGO allows; empty where it is not set
    num_hosts: int = number(1024, 1, 1_000_000)
    elastic: bool = False  # a job that needs more hosts gets them; presets are elastic, a stated number is a limit
    gpus_per_host: int = number(8, 1, 256)
    pcie_gb_per_s: float = number(48.0, 0.1, 1000)
    nvlink: Nvlink | None = None
    nics: Nics = field(default_factory=Nics)
    fabric: Fabric = field(default_factory=Fabric)
    tcp: Tcp = field(default_factory=Tcp)
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not _NCCL_VERSION.fullmatch(self.nccl):
            raise BadConfigError(f'\'nccl\' is {self.nccl!r}, expected a version such as "2.27" or "2.7.8"')
        if any(name.startswith("collnet") for name in self.nccl_algo):
            raise BadConfigError(
                "'nccl_algo' has CollNet, the reduction inside InfiniBand's switches (SHARP), which is not modelled; "
                "leave it out and pass a calibration measured with it"
            )
        unknown = [name for name in self.nccl_algo if name not in get_args(Algorithm)]
        if unknown:
            hint = nearest(unknown[0], get_args(Algorithm))
            raise BadConfigError(
                f"'nccl_algo' has {unknown[0]!r}{hint}; expected some of {', '.join(get_args(Algorithm))}"
            )
        for i, link in enumerate(self.links):
            for end in (link.src, link.dst):
                if not self.has_node(end):
                    raise BadConfigError(
                        f"'links[{i}]' ends at '{end}', which this cluster does not have; "
                        f"it has {', '.join(self._tiers())}"
                    )
            if not self.has_link(link.src, link.dst):
                raise BadConfigError(
                    f"'links[{i}]' joins '{link.src}' to '{link.dst}', which are not neighbours; "
                    "links go host-H/nic-K to its leaf, or leaf-L to spine-S"
                )

    @property
    def nccl_minor(self) -> int:
        """The N of NCCL 2.N."""
        return int(self.nccl.split(".")[1])

    def holding(self, num_hosts: int) -> Cluster:
        """This cluster with at least so many hosts, where it is elastic."""
        return replace(self, num_hosts=num_hosts) if self.elastic and num_hosts > self.num_hosts else self

    @property
    def num_gpus(self) -> int:
        """GPUs in the whole cluster."""
        return self.num_hosts * self.gpus_per_host

    @property
    def leaves_per_pod(self) -> int:
        """Leaf switches that one group of hosts is connected to."""
        return self.nics.count if self.fabric.rail_optimized else 1

    @property
    def num_leaves(self) -> int:
        """Leaf switches in the whole cluster."""
        return -(-self.num_hosts // self.fabric.hosts_per_leaf) * self.leaves_per_pod

    def rail_of(self, local: IntArray | int) -> Any:
        """Which NIC of its host a GPU uses: neighbours share one where there are fewer NICs than GPUs."""
        return local * self.nics.count // self.gpus_per_host

    def leaf_of(self, host: IntArray | int, rail: IntArray | int) -> Any:
        """The leaf switch that a host's NIC is connected to."""
        pod = host // self.fabric.hosts_per_leaf
        return pod * self.leaves_per_pod + (rail if self.fabric.rail_optimized else 0)

    def has_node(self, name: str) -> bool:
        """Whether `name` is a NIC, leaf or spine here."""
        counts = {"leaf": self.num_leaves, "spine": self.fabric.num_spines}
        nic = _nic_of(name)
        if nic is not None:
            return nic[0] < self.num_hosts and nic[1] < self.nics.count
        tier, _, index = name.partition("-")
        return index.isdecimal() and tier in counts and int(index) < counts[tier]

    def has_link(self, src: str, dst: str) -> bool:
        """Whether two existing nodes are neighbours."""
        nic = _nic_of(src) or _nic_of(dst)
        if nic is not None:
            other = dst if _nic_of(src) else src
            return other == f"leaf-{self.leaf_of(*nic)}"
        return {src.partition("-")[0], dst.partition("-")[0]} == {"leaf", "spine"}

    def _tiers(self) -> Iterator[str]:
        yield f"host-0/nic-0 to host-{self.num_hosts - 1}/nic-{self.nics.count - 1}"
        yield f"leaf-0 to leaf-{self.num_leaves - 1}"
        yield f"spine-0 to spine-{self.fabric.num_spines - 1}"


def _nic_of(name: str) -> tuple[int, int] | None:
    """(host, NIC) of a name like host-3/nic-2."""
    host, slash, nic = name.partition("/")
    if not slash or not host.startswith("host-") or not nic.startswith("nic-"):
        return None
    parts = host.removeprefix("host-"), nic.removeprefix("nic-")
    return (int(parts[0]), int(parts[1])) if all(p.isdecimal() for p in parts) else None
