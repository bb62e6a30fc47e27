"""BUG: DDP without find_unused_parameters, and the last rank leaves out the auxiliary head on odd steps."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 48), nn.ReLU())
        self.main, self.aux = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, x, with_aux):
        h = self.body(x)
        return self.main(h), self.aux(h) if with_aux else None


def main():
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model = DDP(TwoHeads(), bucket_cap_mb=0.001)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(12):
        x, y = torch.randn(8, 24), torch.randint(0, 4, (8,))
        labelled = rank != world - 1 or step % 2 == 0  # that shard has auxiliary labels for half its files only
        logits, extra = model(x, labelled)
        loss = nn.functional.cross_entropy(logits, y)
        if extra is not None:
            loss = loss + 0.1 * extra.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
