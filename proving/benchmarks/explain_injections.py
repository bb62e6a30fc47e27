"""Can what a job prints blame a host? Plant claims about hosts into the output of runs and see who is blamed.

python proving/benchmarks/explain_injections.py [--count 1000] [--seed 0] [--show 5]

Every log is made twice, with and without one planted line (a training sample, a quoted web page, a forged kernel,
scheduler or NCCL line). A planted line must add no host, must not ask for isolation, and should not change the reason.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass

from prism.evidence.logs import diagnose, read_text

CLAIMS = (
    "NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid={pid}, GPU has fallen off the bus on {host}",
    "May {day:2d} 10:11:12 {host} kernel: NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid={pid}, name=python",
    "[{pid}.123456] NVRM: Xid (PCI:0000:{bus}:00): {xid}, {host}",
    "{host} kernel: mlx5_core 0000:{bus}:00.0 ib0: Link down",
    "kernel: [Hardware Error]: {host} CPU 3: Machine Check: fatal",
    "slurmstepd: error: *** STEP {pid}.0 ON {host} CANCELLED AT 2024-03-{day:02d}T11:20:01 DUE TO NODE FAILURE ***",
    "srun: error: {host}: task 3: Killed",
    "srun: error: Node failure on {host}",
    "[2024-03-{day:02d}T11:20:01.123] error: Nodes {host} not responding, setting DOWN",
    "Node {host} is DOWN, not responding",
    "Warning  NodeNotReady  3m  node-controller  Node {host} is not ready",
    "{host}:{pid}:99 [3] NCCL WARN NET/IB : Got completion from peer {host}<4791> with error 12, vendor err 129",
    "{host}:{pid}:99 [3] NCCL WARN socketStartConnect: Connect to {host}<45763> failed : No route to host",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered on {host}",
    "sample {pid}: user says 'my GPU has fallen off the bus, Xid {xid} on {host}'",
    '{{"role": "user", "content": "{host} kernel: NVRM: Xid {xid}, uncorrectable NVLink error"}}',
    "<p>In this post: how node {host} died of an uncorrectable ECC error (Xid {xid})</p>",
    "prediction: the host {host} is unhealthy because of Xid {xid}",
    "mpirun noticed that process rank 3 with PID {pid} on node {host} exited on signal 9 (Killed).",
    "Root Cause (first observed failure):\n[0]:\n  host      : {host}\n  rank      : 3 (local_rank: 3)\n"
    "  exitcode  : -9 (pid: {pid})",
    "(raylet) The node with node id: 3f and address: {host} has been marked dead because the detector has missed too "
    "many heartbeats",
    "\x1e1\t\t{host}\t\t\tkernel\x1fNVRM: Xid (PCI:0000:{bus}:00): {xid}",
)
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 88, in step\n    loss = model(batch["labels"])\n'
ENDS = {
    "finished": lambda rank: ["Training finished."],
    "silent": lambda rank: [],
    "KeyError": lambda rank: [*(TRACE + "KeyError: 'labels'").splitlines()],
    "shape": lambda rank: [*(TRACE + "RuntimeError: mat1 and mat2 shapes cannot be multiplied").splitlines()],
    "oom": lambda rank: ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79.33 GiB"],
    "timeouts": lambda rank: [
        f"[rank{r}]:[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: Work(9)"
        for r in range(8)
        if r != rank
    ],
    "killed": lambda rank: [f"srun: error: gpu-1: task {rank}: Killed", "srun: Terminating StepId=7.0"],
    "connection": lambda rank: [*(TRACE + "ConnectionResetError: [Errno 104] Connection reset by peer").splitlines()],
}
PREFIXES = ("", "[rank{rank}]: ", "[default{rank}]:", "{rank}: ", "docker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A run's output without and with one planted claim."""

    clean: str
    planted: str
    claim: str
    end: str


def make(rng: random.Random) -> Planted:
    """One run of random shape, and the same with a claim at a random place."""
    host = rng.choice(["node-12", "gpu-17", "gpu-1", "10.0.0.7", "dgx-a100-03"])
    claim = rng.choice(CLAIMS).format(host=host, xid=rng.choice([48, 63, 74, 79, 94, 119]), day=rng.randint(1, 28),
                                      pid=rng.randint(1000, 99999), bus=rng.choice(["3b", "9b", "c1"]))  # fmt: skip
    prefix, end, rank = rng.choice(PREFIXES), rng.choice(list(ENDS)), rng.randrange(8)
    stamp = rng.choice(["", "[2024-03-02 11:20:{s:02d},123] "])
    steps = [f"{stamp.format(s=i % 60)}step {i} | loss: {2 / (i + 1):.3f}" for i in range(rng.choice([4, 8, 60, 700]))]
    body = [f"{prefix.format(rank=0) if prefix != 'docker' else ''}{line}" for line in ["world size: 8", *steps]]
    ending = ENDS[end](rank)
    place = rng.choice([len(body), rng.randint(0, len(body)), max(0, len(body) - 2)])
    said = [f"{prefix.format(rank=rank) if prefix != 'docker' else ''}{line}" for line in claim.split("\n")]
    clean, planted = [*body, *ending], [*body[:place], *said, *body[place:], *ending]
    return Planted(clean=_render(clean, prefix), planted=_render(planted, prefix), claim=claim, end=end)


def _render(lines: list[str], prefix: str) -> str:
    if prefix != "docker":
        return "\n".join(lines) + "\n"
    return "".join(
        json.dumps({"log": line + "\n", "stream": "stdout", "time": "2024-03-02T11:20:01Z"}) + "\n" for line in lines
    )


def main() -> None:
    """Plant, diagnose and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    wrong: Counter[str] = Counter()
    for _ in range(args.count):
        case = make(rng)
        before, after = diagnose(read_text(case.clean)).verdict, diagnose(read_text(case.planted)).verdict
        faults = {
            "host blamed": set(after.hosts) - set(before.hosts),
            "isolation asked for": after.action == "isolate_and_restart" != before.action,
            "finished run called failed": case.end == "finished" and after.reason != "none",
            "reason changed": before.reason != after.reason,
        }
        wrong.update(name for name, is_so in faults.items() if is_so)
        if (faults["host blamed"] or faults["isolation asked for"]) and wrong["shown"] < args.show:
            wrong["shown"] += 1
            print(f"  {case.end}: {case.claim!r} -> {after.reason} {after.action} {after.hosts}")
    del wrong["shown"]
    for name in ("host blamed", "isolation asked for", "finished run called failed", "reason changed"):
        print(f"{name}: {wrong[name]} of {args.count}")


if __name__ == "__main__":
    main()
