"""DiLoCo: every worker group of two trains in DDP; every five steps the groups average their drift with an outer Nesterov step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

INNER_STEPS, ROUNDS = 5, 3


class OuterLoop:
    """Keeps the weights of the last synchronisation and moves them by the averaged drift."""

    def __init__(self, model: nn.Module, group):
        self.model, self.group = model, group
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.optimizer = torch.optim.SGD(self.anchor, lr=0.7, momentum=0.9, nesterov=True)

    @torch.no_grad()
    def step(self) -> None:
        size = dist.get_world_size(self.group)
        for anchor, p in zip(self.anchor, self.model.parameters(), strict=True):
            anchor.grad = anchor - p
            dist.all_reduce(anchor.grad, group=self.group)
            anchor.grad /= size
        self.optimizer.step()
        for anchor, p in zip(self.anchor, self.model.parameters(), strict=True):
            p.copy_(anchor)


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("worker", "local"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32))
    ddp = DDP(net, process_group=mesh.get_group("local"))
    inner = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    outer = OuterLoop(net, mesh.get_group("worker"))
    torch.manual_seed(dist.get_rank())
    for _ in range(ROUNDS):
        for _ in range(INNER_STEPS):
            x = torch.randn(16, 32)
            (ddp(x) - x).pow(2).mean().backward()
            inner.step()
            inner.zero_grad()
        outer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
