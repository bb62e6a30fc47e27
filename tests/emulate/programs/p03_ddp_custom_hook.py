"""DDP with a communication hook of the user's own: buckets are sent as bf16 and divided after the reduction."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class HookState:
    def __init__(self, group):
        self.group = group
        self.buckets_seen = 0


def half_precision_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    state.buckets_seen += 1
    world = dist.get_world_size(state.group)
    small = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(small, group=state.group, async_op=True)

    def finish(fut):
        buffer = bucket.buffer()
        buffer.copy_(fut.value()[0])
        return buffer.div_(world)

    return work.get_future().then(finish)


def train(steps: int = 12) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.ReLU()) for _ in range(6)])
    ddp = DDP(net, bucket_cap_mb=0.1)
    state = HookState(dist.group.WORLD)
    ddp.register_comm_hook(state, half_precision_hook)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(16, 96)
        loss = (ddp(x) - x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    if rank == 0:
        print("buckets reduced:", state.buckets_seen)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    assert dist.get_rank() == int(os.environ["RANK"])
    train()
    dist.destroy_process_group()
