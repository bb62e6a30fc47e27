"""A model and its optimizer as one state that can be restored into a fresh process, also of another world size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import _init_optim_state, get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer


class TrainState(Stateful):
    """Model and optimizer under names that do not depend on DDP, FSDP2 or tensor parallel wrapping.

    A bare optimizer has no state before its first step, so a restore into it would silently lose its moments;
    this makes them first.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer state, with their sharding; reading it changes nothing."""
        fresh = not self.optimizer.state
        model, optimizer = get_state_dict(self.model, self.optimizer)
        if fresh:
            # torch creates the moments by a step, which Adam's bias correction would count as a real one.
            self.optimizer.state.clear()
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into model and optimizer."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )


class OptimizerState(Stateful):
    """An optimizer that was passed by itself; like TrainState, it has a place for moments before the first step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Its state with text as keys: torch's checkpoints turn the numbers of parameters into text."""
        fresh = not self.optimizer.state
        _init_optim_state(self.optimizer)
        found = self.optimizer.state_dict()
        if fresh:
            self.optimizer.state.clear()
        return {**found, "state": {str(key): value for key, value in found["state"].items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it with numbers as keys again."""
        numbered = {int(key): value for key, value in state_dict["state"].items()}
        self.optimizer.load_state_dict({**state_dict, "state": numbered})


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with a state dict in place of everything that has one."""
    wrapped = wrap_optimizers(state)
    return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in wrapped.items()}


def wrap_optimizers(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with optimizers that get their moments back."""
    return {name: OptimizerState(value) if isinstance(value, Optimizer) else value for name, value in state.items()}
