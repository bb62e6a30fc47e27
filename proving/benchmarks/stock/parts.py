"""What the programs share: a small model, kernels that take time but no core, and a file of when steps were."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

FORWARD_S = float(os.environ.get("FORWARD_S", "0.02"))  # of a layer on an accelerator; the backward is twice as long
SLOWER_S = float(os.environ.get("SLOWER_S", "0"))  # that a slow rank computes longer, from a step on
SLOWER_TIMES = float(os.environ.get("SLOWER_TIMES", "1"))  # as long as usual that its kernels take from then on
SLOWER_FROM = int(os.environ.get("SLOWER_FROM", "0"))
# After every few steps rank 0 writes a checkpoint for which the others wait, or all evaluate, a second long.
SAVE_EVERY, EVALUATE_EVERY = (int(os.environ.get(name, "0")) for name in ("SAVE_EVERY", "EVALUATE_EVERY"))
WORDS, LENGTH = 512, 32


def build_model() -> GPT2LMHeadModel:
    """A small GPT-2 whose layers take as long as they would on an accelerator."""
    layers, width = (int(os.environ.get(name, usual)) for name, usual in (("LAYERS", "4"), ("WIDTH", "128")))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=width, n_layer=layers, n_head=4)
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        add_kernel(block)
    return model


def add_kernel(layer: nn.Module) -> None:
    """Let a layer wait as long as its kernels would run."""
    layer.register_forward_pre_hook(lambda *_: run_kernels(FORWARD_S))
    layer.register_full_backward_pre_hook(lambda *_: run_kernels(2 * FORWARD_S))


def run_kernels(seconds: float) -> None:
    """Wait as long as kernels run; on a slow accelerator all of them take longer, from a step on."""
    time.sleep(seconds * (SLOWER_TIMES if Truth.steps >= SLOWER_FROM else 1))


class Words(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random words."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Truth:
    """Writes when each step of this rank began and ended, beside the program."""

    steps = 0  # that this rank has done

    def __init__(self) -> None:
        self._file = Path(os.environ["STEPS_FILE"])
        self._file.write_text("")
        self._start, self._delay = 0, 0

    def begin(self) -> None:
        """A step begins, in which a slow rank computes longer."""
        self._start, self._delay = time.time_ns(), _read_delay()
        if Truth.steps >= SLOWER_FROM:
            time.sleep(SLOWER_S)

    def end(self) -> None:
        """It has ended."""
        told = {"step": Truth.steps, "start_ns": self._start, "end_ns": time.time_ns()}
        with self._file.open("a") as file:
            file.write(json.dumps(told | {"delay_ns": _read_delay() - self._delay}) + "\n")
        Truth.steps += 1
        if EVALUATE_EVERY and Truth.steps % EVALUATE_EVERY == 0:
            time.sleep(1)
        if SAVE_EVERY and Truth.steps % SAVE_EVERY == 0 and os.environ["RANK"] == "0":
            time.sleep(1)


def _read_delay() -> int:
    """How long this rank has waited for a core of the machine in all, in nanoseconds."""
    return int(Path("/proc/self/schedstat").read_text().split()[1])
