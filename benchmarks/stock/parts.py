"""What the programs share: a small model, kernels that take time but no core, and a file of when steps were."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

FORWARD_S = 0.02  # of a layer on an accelerator; the backward takes twice as long
SLOWER_S = float(os.environ.get("SLOWER_S", "0"))  # that a slow rank computes longer, from a step on
SLOWER_FROM = int(os.environ.get("SLOWER_FROM", "0"))
WORDS, LENGTH = 512, 32


def build_model(layers: int = 4, width: int = 128) -> GPT2LMHeadModel:
    """A small GPT-2 whose layers take as long as they would on an accelerator."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=width, n_layer=layers, n_head=4)
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        add_kernel(block)
    return model


def add_kernel(layer: nn.Module) -> None:
    """Let a layer wait as long as its kernels would run."""
    layer.register_forward_pre_hook(lambda *_: time.sleep(FORWARD_S))
    layer.register_full_backward_pre_hook(lambda *_: time.sleep(2 * FORWARD_S))


class Words(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random words."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Truth:
    """Writes when each step of this rank began and ended, beside the program."""

    def __init__(self) -> None:
        self._file = Path(os.environ["STEPS_FILE"])
        self._file.write_text("")
        self._step, self._start = 0, 0

    def begin(self) -> None:
        """A step begins, in which a slow rank computes longer."""
        self._start = time.time_ns()
        if self._step >= SLOWER_FROM:
            time.sleep(SLOWER_S)

    def end(self) -> None:
        """It has ended."""
        line = json.dumps({"step": self._step, "start_ns": self._start, "end_ns": time.time_ns()})
        with self._file.open("a") as file:
            file.write(line + "\n")
        self._step += 1
