"""BUG: the last stage of the pipeline runs one micro-batch fewer than the stages that feed it."""

import torch
import torch.distributed as dist
from torch import nn

STAGES, DIM, SAMPLES, MICRO_SIZE = 2, 40, 18, 4


def microbatches(stage):
    """The labels' loader of the last stage drops what does not fill a micro-batch; the inputs' loader pads it."""
    if stage == STAGES - 1:
        return SAMPLES // MICRO_SIZE
    return -(-SAMPLES // MICRO_SIZE)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = rank % STAGES
    replicas = [dist.new_group(list(range(s, world, STAGES))) for s in range(STAGES)][stage]
    net = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(10):
        for _m in range(microbatches(stage)):
            if stage == 0:
                y = net(torch.randn(MICRO_SIZE, DIM))
                dist.send(y.detach(), dst=rank + 1)
                grad = torch.empty_like(y)
                dist.recv(grad, src=rank + 1)
                y.backward(grad)
            else:
                x = torch.empty(MICRO_SIZE, DIM)
                dist.recv(x, src=rank - 1)
                x.requires_grad_()
                net(x).pow(2).mean().backward()
                dist.send(x.grad, dst=rank - 1)
        for p in net.parameters():
            dist.all_reduce(p.grad, group=replicas)
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
