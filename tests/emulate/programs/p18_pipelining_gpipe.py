"""torch.distributed.pipelining: GPipe over four stages, replicas averaged with an all-reduce per parameter."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

STAGES, DIM, BATCH, MICRO = 4, 32, 16, 4


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // STAGES, STAGES), mesh_dim_names=("dp", "pp"))
    stage_index = mesh.get_local_rank("pp")
    torch.manual_seed(stage_index)
    module = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
    stage = PipelineStage(module, stage_index, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = ScheduleGPipe(stage, n_microbatches=MICRO, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    for step in range(10):
        optimizer.zero_grad()
        if stage_index == 0:
            schedule.step(torch.randn(BATCH, DIM))
        elif stage_index == STAGES - 1:
            losses = []
            schedule.step(target=torch.zeros(BATCH, DIM), losses=losses)
            if step % 5 == 0:
                print(f"step {step}: {torch.stack(losses).mean().item():.4f}")
        else:
            schedule.step()
        for p in module.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))
            p.grad /= world // STAGES
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
