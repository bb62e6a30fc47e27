"""torch.distributed.pipelining: V-shaped schedules (zero bubble V or DualPipeV): each rank has a chunk from either end."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleDualPipeV, ScheduleZBVZeroBubble

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", choices=["zbv", "dualpipev"], default="zbv")
parser.add_argument("--dim", type=int, default=32)
parser.add_argument("--pp", type=int, default=2)
args = parser.parse_args()

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // args.pp, args.pp), mesh_dim_names=("dp", "pp"))
place, last = mesh.get_local_rank("pp"), 2 * args.pp - 1
torch.manual_seed(place)
front, back = (nn.Sequential(nn.Linear(args.dim, args.dim), nn.SiLU()) for _ in range(2))
stages = [
    PipelineStage(front, place, last + 1, torch.device("cpu"), group=mesh.get_group("pp")),
    PipelineStage(back, last - place, last + 1, torch.device("cpu"), group=mesh.get_group("pp")),
]
kind = {"zbv": ScheduleZBVZeroBubble, "dualpipev": ScheduleDualPipeV}[args.schedule]
schedule = kind(stages, n_microbatches=4 * args.pp, loss_fn=nn.functional.mse_loss)
params = [*front.parameters(), *back.parameters()]
optimizer = torch.optim.SGD(params, lr=1e-2, momentum=0.9)

for _ in range(8):
    batch = 8 * args.pp
    if place == 0:  # the first rank has both the first and the last chunk
        schedule.step(torch.randn(batch, args.dim), target=torch.zeros(batch, args.dim), losses=[])
    else:
        schedule.step()
    for p in params:
        dist.all_reduce(p.grad, group=mesh.get_group("dp"))
    optimizer.step()
    optimizer.zero_grad()

dist.destroy_process_group()
