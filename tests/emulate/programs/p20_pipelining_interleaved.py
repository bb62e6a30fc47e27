"""torch.distributed.pipelining: interleaved 1F1B, two model chunks on each pipeline rank."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

PP, CHUNKS, DIM, MICRO = 2, 2, 40, 4


def chunk():
    return nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.LayerNorm(DIM))


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // PP, PP), mesh_dim_names=("dp", "pp"))
    pp_rank, pp_group, dp_group = mesh.get_local_rank("pp"), mesh.get_group("pp"), mesh.get_group("dp")
    torch.manual_seed(0)
    modules = nn.ModuleList([chunk() for _ in range(CHUNKS)])
    stages = [
        PipelineStage(m, pp_rank + i * PP, PP * CHUNKS, torch.device("cpu"), group=pp_group)
        for i, m in enumerate(modules)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=MICRO, loss_fn=lambda y, t: (y - t).abs().mean())
    optimizer = torch.optim.Adam(modules.parameters(), lr=1e-3)
    for _ in range(10):
        x = torch.randn(8, DIM)
        if pp_rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        for p in modules.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, group=dp_group)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
