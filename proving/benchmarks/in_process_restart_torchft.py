"""One replica of the training of `in_process_restart.py` under torchft; started by that benchmark."""

from __future__ import annotations

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

RANK, RANKS = int(sys.argv[1]), int(os.environ["BENCH_RANKS"])
PORT = int(os.environ["BENCH_PORT"])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lighthouse = LighthouseServer(bind=f"[::]:{PORT}", min_replicas=RANKS // 2) if RANK == 0 else None
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=30)),
        min_replica_size=RANKS // 2,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["optim"])),
        state_dict=lambda: {"model": model.state_dict(), "optim": inner.state_dict()},
        replica_id=f"replica_{RANK}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=f"http://localhost:{PORT}",
        timeout=datetime.timedelta(seconds=30),
    )
    optimizer = Optimizer(manager, inner)
    replicas = 0
    while True:
        optimizer.zero_grad()
        step = manager.current_step()
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * 1000 + RANK))
        loss = (model(inputs) - inputs.mean(dim=1, keepdim=True)).square().mean()
        loss.backward()
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()
        optimizer.step()
        if RANK == 0 and manager.current_step() > step:
            if manager.num_participants() != replicas:
                replicas = manager.num_participants()
                print(f"generation 0: starts from a quorum of {replicas} replicas", flush=True)
            print(f"step {manager.current_step()} loss {float(loss.detach()).hex()}", flush=True)
    del lighthouse


if __name__ == "__main__":
    main()
