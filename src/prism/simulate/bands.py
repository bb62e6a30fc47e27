"""How far a modelled time may be from the truth, by what the network is.

A band of b per cent says: 95 of 100 measured times lie between t / (1 + b / 100) and t x (1 + b / 100). The bands are
the 95 % quantiles of the points that proving/benchmarks/data/systems.yaml marks `half: fit`, every system counted
alike; proving/benchmarks/simulate_coverage.py prints them and how the other half of the systems is covered. Owners
often publish a figure because it disappoints them, so a network that is known to be sound is closer to the model than
these say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prism.simulate.cluster import Cluster
from prism.simulate.placement import GroupPlacement

LARGE_BYTES: Final = 64 * 2**20
CALIBRATE_ABOVE_PCT: Final = 100.0  # beyond a factor of two a modelled time is a guess, so the user is asked to measure
_MESSAGES: Final = ("send", "recv", "all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Band:
    """Per cent from LARGE_BYTES up, and below."""

    large: float
    small: float


_ONE_HOST: Final = Band(15.0, 30.0)
_RDMA: Final = Band(140.0, 185.0)
# Transports with few published systems: at least the band of RDMA, and below 64 MiB what sockets show.
_FEW_SYSTEMS: Final = Band(140.0, 375.0)
_BANDS: Final = {
    "one host": _ONE_HOST,
    "one host, AMD": Band(15.0, 45.0),
    "one host, messages": Band(205.0, 205.0),
    "rdma": _RDMA,
    "rdma, messages": Band(305.0, 305.0),
    "gloo": Band(60.0, 60.0),  # the CPU and the kernel decide
}
# What remains unknown between hosts once some kind of transfer was measured between hosts of this network: the error
# of the model on systems whose owners did not complain, from LARGE_BYTES up and below.
MEASURED_NETWORK: Final = Band(40.0, 60.0)


def class_of(kind: str, placement: GroupPlacement, cluster: Cluster) -> str:
    """Which kind of system an estimate belongs to; bands are held per class."""
    if cluster.backend == "gloo":
        return "gloo"
    where: str = "one host" if placement.same_host else cluster.nics.transport
    if where == "rdma" and not cluster.nics.gpu_direct:
        where = "rdma, no GPUDirect"
    if cluster.arch == "cdna":
        where += ", AMD"
    return f"{where}, messages" if kind in _MESSAGES else where


def band_pct(kind: str, sizes: NDArray[np.float64], placement: GroupPlacement, cluster: Cluster) -> NDArray[np.float64]:
    """The band of a modelled time for every size."""
    if placement.num_ranks == 1:
        return np.zeros(len(sizes))
    name = class_of(kind, placement, cluster)
    known = _BANDS.get(name) or _BANDS.get(name.replace(", AMD", "")) if placement.same_host else _BANDS.get(name)
    return by_size(known or (_BANDS["rdma, messages"] if "messages" in name else _FEW_SYSTEMS), sizes)


def by_size(band: Band, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The per cent that apply to each size."""
    return np.where(sizes >= LARGE_BYTES, band.large, band.small)
