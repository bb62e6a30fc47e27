"""RLHF in small: generate until every rank has finished, score with a reward model on rank 0 only, then two PPO epochs."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, DIM, END, LONGEST, BATCH = 20, 32, 1, 12, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.GRU(DIM, DIM, batch_first=True)
        self.logits, self.value = nn.Linear(DIM, VOCAB), nn.Linear(DIM, 1)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.logits(h), self.value(h).squeeze(-1)


@torch.no_grad()
def generate(policy):
    tokens = torch.zeros(BATCH, 1, dtype=torch.long)
    alive = torch.ones(BATCH, dtype=torch.bool)
    for _ in range(LONGEST):
        logits, _ = policy(tokens)
        nxt = torch.multinomial(logits[:, -1].softmax(-1), 1)
        tokens = torch.cat([tokens, nxt], dim=1)
        alive &= nxt.squeeze(1) != END
        anyone = alive.any().int()
        dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
        if not anyone.item():
            break
    return tokens


@torch.no_grad()
def score(tokens, rank, world):
    """Rank 0 holds the reward model: it gathers all samples and scatters their rewards."""
    boxes = [torch.empty_like(tokens) for _ in range(world)] if rank == 0 else None
    dist.gather(tokens, boxes, dst=0)
    reward = torch.empty(BATCH)
    answers = [(b % 7 == 0).float().mean(dim=1) for b in boxes] if rank == 0 else None
    dist.scatter(reward, answers, src=0)
    return reward


def log_probs(logits, tokens):
    return logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    ddp = DDP(Policy())
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for _ in range(8):
        tokens = generate(ddp.module)
        reward = score(tokens, rank, world)
        with torch.no_grad():
            logits, value = ddp.module(tokens)
            old, advantage = log_probs(logits, tokens), reward[:, None] - value[:, :-1]
        for _ in range(2):
            logits, value = ddp(tokens)
            ratio = (log_probs(logits, tokens) - old).exp()
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = (value[:, :-1] - reward[:, None]).pow(2).mean() - surrogate
            opt.zero_grad()
            loss.backward()
            opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
