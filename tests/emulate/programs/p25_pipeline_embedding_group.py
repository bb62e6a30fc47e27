"""Hand-written pipeline, stage = rank // replicas, with tied embeddings summed in a group of first and last stage."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

STAGES, VOCAB, D, S, B = 4, 40, 24, 6, 4
MICRO = 3


class FirstStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.body = nn.Linear(D, D)

    def forward(self, tokens):
        return torch.tanh(self.body(self.embed(tokens)))


class LastStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.body = nn.Linear(D, D)

    def forward(self, h):
        return torch.tanh(self.body(h)) @ self.embed.weight.T


class MiddleStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, D))

    def forward(self, h):
        return h + self.body(h)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
replicas = world // STAGES
stage, replica = divmod(rank, replicas)
first, last = stage == 0, stage == STAGES - 1

for s in range(STAGES):
    g = dist.new_group(range(s * replicas, (s + 1) * replicas))
    if s == stage:
        data_group = g
embedding_group = None
for r in range(replicas):
    g = dist.new_group([r, r + (STAGES - 1) * replicas])
    if r == replica:
        embedding_group = g

torch.manual_seed(0)
net = FirstStage() if first else LastStage() if last else MiddleStage()
if first or last:
    dist.broadcast(net.embed.weight.data, src=replica, group=embedding_group)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _step in range(10):
    kept = []
    for _ in range(MICRO):
        tokens = torch.randint(0, VOCAB, (B, S + 1))
        if first:
            x = tokens[:, :-1]
        else:
            x = torch.empty(B, S, D)
            dist.recv(x, rank - replicas)
            x.requires_grad_(True)
        y = net(x)
        kept.append((x, y, tokens[:, 1:]))
        if not last:
            dist.send(y.detach(), rank + replicas)
    for x, y, labels in kept:
        if last:
            F.cross_entropy(y.flatten(0, 1), labels.flatten()).backward()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + replicas)
            y.backward(grad)
        if not first:
            dist.send(x.grad, rank - replicas)
    if first or last:
        dist.all_reduce(net.embed.weight.grad, group=embedding_group)
    for p in net.parameters():
        dist.all_reduce(p.grad, group=data_group)
        p.grad.div_(replicas)
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
