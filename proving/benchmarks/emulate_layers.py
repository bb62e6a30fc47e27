"""Time one layer of each kind of the published models on this GPU, as one rank of the run's own layout holds it.

The layers are plain torch in bfloat16 with flash attention: a rank's slice by tensor parallelism, with norms over its
slice of the sequence; context parallelism is taken as fewer heads over the whole sequence, which is as much work.
Communication is not in these times. `emulate_mlperf.py` reads them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from machine import describe_machine

WARMUP, REPEATS = 4, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A published model, as its authors gave it."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    gated: bool = True
    lora_rank: int = 0  # 0: all weights are trained


SHAPES = {
    "gpt3": Shape(hidden=12288, ffn=49152, heads=96, kv_heads=96, vocab=51200, seq=2048, gated=False),
    "llama31_405b": Shape(hidden=16384, ffn=53248, heads=128, kv_heads=8, vocab=128256, seq=8192),
    "llama2_70b_lora": Shape(hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=32000, seq=8192, lora_rank=16),
}
# (model, tensor, context, micro-batch) of the runs in the table
CASES = (
    ("gpt3", 4, 1, 1), ("gpt3", 4, 1, 2), ("llama31_405b", 8, 2, 1), ("llama31_405b", 4, 2, 1),
    ("llama2_70b_lora", 4, 1, 1), ("llama2_70b_lora", 4, 2, 1), ("llama2_70b_lora", 2, 1, 1),
    ("llama2_70b_lora", 1, 2, 1), ("llama2_70b_lora", 1, 8, 1), ("llama2_70b_lora", 1, 1, 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What one rank takes for one micro-batch, and holds between forward and backward."""

    model: str
    tensor_parallel: int
    context_parallel: int
    micro_batch: int
    forward_ns: int
    backward_ns: int
    logits_forward_ns: int
    logits_backward_ns: int
    activation_bytes: int
    optimizer_ns_per_parameter: float


class Projection(nn.Module):
    """A rank's slice of a linear layer; with LoRA the weight is frozen and two thin ones are trained."""

    def __init__(self, inside: int, outside: int, lora_rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outside, inside) * 0.01, requires_grad=lora_rank == 0)
        self.down = nn.Parameter(torch.randn(lora_rank, inside) * 0.01) if lora_rank else None
        self.up = nn.Parameter(torch.zeros(outside, lora_rank)) if lora_rank else None

    def forward(self, x: Tensor) -> Tensor:
        """x times the weight, and the low-rank part."""
        out = F.linear(x, self.weight)
        return out if self.down is None or self.up is None else out + F.linear(F.linear(x, self.down), self.up)


