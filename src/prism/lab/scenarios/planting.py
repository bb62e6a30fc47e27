"""Plant faults: turn the faults of a scenario into disturbances."""

from __future__ import annotations

from prism.errors import BadConfigError
from prism.lab.scenarios.compute_faults import (
    hang,
    lose_node,
    pause_often,
    slow_host,
    slow_rank,
    stall_checkpoints,
    unbalance_load,
    unbalance_stage,
)
from prism.lab.scenarios.fault import Fault
from prism.lab.scenarios.network_faults import collide, contend, slow_nic, slow_switch
from prism.lab.scenarios.planted import Planted, Site


def plant(fault: Fault, site: Site) -> Planted:
    """Turn one fault of a scenario into its disturbances."""
    start = round(fault.start_s * 1e9)
    end = site.horizon_ns if fault.end_s is None else min(site.horizon_ns, round(fault.end_s * 1e9))
    planter = {
        "slow_gpu": slow_rank,
        "slow_host": slow_host,
        "thermal": slow_host,
        "slow_link": slow_nic,
        "flapping_link": slow_nic,
        "slow_switch": slow_switch,
        "ecmp_collision": collide,
        "contention": contend,
        "load_imbalance": unbalance_load,
        "stage_imbalance": unbalance_stage,
        "hang": hang,
        "node_loss": lose_node,
        "gc_pauses": pause_often,
        "checkpoint_stall": stall_checkpoints,
    }[fault.kind]
    planted = planter(fault, site, start, end)
    if not planted.disturbances and planted.blocker is None:
        raise BadConfigError(f"the {fault.kind} fault at {fault.start_s:g} s touches no job; place it where one runs")
    return planted
