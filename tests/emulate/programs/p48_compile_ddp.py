"""torch.compile (aot_eager) on a DDP model, bf16 autocast, and a compiled loss function."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.inp = nn.Linear(24, dim)
        self.mid = nn.ModuleList([nn.Linear(dim, dim) for _ in range(3)])
        self.out = nn.Linear(dim, 6)

    def forward(self, x):
        x = F.relu(self.inp(x))
        for layer in self.mid:
            x = x + F.relu(layer(x))
        return self.out(x)


@torch.compile(backend="aot_eager")
def smoothed_loss(logits, labels):
    return F.cross_entropy(logits.float(), labels, label_smoothing=0.1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.compile(DDP(Net()), backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(10):
        x, y = torch.randn(8, 24), torch.randint(0, 6, (8,))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        loss = smoothed_loss(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
