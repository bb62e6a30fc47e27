"""A learning-rate finder on short sequences first (stopped by an agreed flag), then training on longer ones with the rate it found."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM = 40, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mix = nn.GRU(DIM, DIM, batch_first=True)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


def loss_on(model, batch, length):
    tokens = torch.randint(0, VOCAB, (batch, length + 1))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def find_lr(model, rates):
    saved = copy.deepcopy(model.state_dict())
    best, best_lr = float("inf"), rates[0]
    for lr in rates:
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        loss = loss_on(model, 8, 4)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean = mean.item() / dist.get_world_size()
        if mean < best:
            best, best_lr = mean, lr
        if mean > 4 * best:
            break
    model.load_state_dict(saved)
    return best_lr / 2


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Model())
    torch.manual_seed(dist.get_rank())
    lr = find_lr(model, [10 ** (e / 2) for e in range(-8, 0)])
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = [(8, 6)] * 3 + [(4, 24)] * 10  # a warm-up phase of another shape, then the real one
    for batch, length in schedule:
        loss = loss_on(model, batch, length)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        print(f"lr {lr:.4g}, loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
