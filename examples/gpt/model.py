"""A small GPT: embedding, blocks of attention and a feed-forward (dense, or a mixture of experts), a head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model."""

    vocab: int = 1024
    width: int = 256
    heads: int = 4
    layers: int = 4
    length: int = 128
    experts: int = 0  # 0: dense
    router: str = "learned"  # or "even": tokens are dealt out in turn, so that every rank gets the same number


class Attention(nn.Module):
    """Causal self-attention; with a ring group, keys and values travel round the ranks that share a sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.width, bias=False)
        self.v = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.ring: dist.ProcessGroup | None = None

    def forward(self, x: Tensor) -> Tensor:
        # The number of heads follows from the width, which tensor parallelism cuts.
        q, k, v = (p(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True) if self.ring is None else self._ring(q, k, v)
        return self.out(y.transpose(1, 2).flatten(-2))

    def _ring(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Own block with a causal mask, then the blocks of the ranks before; sums are kept in log space."""
        size, place = self.ring.size(), self.ring.rank()
        total, weight = _attend(q, k, v, causal=True)
        block = torch.stack((k, v)).detach().contiguous()
        for hop in range(1, size):
            block = _pass_on(block, self.ring, place, size)
            if hop <= place:  # blocks of later ranks lie in the future
                part, part_weight = _attend(q, block[0], block[1], causal=False)
                both = torch.logaddexp(weight, part_weight)
                total = total * (weight - both).exp() + part * (part_weight - both).exp()
                weight = both
        return total


def _attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
    weight = scores.logsumexp(-1, keepdim=True)
    return (scores - weight).exp() @ v, weight


def _pass_on(block: Tensor, ring: dist.ProcessGroup, place: int, size: int) -> Tensor:
    incoming = torch.empty_like(block)
    ops = [
        dist.P2POp(dist.isend, block, group=ring, group_peer=(place + 1) % size),
        dist.P2POp(dist.irecv, incoming, group=ring, group_peer=(place - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return incoming


class FeedForward(nn.Module):
    """The dense feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received, group):
        ctx.splits, ctx.group = (sent, received), group
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.splits
        out = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), sent, received, group=ctx.group)
        return out, None, None, None


class Experts(nn.Module):
    """Top-1 experts; every rank of the expert group holds an equal part of them and tokens travel to theirs."""

    def __init__(self, config: ModelConfig, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.group = group
        parts = group.size() if group is not None else 1
        self.per_rank = config.experts // parts
        self.even = config.router == "even"
        self.gate = nn.Linear(config.width, config.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(self.per_rank))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        score, choice = self.gate(tokens).softmax(-1).max(-1)
        if self.even:
            choice = torch.arange(len(choice), device=choice.device) % self.gate.out_features
        order = choice.argsort()
        counts = torch.bincount(choice, minlength=self.gate.out_features)
        mine, local = self._dispatch(tokens[order], counts)
        done = torch.cat([e(t) for e, t in zip(self.experts, mine.split(local), strict=True)])
        back = self._combine(done, counts)
        return (torch.empty_like(back).index_copy(0, order, back) * score[:, None]).view_as(x)

    def _dispatch(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, list[int]]:
        if self.group is None:
            return tokens, counts.tolist()
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.group)
        self.sent = counts.view(-1, self.per_rank).sum(1).tolist()
        self.received = received.view(-1, self.per_rank).sum(1).tolist()
        tokens = _AllToAll.apply(tokens, self.sent, self.received, self.group)
        return tokens, received.view(-1, self.per_rank).sum(0).tolist()

    def _combine(self, tokens: Tensor, counts: Tensor) -> Tensor:
        if self.group is None:
            return tokens
        return _AllToAll.apply(tokens, self.received, self.sent, self.group)


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: ModelConfig, experts: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward = Experts(config, experts) if config.experts else FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """The whole model, or the consecutive layers of one pipeline stage."""

    def __init__(
        self, config: ModelConfig, first: int = 0, last: int | None = None, experts: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        last = config.layers if last is None else last
        self.embedding = nn.Embedding(config.vocab, config.width) if first == 0 else None
        self.blocks = nn.ModuleList(Block(config, experts) for _ in range(first, last))
        self.norm = nn.LayerNorm(config.width) if last == config.layers else None
        self.head = nn.Linear(config.width, config.vocab, bias=False) if last == config.layers else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
