"""Text tower on the lower half, image tower on the upper half, each with its own optimizer; a contrastive loss joins them.

Two groups over all ranks carry features and metrics apart from each other.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

BATCH, DIM = 4, 16


class Tower(nn.Module):
    def __init__(self, inputs: int, depth: int):
        super().__init__()
        layers = [nn.Linear(inputs, 64), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(64, 64), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(64, DIM))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    half = world // 2
    everyone = list(range(world))
    features, metrics = dist.new_group(everyone), dist.new_group(everyone)
    text_ranks, image_ranks = everyone[:half], everyone[half:]
    text_group, image_group = dist.new_group(text_ranks), dist.new_group(image_ranks)
    is_text = rank < half
    torch.manual_seed(int(is_text))
    if is_text:
        tower, group = Tower(20, 1), text_group
        opt = torch.optim.AdamW(tower.parameters(), lr=1e-3)
    else:
        tower, group = Tower(48, 3), image_group
        opt = torch.optim.SGD(tower.parameters(), lr=1e-2, momentum=0.9)
    for step in range(12):
        mine = tower(torch.randn(BATCH, 20 if is_text else 48))
        gathered = [torch.empty(BATCH, DIM) for _ in range(world)]
        dist.all_gather(gathered, mine.detach(), group=features)
        gathered[rank] = mine
        left, right = torch.cat(gathered[:half]), torch.cat(gathered[half:])
        loss = F.cross_entropy(left @ right.T / 0.1, torch.arange(half * BATCH))
        loss.backward()
        for p in tower.parameters():
            dist.all_reduce(p.grad, group=group)
        opt.step()
        opt.zero_grad()
        if step % 4 == 0:
            shown = torch.stack([loss.detach(), mine.detach().norm()])
            dist.reduce(shown, dst=0, group=metrics)
            if rank == 0:
                print(step, (shown / world).tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
