"""torchtitan, unchanged: where its own checkpoints are off, its trainer's calls to save and load are answered by Prism.

The trainer calls its checkpoint manager at the start and after every step, and hands it model, optimizers, schedules,
data loader and its own counters as states. A script that has torchtitan's checkpoints enabled keeps them.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from prism.recover.checkpoint.integrations.automatic import (
    automatic_folder,
    open_checkpointer,
    random_states,
    set_random_states,
)
from prism.recover.progress import Progress


class Optimizers(Stateful):
    """torchtitan's container of optimizers; reading the state of fresh ones changes nothing."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def state_dict(self) -> dict[str, Any]:
        """Flat, by parameter names."""
        fresh = [one for one in self.container.optimizers if not one.state]
        found: dict[str, Any] = self.container.state_dict()
        for one in fresh:
            # torchtitan creates the moments by a step, which Adam's bias correction would count as a real one.
            one.state.clear()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state."""
        self.container.load_state_dict(state_dict)


class RandomStates(Stateful):
    """The random generators of this rank, which torchtitan does not keep."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def state_dict(self) -> dict[str, Any]:
        """As text, under the rank's name."""
        return {f"rank-{self.rank}": random_states()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        set_random_states(state_dict[f"rank-{self.rank}"])


class Session:
    """One training under Prism."""

    def __init__(self, model: Any, parts: dict[str, Any]) -> None:
        self.progress = Progress.from_environment()
        self.checkpointer = open_checkpointer(self.progress)
        self.state: dict[str, Any] = {
            "model": model,
            "optimizer": Optimizers(parts["optimizers"]),
            "lr_scheduler": parts["lr_schedulers"],
            **parts["states"],
            "random": RandomStates(self.progress.rank),
        }
        if parts["dataloader"] is not None:
            self.state["dataloader"] = parts["dataloader"]

    def load(self) -> bool:
        """Whether there was something to continue from."""
        return self.checkpointer.restore(self.state) is not None

    def save(self, step: int, last_step: bool) -> bool:
        """After every step: report, save when a save is due, end at a preemption."""
        self.progress.step(step)
        reason = self.checkpointer.should_save(step)
        if reason is None and not last_step:
            return False
        self.checkpointer.save(step, self.state)
        if reason == "preemption":
            self.checkpointer.close()
            sys.stdout.flush()
            sys.exit(0)
        return True


def attach(module: Any) -> None:
    """Add our steps to the manager of `torchtitan.components.checkpointer.dcp`."""
    if automatic_folder() is None:
        return
    manager = module.CheckpointManager
    for name in ("load", "save", "close"):
        if not hasattr(manager, name):
            raise RuntimeError(f"torchtitan 0.3 or newer is needed; this CheckpointManager has no {name}")
    manager.prism_session = None
    manager.__init__ = _wrap_init(manager.__init__, module.ModelWrapper)
    for name, wrap in _WRAPPERS.items():
        setattr(manager, name, wrap(getattr(manager, name)))


def _wrap_init(init: Any, model_wrapper: Any) -> Any:
    @functools.wraps(init)
    def run(self: Any, config: Any, **parts: Any) -> None:
        init(self, config, **parts)
        if config.enable:
            sys.stderr.write("prism: torchtitan's own checkpoints are enabled and stay in use\n")
            return
        self.prism_session = Session(model_wrapper(parts["model_parts"]), parts)

    return run


def _wrap_load(load: Any) -> Any:
    @functools.wraps(load)
    def run(self: Any, step: int = -1) -> bool:
        return bool(load(self, step) if self.prism_session is None else self.prism_session.load())

    return run


def _wrap_save(save: Any) -> Any:
    @functools.wraps(save)
    def run(self: Any, curr_step: int, last_step: bool = False) -> bool:
        session = self.prism_session
        return bool(save(self, curr_step, last_step) if session is None else session.save(curr_step, last_step))

    return run


def _wrap_close(close: Any) -> Any:
    @functools.wraps(close)
    def run(self: Any) -> None:
        session, self.prism_session = self.prism_session, None
        if session is not None:
            session.checkpointer.close()
        close(self)

    return run


_WRAPPERS = {"load": _wrap_load, "save": _wrap_save, "close": _wrap_close}
