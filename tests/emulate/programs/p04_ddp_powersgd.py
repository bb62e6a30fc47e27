"""DDP with PowerSGD gradient compression that starts after three plain steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(42)

model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
model = DDP(model)
state = powersgd.PowerSGDState(
    process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=3, warm_start=True, use_error_feedback=True
)
model.register_comm_hook(state, powersgd.powerSGD_hook)

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
torch.manual_seed(rank)
for step in range(14):
    inputs = torch.randn(16, 128)
    targets = torch.randint(0, 10, (16,))
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step}: loss={loss.item():.4f}")

dist.barrier()
dist.destroy_process_group()
