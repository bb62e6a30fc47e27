"""The constants of NCCL's cost model.

Source: NVIDIA/nccl, src/graph/tuning.cc (tuner constants, per-protocol efficiencies, tree correction),
src/graph/topo.h (link speeds) and src/graph/search.cc (the bandwidths that its search tries), as of version 2.30.
Latencies in microseconds, bandwidths in GB/s. Protocol order: LL, LL128, Simple.
Rows of three: one node, two nodes, more.
"""

from __future__ import annotations

from typing import Final

PROTOCOLS: Final = ("LL", "LL128", "Simple")
LL, LL128, SIMPLE = 0, 1, 2

Row = tuple[float, float, float]

BASE_LATENCY: Final[dict[str, Row]] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "nvls": (0.0, 0.0, 0.0),
    "nvls_tree": (0.0, 0.0, 0.0),
    "pat": (8.0, 8.0, 8.0),
}

HOP_LATENCY: Final[dict[str, dict[str, Row]]] = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "nvls": (0.0, 0.0, 25.0),
        "nvls_tree": (0.0, 0.0, 25.0),
        "pat": (0.0, 0.0, 4.0),
    },
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "pat": (0.0, 0.0, 4.0)},
    "network": {
        "tree": (5.0, 8.5, 14.0),
        "ring": (2.7, 4.0, 14.0),
        "nvls": (0.0, 0.0, 18.0),
        "nvls_tree": (0.0, 0.0, 20.9),
        "pat": (0.0, 0.0, 14.0),
    },
}

# One node: by GPU. Several: by CPU, Intel (and others) then AMD, which are the Volta and Ampere rows of NCCL's table.
LL_MAX_ONE_NODE: Final = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0, "cdna": 87.7}
LL_MAX_NODES: Final[dict[str, Row]] = {
    "intel": (39.0, 39.0, 20.4),
    "arm": (39.0, 39.0, 20.4),
    "amd": (87.7, 22.5, 19.0),
}

RING_LL128_PER_CHANNEL: Final[dict[str, Row]] = {
    "volta": (20.0, 20.0, 20.0),
    "cdna": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40.0, 40.0, 40.0),
}
TREE_LL128_PER_CHANNEL: Final[dict[str, Row]] = {
    "volta": (20.0, 20.0, 20.0),
    "cdna": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
TREE_PER_CHANNEL: Final[dict[str, Row]] = {
    "volta": (26.5, 18.5, 10.0),
    "cdna": (24.0, 23.6, 17.8),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
NVLS_TREE_PER_CHANNEL: Final[dict[str, Row]] = {
    "volta": (26.5, 18.5, 10.0),
    "cdna": (24.0, 23.6, 17.8),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}
NVLS_EFFICIENCY: Final = {"hopper": 0.85, "blackwell": 0.74}
NVLS_CHANNELS: Final = {"hopper": (16, 16), "blackwell": (24, 32)}  # one node, several

# What posting one message to the network costs the CPU; three times that with Simple.
NETWORK_OVERHEAD: Final = {"intel": 1.0, "amd": 2.0, "arm": 1.0}
NETWORK_GB_PER_100_GBIT: Final = 12.0

# Powers of two from 64 B: trees reach less than their bandwidth at middle sizes.
TREE_CORRECTION: Final[tuple[tuple[float, ...], ...]] = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)

# The per-channel bandwidths that the topology search tries, best first.
_BEFORE_HOPPER = (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)
_BEFORE_HOPPER_NODES = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
SPEEDS_ONE_NODE: Final[dict[str, tuple[float, ...]]] = {
    "volta": _BEFORE_HOPPER,
    "cdna": (48, *_BEFORE_HOPPER),
    "ampere": _BEFORE_HOPPER,
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
SPEEDS_NODES: Final[dict[str, tuple[float, ...]]] = {
    "volta": _BEFORE_HOPPER_NODES,
    "ampere": _BEFORE_HOPPER_NODES,
    "cdna": _BEFORE_HOPPER_NODES,
    "hopper": (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    "blackwell": (96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
}

MAX_CHANNELS: Final = 64
LL_BYTES_PER_STEP: Final = 4096  # 512 threads of 8 bytes: what one channel moves at once with LL
P2P_LL_LIMIT_BYTES: Final = 16_384  # per channel; longer messages use Simple
P2P_PEERS_AT_ONCE: Final = 8  # peers whose sends and receives one launch serves together
NVLS_CHUNKS: Final = ((131_072, 64), (65_536, 8), (32_768, 2))  # halve the chunk below so many rounds of it
