"""Sequence packing: every rank packs documents of random lengths, the loss is weighted by the tokens of all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, BUDGET = 50, 32, 64


def pack(generator):
    """Documents until the token budget is reached; the pack is as long as what went in."""
    lengths = []
    while True:
        n = int(torch.randint(4, 24, (1,), generator=generator))
        if sum(lengths) + n > BUDGET:
            break
        lengths.append(n)
    tokens = torch.randint(0, VOCAB, (sum(lengths),), generator=generator)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.arange(sum(lengths)) - starts[document]
    return tokens, document, position


class PackedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(32, DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens, document, position):
        x = self.tok(tokens) + self.pos(position)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        mask = (document[:, None] == document[None, :]) & (position[:, None] >= position[None, :])
        scores = (q @ k.T / DIM**0.5).masked_fill(~mask, float("-inf"))
        return self.out(x + scores.softmax(-1) @ v)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(PackedLM())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(12):
        tokens, document, position = pack(generator)
        logits = model(tokens, document, position)
        keep = document[1:] == document[:-1]
        count = keep.sum().float()
        dist.all_reduce(count)
        summed = nn.functional.cross_entropy(logits[:-1][keep], tokens[1:][keep], reduction="sum")
        (summed * world / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(f"step {step}: {int(count)} tokens in all")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
