"""What a job over NCCL looks like to the collector when one rank goes wrong: python nccl.py OUT [FAULT...].

Needs a GPU, which the ranks share: each is given a host name of its own, so NCCL takes them for different hosts. Per
fault OUT holds the collector's document; `python -m proving.benchmarks.hangs.nccl --read OUT` names who they point at.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

RANKS, VICTIM, FAULT_STEP, QUIET_S = 4, 2, 5, 25.0
FAULTS = ("sleep", "read", "spin", "lock", "stop", "barrier", "matmul", "item", "queue", "process")
COLLECTOR = Path(__file__).parents[3] / "src/prism/evidence/fusion/collector.py"


def main() -> None:
    """Run every fault, or read what was collected, or be a rank."""
    if sys.argv[1] == "--rank":
        train(sys.argv[2])
    elif sys.argv[1] == "--read":
        read(Path(sys.argv[2]))
    else:
        for fault in sys.argv[2:] or FAULTS:
            record(fault, Path(sys.argv[1]))


def record(fault: str, out: Path) -> None:
    """One hang, collected by the number of its launcher."""
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--master-port=29641"]
    job = subprocess.Popen([*words, __file__, "--rank", fault], start_new_session=True)
    try:
        time.sleep(QUIET_S)
        begin = time.monotonic()
        words = [sys.executable, str(COLLECTOR), str(job.pid)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        (out / f"{fault}.json").write_text(done.stdout)
        print(fault, len(done.stdout), f"{time.monotonic() - begin:.1f} s", done.stderr[-200:], flush=True)
        for rank in json.loads(done.stdout)["ranks"]:
            os.kill(rank["pid"], signal.SIGKILL)  # torchrun would wait for one that is stopped
    finally:
        job.terminate()
        job.wait()


def train(fault: str) -> None:
    """A small DDP program, whose victim goes wrong at a step; the others wait for its gradients."""
    import torch
    import torch.distributed as dist

    os.environ["NCCL_HOSTID"] = "host" + os.environ["RANK"]
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(1000):
        if rank == VICTIM and step == FAULT_STEP:
            fail(fault)
        loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(rank, step, loss.item(), flush=True)


def fail(fault: str) -> None:
    """Go wrong in one way."""
    import torch
    import torch.distributed as dist

    if fault == "barrier":
        dist.barrier()
    elif fault == "item":  # another collective, awaited as the others await theirs
        ones = torch.ones(3, device="cuda")
        dist.broadcast(ones, VICTIM)
        ones.sum().item()
    elif fault == "matmul":
        matrix = torch.eye(4000, device="cuda")
        while True:
            matrix = matrix @ matrix
            torch.cuda.synchronize()
    else:
        programs = runpy.run_path(str(Path(__file__).with_name("programs.py")))
        programs["_STUCK"][fault](Path(os.environ.get("TMPDIR", "/tmp")))


def read(out: Path) -> None:
    """Name the culprits by the documents, on a machine that has Prism."""
    from prism.evidence.traces.consensus import describe_cluster, find_apart
    from prism.evidence.traces.stacks import parse_look
    from proving.benchmarks.hangs.roles import Roles

    roles = Roles()
    for path in sorted(out.glob("*.json")):
        stacks = [parse_look(r) for r in json.loads(path.read_text())["ranks"]]
        found = find_apart(stacks)
        roles.add(stacks, VICTIM)
        for division in found.apart[:1]:
            right = "right" if division.ranks == (VICTIM,) else "WRONG"
            print(f"{path.stem:9s}{right} {division.ranks} {division.confidence:.2f}")
        print(
            f"{path.stem:9s}" + "; ".join(describe_cluster(c) for c in found.clusters), "moves" if found.moves else ""
        )
    roles.show()


if __name__ == "__main__":
    main()
