"""Shared by all integrations: where checkpoints go, states as text, random states, and the end at a preemption."""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path
from typing import Any

import torch

from prism.recover.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from prism.recover.progress import AUTO_FOLDER, AUTO_INTERVAL, Progress


def automatic_folder() -> Path | None:
    """Where automatic checkpoints go; None outside a supervised run that asked for them."""
    named = os.environ.get(AUTO_FOLDER, "")
    return Path(named) if named else None


def open_checkpointer(progress: Progress) -> Checkpointer:
    """The checkpointer of this rank, as the supervisor's flags ask."""
    folder = automatic_folder()
    assert folder is not None
    interval = os.environ.get(AUTO_INTERVAL, "")
    return Checkpointer(CheckpointConfig(folder=folder, interval_steps=int(interval) if interval else None), progress)


def random_states() -> str:
    """The states of the random generators of Python, NumPy and torch on this rank, as text."""
    kind, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": [kind, list(words), gauss],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else [],
    }
    numpy = _numpy()
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        states["numpy"] = [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return json.dumps(states)


def set_random_states(text: str) -> None:
    """Set the generators to the states from `random_states`."""
    states = json.loads(text)
    kind, words, gauss = states["python"]
    random.setstate((kind, tuple(words), gauss))
    torch.set_rng_state(_tensor(states["torch"]))
    numpy = _numpy()
    if numpy is not None and "numpy" in states:
        name, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_tensor(state) for state in states["cuda"]])


class PlainStates:
    """Small state dictionaries of numbers, lists and tensors as JSON: a checkpoint holds it as one value."""

    @staticmethod
    def pack(state: Any) -> str:
        """A state as text."""
        return json.dumps(state, default=_encode)

    @staticmethod
    def unpack(text: str) -> Any:
        """The state again."""
        return json.loads(text, object_hook=_decode)


def _encode(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return {"prism.scalar": value.item(), "dtype": str(value.dtype)}
        raise TypeError("a tensor is too large to be kept as text")
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be kept in a checkpoint as text")


def _decode(document: dict[str, Any]) -> Any:
    if "prism.scalar" in document:
        return torch.tensor(document["prism.scalar"], dtype=getattr(torch, document["dtype"].removeprefix("torch.")))
    return document


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
