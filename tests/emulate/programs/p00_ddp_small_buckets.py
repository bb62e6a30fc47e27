"""DDP image classifier with small buckets and gradients that live in the bucket views; settings from the command line."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ConvNet(nn.Module):
    def __init__(self, width: int, classes: int = 10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(3)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        return self.head(x.mean(dim=(2, 3)))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--bucket-mb", type=float, default=0.01)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1234)
    model = DistributedDataParallel(ConvNet(args.width), bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, 16, 16, generator=generator)
        labels = torch.randint(0, 10, (args.batch_size,), generator=generator)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
