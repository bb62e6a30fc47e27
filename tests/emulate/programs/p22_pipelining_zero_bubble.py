"""torch.distributed.pipelining: interleaved zero bubble, backward split into input and weight halves."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

PP, CHUNKS, DIM = 2, 2, 32


def main():
    dist.init_process_group("gloo")
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cpu", (world // PP, PP), mesh_dim_names=("dp", "pp"))
    here = mesh.get_local_rank("pp")
    torch.manual_seed(here)
    chunks = nn.ModuleList([nn.Sequential(*[nn.Linear(DIM, DIM) for _ in range(2)]) for _ in range(CHUNKS)])
    stages = [
        PipelineStage(c, here + i * PP, PP * CHUNKS, torch.device("cpu"), group=mesh.get_group("pp"))
        for i, c in enumerate(chunks)
    ]
    schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    opt = torch.optim.AdamW(chunks.parameters(), lr=1e-3)
    for _ in range(8):
        if here == 0:
            schedule.step(torch.randn(8, DIM))
        else:
            schedule.step(target=torch.randn(8, DIM))
        for p in chunks.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))
            p.grad /= world // PP
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