class Layer(nn.Module):
    """One transformer layer of one rank."""

    def __init__(self, shape: Shape, tp: int, cp: int) -> None:
        super().__init__()
        self.shape, self.tp, self.cp = shape, tp, cp
        self.heads, self.kv = max(shape.heads // tp, 1), max(shape.kv_heads // tp, 1)
        self.size = shape.hidden // shape.heads
        rank = shape.lora_rank
        self.norm1, self.norm2 = nn.RMSNorm(shape.hidden), nn.RMSNorm(shape.hidden)
        self.qkv = Projection(shape.hidden, (self.heads + 2 * self.kv) * self.size, rank)
        self.out = Projection(self.heads * self.size, shape.hidden, rank)
        self.up = Projection(shape.hidden, shape.ffn // tp * (2 if shape.gated else 1), rank)
        self.down = Projection(shape.ffn // tp, shape.hidden, rank)

    def forward(self, x: Tensor) -> Tensor:
        """x is batch, length / context, width."""
        x = x + self.out(self._attend(self.qkv(_norm_slice(self.norm1, x, self.tp))))
        hidden = self.up(_norm_slice(self.norm2, x, self.tp))
        if self.shape.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * value
        else:
            hidden = F.gelu(hidden)
        return x + self.down(hidden)

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, length, _ = qkv.shape
        q, k, v = qkv.split([self.heads * self.size, self.kv * self.size, self.kv * self.size], dim=-1)
        # The whole sequence with a part of the heads is as much work as a part of the sequence with all of them.
        q, k, v = (self._over_sequence(t, heads) for t, heads in ((q, self.heads), (k, self.kv), (v, self.kv)))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.transpose(1, 2).reshape(batch, length, self.heads * self.size)

    def _over_sequence(self, t: Tensor, heads: int) -> Tensor:
        batch, length, _ = t.shape
        kept = max(heads // self.cp, 1)
        rows = t.reshape(batch, -1, self.size)[:, : length * self.cp * kept]
        if rows.shape[1] < length * self.cp * kept:  # fewer key heads than context ranks
            rows = rows.repeat(1, self.cp, 1)[:, : length * self.cp * kept]
        return rows.view(batch, length * self.cp, kept, self.size).transpose(1, 2)


def _norm_slice(norm: nn.Module, x: Tensor, tp: int) -> Tensor:
    """Sequence parallelism: a rank normalises its part of the sequence; gathering the parts is communication."""
    if tp == 1:
        return norm(x)
    own = norm(x[:, : x.shape[1] // tp])
    return own.repeat(1, tp, 1)


def time_case(model: str, tp: int, cp: int, micro: int) -> LayerTimes:
    """One layer and the output layer, forward and backward."""
    shape = SHAPES[model]
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        layer = Layer(shape, tp, cp)
        head = Projection(shape.hidden, shape.vocab // tp, 1 if shape.lora_rank else 0)
        x = torch.randn(micro, shape.seq // cp, shape.hidden, requires_grad=True)
        labels = torch.randint(shape.vocab // tp, (micro * shape.seq // cp,))
        forward, backward, held = _time(lambda: layer(x))
        logits = _time(lambda: F.cross_entropy(head(x).flatten(0, 1).float(), labels))
        torch.set_default_dtype(torch.float32)
    return LayerTimes(
        model=model, tensor_parallel=tp, context_parallel=cp, micro_batch=micro, forward_ns=forward,
        backward_ns=backward, logits_forward_ns=logits[0], logits_backward_ns=logits[1], activation_bytes=held,
        optimizer_ns_per_parameter=_time_optimizer(),
    )  # fmt: skip


def _time(run: Callable[[], Tensor]) -> tuple[int, int, int]:
    """Medians of forward and backward, and the bytes that forward leaves for backward."""
    forward, backward, held = [], [], 0
    for _ in range(WARMUP + REPEATS):
        before = torch.cuda.memory_allocated()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        out = run()
        marks[1].record()
        held = torch.cuda.memory_allocated() - before
        out.backward(torch.ones_like(out))
        marks[2].record()
        torch.cuda.synchronize()
        forward.append(marks[0].elapsed_time(marks[1]))
        backward.append(marks[1].elapsed_time(marks[2]))
        del out
    return round(statistics.median(forward[WARMUP:]) * 1e6), round(statistics.median(backward[WARMUP:]) * 1e6), held


def _time_optimizer(count: int = 1 << 27) -> float:
    weight = torch.zeros(count, device="cuda", requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    walls = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        walls.append(begin.elapsed_time(end))
    return statistics.median(walls[2:]) * 1e6 / count


def main() -> None:
    """Time every case and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data" / "layer_times.json")
    args = parser.parse_args()
    rows = []
    for case in CASES:
        found = time_case(*case)
        rows.append(asdict(found))
        print(
            f"{found.model:16} tp {case[1]} cp {case[2]} micro {case[3]}: forward {found.forward_ns / 1e6:.3f} ms, "
            f"backward {found.backward_ns / 1e6:.3f} ms, output {found.logits_forward_ns / 1e6:.3f} + "
            f"{found.logits_backward_ns / 1e6:.3f} ms, held {found.activation_bytes / 2**20:.0f} MiB",
            flush=True,
        )
        torch.cuda.empty_cache()
    document = {
        "made_by": "proving/benchmarks/emulate_layers.py", "machine": describe_machine(), "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(), "dtype": "bfloat16", "repeats": REPEATS, "layers": rows,
    }  # fmt: skip
    args.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
