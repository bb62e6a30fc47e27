"""A small transformer over bytes in numpy, its weights mapped from a safetensors file. For demos and tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prism.evaluate.run.checkpoints.convert import write_tensors
from prism.evaluate.run.checkpoints.tensors import Tensor
from prism.evaluate.run.models.model import TINY, Continuation

_VOCABULARY = 256
_WEIGHTS = "model.safetensors"

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """The shape of a tiny model."""

    width: int = 32
    layers: int = 2
    heads: int = 4
    context: int = 128  # longest text it sees; of a longer one the end


def write_tiny(folder: Path, seed: int, config: TinyConfig | None = None) -> None:
    """Make a randomly initialised tiny model."""
    config = config or TinyConfig()
    rng = np.random.default_rng(seed)
    shapes = {"embed": (_VOCABULARY, config.width), "place": (config.context, config.width)}
    for layer in range(config.layers):
        shapes |= {f"{layer}.qkv": (config.width, 3 * config.width), f"{layer}.out": (config.width, config.width)}
        shapes |= {f"{layer}.up": (config.width, 4 * config.width), f"{layer}.down": (4 * config.width, config.width)}
    tensors = {n: rng.normal(0, s[0] ** -0.5, s).astype(np.float32) for n, s in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / _WEIGHTS, tensors)
    (folder / "config.json").write_text(json.dumps({"model_type": TINY, **asdict(config)}))


def write_safetensors(path: Path, tensors: dict[str, Array]) -> None:
    """Write float32 tensors as safetensors."""
    write_tensors(
        path, {name: Tensor("float32", held.shape, partial(np.asarray, held)) for name, held in tensors.items()}
    )


def map_safetensors(path: Path) -> dict[str, Array]:
    """The float32 tensors of a file, mapped and not copied."""
    mapped = np.memmap(path, np.uint8, "r")
    (length,) = struct.unpack("<Q", mapped[:8].tobytes())
    header = json.loads(mapped[8 : 8 + length].tobytes())
    data = mapped[8 + length :]
    return {
        name: data[slice(*entry["data_offsets"])].view(np.float32).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


class TinyModel:
    """A tiny model; every text is computed alone, so that answers do not depend on the batch."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.config = TinyConfig(**{k: v for k, v in config.items() if k != "model_type"})
        self.weights = map_safetensors(folder / _WEIGHTS)

    def likelihoods(self, asked: Sequence[Continuation], batch: int) -> list[float]:
        """How likely each continuation is."""
        return [self._likelihood(one) for one in asked]

    def generate(self, prompts: Sequence[str], max_tokens: int, batch: int) -> list[str]:
        """Bytes that come next, by greedy choice."""
        out = []
        for prompt in prompts:
            tokens = list(prompt.encode()) or [0]
            for _ in range(max_tokens):
                tokens.append(int(self._logits(tokens)[-1].argmax()))
            out.append(bytes(tokens[-max_tokens:]).decode("latin-1") if max_tokens else "")
        return out

    def _likelihood(self, one: Continuation) -> float:
        after = list(one.continuation.encode())
        tokens = [0, *one.context.encode(), *after]
        logits = self._logits(tokens[:-1])[-len(after) :]
        after = after[-len(logits) :]  # of a continuation longer than the context, its end
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return float(log_probabilities[np.arange(len(after)), after].sum(dtype=np.float64))

    def _logits(self, tokens: Sequence[int]) -> Array:
        w, c = self.weights, self.config
        seen = np.asarray(tokens[-c.context :])
        x = w["embed"][seen] + w["place"][: len(seen)]
        past = np.tril(np.ones((len(seen), len(seen)), bool))
        for layer in range(c.layers):
            x = x + self._attend(_normalise(x) @ w[f"{layer}.qkv"], past) @ w[f"{layer}.out"]
            x = x + np.maximum(_normalise(x) @ w[f"{layer}.up"], 0) @ w[f"{layer}.down"]
        logits: Array = _normalise(x) @ w["embed"].T * np.float32(c.width**0.5)
        return logits

    def _attend(self, qkv: Array, past: NDArray[np.bool_]) -> Array:
        heads = self.config.heads
        q, k, v = (part.reshape(len(part), heads, -1).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))
        scores = np.where(past, q @ k.swapaxes(1, 2) / np.float32(q.shape[-1] ** 0.5), np.float32(-1e9))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
        joined: Array = mixed.swapaxes(0, 1).reshape(len(qkv), -1)
        return joined


def _normalise(x: Array) -> Array:
    scale: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-6))
    return scale
