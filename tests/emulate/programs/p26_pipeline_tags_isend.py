"""Hand-written pipeline with non-blocking sends, one tag per micro-batch and direction; activations first, shapes sent ahead."""

import os

import torch
import torch.distributed as dist
from torch import nn

MICRO, HIDDEN = 4, 32


class Link:
    """One end of the pipe between two stages."""

    def __init__(self, peer: int):
        self.peer = peer
        self.pending = []

    def send(self, tensor: torch.Tensor, tag: int) -> None:
        shape = torch.tensor(tensor.shape)
        self.pending.append((dist.isend(shape, self.peer, tag=2 * tag), shape))
        tensor = tensor.detach().contiguous()
        self.pending.append((dist.isend(tensor, self.peer, tag=2 * tag + 1), tensor))

    def recv(self, tag: int) -> torch.Tensor:
        shape = torch.empty(2, dtype=torch.long)
        dist.recv(shape, self.peer, tag=2 * tag)
        tensor = torch.empty(*shape.tolist())
        dist.recv(tensor, self.peer, tag=2 * tag + 1)
        return tensor

    def flush(self) -> None:
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    depth = 4 if world % 4 == 0 else 2
    stage = rank % depth
    after = Link(rank + 1) if stage < depth - 1 else None
    before = Link(rank - 1) if stage > 0 else None
    net = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(10):
        pairs = []
        for m in range(MICRO):
            x = before.recv(m) if before else torch.randn(4 + 2 * m, HIDDEN)
            x.requires_grad_()
            y = net(x)
            pairs.append((x, y))
            if after:
                after.send(y, m)
        for m, (x, y) in enumerate(pairs):
            if after:
                y.backward(after.recv(MICRO + m))
            else:
                y.square().mean().backward()
            if before:
                before.send(x.grad, MICRO + m)
        for link in (before, after):
            if link:
                link.flush()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
