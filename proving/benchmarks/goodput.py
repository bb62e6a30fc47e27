"""A year of real node faults on a 400-node job: what share of the time trains, by who restarts it.

    python proving/benchmarks/goodput.py [--trace infinitehbd/fault_trace.json]

The faults are InfiniteHBD's (584 on 400 GPU servers in 349 days; stepfun-ai/InfiniteHBD-Trace, SIGCOMM 2025). Every
fault on a node of the job ends it; the node is out until its fault ends in the trace; a spare takes its place, and
where none is left the job waits, under every policy alike. What differs:

  person       someone restarts it after the median (or mean) time to restart of the Acme paper for that class of
               fault; checkpoints every 30 minutes, as there
  plain        the scheduler restarts it at once on the same nodes; that helps only where the scheduler sees that the
               node is down, else it fails again until a person takes the node out (the paper's mean)
  Prism        seconds to a verdict, minutes of host tests where the log names no host, the measured interval
  ideal        no time to notice, decide, start or redo: only the wait for nodes is left

A silent fault (network, a GPU that hangs) is noticed after torch's collective timeout of 10 minutes, by Prism after
ten steps of silence. All save asynchronously at the same stall, and all need the same time to start up.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machine import describe_machine
from prism.recover.interval import choose_interval_s

DAY_S, MINUTE_S = 86_400.0, 60.0
NUM_NODES = 400
_DEAD_NODES = {"Power Supply", "Motherboard", "CPU", "System Crash", "Operating System", "RAID Card", "Riser Card"}
START_UP_S = 300.0  # scheduling, loading, first collective
STALL_S = 1.0  # of a save; proving/benchmarks/checkpoint.py measures it
WRITE_S = 60.0  # until a save is proven on storage
STEP_S = 15.0
SILENT_S = 600.0  # torch's default timeout of a collective
ACME_INTERVAL_S = 1_800.0
VERDICT_S = 10.0
HOST_TEST_S = 300.0  # 17 rounds, as proving/benchmarks/isolate.py counts them, at 15 s and a start

# Minutes to restart, median and mean, from the Acme paper (NSDI 2024), by the class that is nearest.
TTR_MINUTES = {
    "ecc": (1.8, 2.8),
    "cuda": (2.0, 78.3),
    "network": (7.4, 592.1),
    "node": (21.5, 102.8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one node."""

    node: str
    start_s: float
    end_s: float
    kind: str  # a key of TTR_MINUTES
    silent: bool  # nothing crashes, everything waits
    visible: bool  # the scheduler sees that the node is down
    named: bool  # the logs name the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Shares of the year."""

    goodput: float
    lost_work_h: float
    down_h: float
    waiting_h: float
    interruptions: int


def read_faults(path: Path) -> tuple[list[Fault], float]:
    """Faults in order, and the length of the trace."""
    events = json.loads(path.read_text())
    end_s = max(e["event_time"] for e in events) * DAY_S
    open_faults: dict[tuple[str, str], float] = {}
    faults = []
    for event in events:
        fault_type = event["fault_type"]
        key = (event["node_id"], fault_type["Desc"])
        if event["event_type"] == "fault_start":
            open_faults.setdefault(key, event["event_time"] * DAY_S)
        elif key in open_faults:
            faults.append(describe_fault(key[0], open_faults.pop(key), event["event_time"] * DAY_S, fault_type))
    faults += [
        describe_fault(node, start, end_s, {"Class": "Unknown Error", "Desc": desc, "Level": ""})
        for (node, desc), start in open_faults.items()
    ]
    return sorted(faults, key=lambda f: f.start_s), end_s


def describe_fault(node: str, start_s: float, end_s: float, fault_type: dict[str, str]) -> Fault:
    """What a fault looks like from the job."""
    group, text = fault_type["Class"], fault_type["Desc"]
    network = group in ("NIC", "Parameter Plane Cable", "Change")
    if network:
        kind = "network"
    elif "ECC" in text:
        kind = "ecc"
    else:
        kind = "cuda" if group == "GPU" else "node"
    dead = group in _DEAD_NODES
    return Fault(
        node=node,
        start_s=start_s,
        end_s=end_s,
        kind=kind,
        silent=network or text in ("nvidia-smi Timeout", "GPU Lost"),
        visible=dead,
        named=dead or group in ("GPU", "NIC"),
    )


Downtime = Callable[[Fault], float]


def by_person(column: int) -> Downtime:
    """The paper's time to restart: 0 the median, 1 the mean."""
    return lambda f: (SILENT_S if f.silent else 0.0) + TTR_MINUTES[f.kind][column] * MINUTE_S + START_UP_S


