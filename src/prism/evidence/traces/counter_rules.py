"""Which counters accuse a device, and how sure they are alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a metric accuses a device."""

    metric: str
    how: Literal["grows", "set", "bits", "outlier", "low"]
    words: str
    confidence: float
    bits: int = 0
    causes: tuple[Literal["stop", "slow"], ...] = ("stop", "slow")  # what such a device does to a job
    least: float = 0.0  # growth that an outlier needs at least, beside ten times its peers'


_STOP: tuple[Literal["stop", "slow"], ...] = ("stop",)
_SLOW: tuple[Literal["stop", "slow"], ...] = ("slow",)
# Bits 3, 5, 6 and 7 of the throttle reasons: hardware slowdown, software and hardware thermal, power brake (nvml.h).
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
RULES = (
    Rule(
        metric="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        how="grows",
        words="uncorrectable memory errors",
        confidence=0.85,
        causes=_STOP,
    ),
    Rule(
        metric="DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        how="grows",
        words="uncorrectable memory errors",
        confidence=0.85,
        causes=_STOP,
    ),
    Rule(
        metric="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        how="grows",
        words="memory rows remapped",
        confidence=0.7,
        causes=_STOP,
    ),
    Rule(
        metric="DCGM_FI_DEV_ROW_REMAP_FAILURE",
        how="set",
        words="a memory row cannot be remapped",
        confidence=0.8,
        causes=_STOP,
    ),
    Rule(
        metric="DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        how="bits",
        words="clocks held down",
        confidence=0.75,
        bits=_SLOWED,
        causes=_SLOW,
    ),
    Rule(
        metric="DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        how="bits",
        words="clocks held down",
        confidence=0.75,
        bits=_SLOWED,
        causes=_SLOW,
    ),
    Rule(metric="DCGM_FI_DEV_SM_CLOCK", how="low", words="its clock is below its peers'", confidence=0.7, causes=_SLOW),
    Rule(
        metric="DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        how="outlier",
        words="NVLink errors",
        confidence=0.7,
        least=10,
    ),
    Rule(
        metric="DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        how="outlier",
        words="NVLink replays",
        confidence=0.7,
        least=3,
    ),
    Rule(
        metric="DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", how="grows", words="NVLink recoveries", confidence=0.8
    ),
    Rule(metric="DCGM_FI_DEV_PCIE_REPLAY_COUNTER", how="outlier", words="PCIe replays", confidence=0.6, least=10),
    Rule(metric="node_network_receive_errs_total", how="outlier", words="NIC receive errors", confidence=0.7, least=10),
    Rule(metric="node_network_transmit_errs_total", how="outlier", words="NIC send errors", confidence=0.7, least=10),
    Rule(
        metric="node_infiniband_port_receive_errors_total",
        how="outlier",
        words="NIC receive errors",
        confidence=0.7,
        least=10,
    ),
    Rule(metric="node_infiniband_link_downed_total", how="grows", words="a NIC's link went down", confidence=0.85),
    Rule(
        metric="node_infiniband_link_error_recovery_total", how="grows", words="a NIC's link recovered", confidence=0.75
    ),
    Rule(
        metric="node_infiniband_symbol_error_total", how="outlier", words="NIC symbol errors", confidence=0.6, least=10
    ),
    Rule(
        metric="node_ethtool_received_pause",
        how="outlier",
        words="pause frames from the switch",
        confidence=0.5,
        least=1000,
    ),
)
