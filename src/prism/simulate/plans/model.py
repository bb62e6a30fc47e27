"""A transformer's shape, and what follows from it: parameters, FLOPs and message sizes."""

from __future__ import annotations

from dataclasses import dataclass

from prism.records.settings import Checked, number

# Dense BF16 tensor throughput without sparsity, FLOP/s (NVIDIA data sheets of A100, H100 SXM, H200 SXM, B200, GB200).
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "GB200": 2500e12}
GENERIC_PEAK_FLOPS = 100e12  # a GPU that is not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(Checked):
    """The sizes of a decoder-only transformer with gated feed-forward layers."""

    layers: int = number(32, 1, 1000)
    hidden: int = number(4096, 64, 100_000)
    ffn: int = number(14336, 64, 1_000_000)
    heads: int = number(32, 1, 1024)
    kv_heads: int = number(8, 1, 1024)
    vocab: int = number(128256, 256, 10_000_000)
    seq: int = number(8192, 16, 10_000_000)
    experts: int = number(0, 0, 4096)  # 0: dense
    top_k: int = number(2, 1, 64)
    tied: bool = False  # the output layer shares the embedding's weights

    @property
    def attention_params(self) -> int:
        """Of one layer: query, key, value and output projections."""
        return self.hidden * self.hidden * 2 + 2 * self.hidden * self.hidden * self.kv_heads // self.heads

    @property
    def ffn_params(self) -> int:
        """Of one feed-forward block, or of one expert: gate, up and down."""
        return 3 * self.hidden * self.ffn

    @property
    def embedding_params(self) -> int:
        """Of the embedding, and again of the output layer where it is not tied."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All parameters."""
        per_layer = self.attention_params + self.ffn_params * max(1, self.experts)
        return self.layers * per_layer + self.embedding_params * (1 if self.tied else 2)

    def layer_flops(self, tokens: int) -> float:
        """Forward FLOPs of one layer: two per active weight and token, and causal attention over the sequence."""
        active = self.attention_params + self.ffn_params * (self.top_k if self.experts else 1)
        return 2.0 * active * tokens + 2.0 * tokens * self.seq * self.hidden

    def logits_flops(self, tokens: int) -> float:
        """Forward FLOPs of the output layer."""
        return 2.0 * self.embedding_params * tokens


def _shape(
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    seq: int,
    experts: int = 0,
    top_k: int = 2,
    tied: bool = False,
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        vocab=vocab,
        seq=seq,
        experts=experts,
        top_k=top_k,
        tied=tied,
    )


# Shapes as their authors published them; GPT's feed-forward (4 x hidden, two matrices) as a gated one of equal size.
MODELS = {
    "gpt-1.3b": _shape(24, 2048, 5461, 16, 16, 50304, 2048, tied=True),
    "gpt-175b": _shape(96, 12288, 32768, 96, 96, 50304, 2048, tied=True),
    "llama-7b": _shape(32, 4096, 11008, 32, 32, 32000, 4096),
    "llama-8b": _shape(32, 4096, 14336, 32, 8, 128256, 8192),
    "llama-13b": _shape(40, 5120, 13824, 40, 40, 32000, 4096),
    "llama-70b": _shape(80, 8192, 28672, 64, 8, 32000, 4096),
    "llama-3-70b": _shape(80, 8192, 28672, 64, 8, 128256, 8192),
    "llama-405b": _shape(128, 16384, 53248, 128, 8, 128256, 8192),  # 126 layers, rounded to divide by stages
    "mistral-7b": _shape(32, 4096, 14336, 32, 8, 32000, 8192),
    "qwen2.5-7b": _shape(28, 3584, 18944, 28, 4, 152064, 4096),
    "qwen2.5-72b": _shape(80, 8192, 29568, 64, 8, 152064, 4096),
    "mixtral-8x7b": _shape(32, 4096, 14336, 32, 8, 32000, 4096, experts=8, top_k=2),
    "moe-16b": _shape(28, 2048, 1408, 16, 16, 102400, 4096, experts=64, top_k=6),
    "moe-57b": _shape(28, 3584, 2560, 28, 4, 151936, 4096, experts=64, top_k=8),
}