def by_plain_restart(fault: Fault) -> float:
    """At once where the scheduler has dropped the node; else again and again until a person has."""
    noticed = SILENT_S if fault.silent else 0.0
    return noticed + START_UP_S + (0.0 if fault.visible else TTR_MINUTES[fault.kind][1] * MINUTE_S)


def by_prism(fault: Fault) -> float:
    """Silence of ten steps, a verdict, a test of the hosts where none is named."""
    noticed = 10 * STEP_S if fault.silent else 0.0
    return noticed + VERDICT_S + (0.0 if fault.named else HOST_TEST_S) + START_UP_S


def simulate(
    faults: list[Fault], end_s: float, downtime: Downtime, interval_s: float, num_spares: int, *, ideal: bool = False
) -> Outcome:
    """Walk through the year."""
    in_job = {f.node for f in faults}  # nodes that never fail in the trace need no names
    spares = [f"spare-{i}" for i in range(num_spares)]
    returns: list[tuple[float, str]] = []  # when a node is repaired, it becomes a spare
    up_at = useful = lost = down = waiting = 0.0
    interruptions = 0
    efficiency = 1.0 if ideal else 1.0 - STALL_S / interval_s
    for fault in faults:
        while returns and returns[0][0] <= fault.start_s:
            spares.append(heapq.heappop(returns)[1])
        heapq.heappush(returns, (fault.end_s, fault.node))
        if fault.node not in in_job:
            if fault.node in spares:
                spares.remove(fault.node)
            continue
        interruptions += 1
        in_job.discard(fault.node)
        ran = max(0.0, fault.start_s - up_at)
        # What was staged but not yet proven on storage when the node died is lost as well.
        redo = 0.0 if ideal else min(ran, (ran % interval_s) + min(WRITE_S, ran))
        useful += (ran - redo) * efficiency
        lost += redo
        ready = max(fault.start_s, up_at) + downtime(fault) if not ideal else max(fault.start_s, up_at)
        if not spares:
            back_s, node = heapq.heappop(returns)
            waiting += max(0.0, back_s - ready)
            ready = max(ready, back_s)
            spares.append(node)
        in_job.add(spares.pop(0))
        down += ready - max(fault.start_s, up_at)
        up_at = ready
    useful += max(0.0, end_s - up_at) * efficiency
    hours = 3_600.0
    return Outcome(
        goodput=useful / end_s,
        lost_work_h=lost / hours,
        down_h=(down - waiting) / hours,
        waiting_h=waiting / hours,
        interruptions=interruptions,
    )


def main() -> None:
    """Print the table."""
    default = Path(os.environ.get("PRISM_DATA", Path(__file__).parents[3] / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=default / "infinitehbd" / "fault_trace.json")
    parser.add_argument("--spares", type=int, nargs="+", default=[16, 48])
    options = parser.parse_args()
    if not options.trace.exists():
        sys.exit(f"{options.trace}: not here; get fault_trace.json of InfiniteHBD-Trace and pass --trace")
    faults, end_s = read_faults(options.trace)
    mtbf_s = end_s / len(faults)
    interval_s = max(WRITE_S * 1.25, choose_interval_s(STALL_S, mtbf_s))
    print(describe_machine())
    print(f"{len(faults)} faults in {end_s / DAY_S:.0f} days, one in {mtbf_s / 3600:.1f} h, on {NUM_NODES} nodes")
    policies: dict[str, tuple[Downtime, float]] = {
        "person on call, the paper's median": (by_person(0), ACME_INTERVAL_S),
        "person on call, the paper's mean": (by_person(1), ACME_INTERVAL_S),
        "plain restart": (by_plain_restart, ACME_INTERVAL_S),
        f"Prism, interval {interval_s:.0f} s": (by_prism, interval_s),
        "Prism, the paper's interval of 30 min": (by_prism, ACME_INTERVAL_S),
    }
    for num_spares in options.spares:
        ideal = simulate(faults, end_s, lambda f: 0.0, interval_s, num_spares, ideal=True)
        head = f"{f'with {num_spares} spare nodes':42}"
        print(f"\n{head} {'goodput':>8} {'of ideal':>9} {'redone':>8} {'down':>8} {'no node':>8} {'stops':>6}")
        for name, (downtime, interval) in policies.items():
            show(name, simulate(faults, end_s, downtime, interval, num_spares), ideal)
        show("ideal", ideal, ideal)


def show(name: str, outcome: Outcome, ideal: Outcome) -> None:
    """One row."""
    shares = f"{outcome.goodput:8.2%} {outcome.goodput / ideal.goodput:9.2%}"
    hours = f"{outcome.lost_work_h:6.0f} h {outcome.down_h:6.0f} h {outcome.waiting_h:6.0f} h"
    print(f"{name:42} {shares} {hours} {outcome.interruptions:6}")


if __name__ == "__main__":
    main()
