"""torch's pipelining: 1F1B over PIPELINE stages, DDP over the rest."""

import os

import torch
import torch.distributed as dist
from parts import Truth, add_kernel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTH, TOKENS, MICROBATCHES = 192, 64, 8

dist.init_process_group("gloo")
torch.set_num_threads(1)
stages = int(os.environ["PIPELINE"])
mesh = init_device_mesh("cpu", (dist.get_world_size() // stages, stages), mesh_dim_names=("dp", "pp"))
at = mesh.get_local_rank("pp")
layers = [nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, dropout=0.0) for _ in range(1)]
for layer in layers:
    add_kernel(layer)
module: nn.Module = nn.Sequential(*layers)
if mesh["dp"].size() > 1:
    module = DistributedDataParallel(module, process_group=mesh.get_group("dp"))
stage = PipelineStage(module, at, stages, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
batch = torch.randn(MICROBATCHES, TOKENS, WIDTH)
truth = Truth()
for _ in range(int(os.environ["STEPS"])):
    truth.begin()
    optimizer.zero_grad()
    if at == 0:
        schedule.step(batch)
    elif at == stages - 1:
        schedule.step(target=batch)
    else:
        schedule.step()
    optimizer.step()
    truth.end()
dist.barrier()
os._exit(0)
