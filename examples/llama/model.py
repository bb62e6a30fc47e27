"""Llama 3: rotary positions, grouped keys and values, gated feed-forward; the sizes are Meta's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model."""

    width: int = 4096
    layers: int = 32
    heads: int = 32
    shared_heads: int = 8  # of keys and values
    hidden: int = 14336
    vocab: int = 128256
    length: int = 8192
    theta: float = 500000.0


SIZES = {
    "debug": ModelConfig(width=64, layers=2, heads=4, shared_heads=2, hidden=128, vocab=256, length=32),
    "8B": ModelConfig(),
}


def make_rotation(config: ModelConfig) -> Tensor:
    """Turns of every pair of dimensions at every position, as complex numbers."""
    width = config.width // config.heads
    speeds = 1.0 / config.theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(config.length, dtype=torch.float32), speeds)
    return torch.polar(torch.ones_like(angles), angles)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation[None, : x.shape[1], None]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.repeat = config.heads // config.shared_heads
        self.wq = nn.Linear(config.width, config.heads * self.head_width, bias=False)
        self.wk = nn.Linear(config.width, config.shared_heads * self.head_width, bias=False)
        self.wv = nn.Linear(config.width, config.shared_heads * self.head_width, bias=False)
        self.wo = nn.Linear(config.heads * self.head_width, config.width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.head_width)) for p in (self.wq, self.wk, self.wv))
        q, k = _rotate(q, rotation), _rotate(k, rotation)
        k, v = (t.repeat_interleave(self.repeat, dim=2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The gated feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.width, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.width, bias=False)
        self.w3 = nn.Linear(config.width, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(config.width), nn.RMSNorm(config.width)
        self.attention, self.feed_forward = Attention(config), FeedForward(config)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The whole model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.output = nn.Linear(config.width, config.vocab, bias=False)
        self.register_buffer("rotation", make_rotation(config), persistent=False)

    def fill(self) -> None:
        """Values for parameters that were made without any."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)
        with torch.device(self.output.weight.device):
            self.rotation = make_rotation(self.config)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.rotation)
        return self.output(self.norm(x))
