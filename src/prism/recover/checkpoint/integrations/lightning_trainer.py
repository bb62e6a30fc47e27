"""Lightning's Trainer, unchanged: a callback that saves without stopping it and resumes in the middle of an epoch.

Lightning restores its loops but reads an ordinary data loader from its start again. So the random states from which an
epoch's order was drawn are saved too: the loader is started from them once more, and the batches done are passed over.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from prism.recover.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from prism.recover.checkpoint.integrations.automatic import (
    PlainStates,
    automatic_folder,
    open_checkpointer,
    random_states,
    set_random_states,
)
from prism.recover.checkpoint.train_state import TrainState
from prism.recover.manifest import Health
from prism.recover.progress import Progress


class LoopState(Stateful):
    """Lightning's account of steps, epochs and data, its schedulers, and this rank's random states."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.random = ""
        self.epoch_random = ""

    def state_dict(self) -> dict[str, Any]:
        """Everything as text: a fresh trainer does not have all its keys yet."""
        trainer, rank = self.trainer, self.trainer.global_rank
        schedulers = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
        return {
            "loops": json.dumps(trainer.fit_loop.state_dict()),
            "schedulers": PlainStates.pack(schedulers),
            "precision": PlainStates.pack(trainer.precision_plugin.state_dict()),
            f"random-{rank}": random_states(),
            f"epoch-random-{rank}": getattr(trainer.fit_loop._data_fetcher, "prism_random", ""),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it; the random states are restored once the data is at the same position."""
        trainer, rank = self.trainer, self.trainer.global_rank
        trainer.fit_loop.load_state_dict(json.loads(state_dict["loops"]))
        states = PlainStates.unpack(state_dict["schedulers"])
        for config, state in zip(trainer.lr_scheduler_configs, states, strict=False):
            config.scheduler.load_state_dict(state)
        trainer.precision_plugin.load_state_dict(PlainStates.unpack(state_dict["precision"]))
        self.random = state_dict.get(f"random-{rank}", "")
        self.epoch_random = state_dict.get(f"epoch-random-{rank}", "")


class Saving:
    """The hooks of a Lightning callback; `make_callback` mixes them into the callback class of the package in use."""

    def __init__(self, folder: Path | None = None, interval_steps: int | None = None) -> None:
        self.folder = folder  # None: as the supervisor's flags ask
        self.interval_steps = interval_steps
        self.checkpointer: Checkpointer | None = None
        self.last_step = self.saved_step = -1
        self.loss: float | None = None
        self.resumed = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Model and optimizers are ready: restore the newest good state."""
        self.progress = Progress.from_environment(trainer.global_rank)
        if self.folder is None:
            self.checkpointer = open_checkpointer(self.progress)
        else:
            config = CheckpointConfig(folder=self.folder, interval_steps=self.interval_steps)
            self.checkpointer = Checkpointer(config, self.progress)
        optimizers = trainer.optimizers[0] if len(trainer.optimizers) == 1 else trainer.optimizers
        self.loop = LoopState(trainer)
        self.state = {"train": TrainState(pl_module, optimizers), "trainer": self.loop}
        self.resumed = self.checkpointer.restore(self.state) is not None
        self.last_step = self.saved_step = trainer.global_step

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Advance the new loader to its earlier position, then replace Lightning's signal handlers."""
        assert self.checkpointer is not None
        if self.resumed:
            self._forward_data(trainer.fit_loop)
            self.resumed = False
        if self.checkpointer.notice is not None:
            # Lightning's own handler ends the training before anything is saved.
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self.checkpointer.notice._note)

    def _forward_data(self, fit_loop: Any) -> None:
        fetcher, batches = fit_loop._data_fetcher, fit_loop.epoch_loop.batch_progress
        if any(hasattr(loader, "load_state_dict") for loader in fit_loop._combined_loader.flattened):
            return  # Lightning restores a loader that has a state of its own
        if self.loop.epoch_random and not batches.is_last_batch:
            set_random_states(self.loop.epoch_random)
            _set_epoch(fit_loop)
            iter(fetcher)
            for _ in range(batches.current.ready):
                next(fetcher)
            fetcher.fetched = 0  # Lightning adds what was ready itself
        elif self.loop.random:
            set_random_states(self.loop.random)
            iter(fetcher)
        if self.loop.random:
            set_random_states(self.loop.random)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After every batch that ended in an optimizer step: report, save when a save is due, end at a preemption."""
        assert self.checkpointer is not None
        step = trainer.global_step
        if step == self.last_step:
            return
        self.last_step = step
        found = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.loss = None if found is None else float(found.detach() if hasattr(found, "detach") else found)
        self.progress.step(step, loss=self.loss, batch=batch_idx)
        reason = self.checkpointer.should_save(step)
        if reason:
            self._save(self.checkpointer)
        if reason == "preemption":
            self._close()
            sys.stdout.flush()
            sys.exit(0)  # the code after the training expects a complete one

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step too, so that training is not repeated if the script fails after it."""
        if self.checkpointer is not None and self.saved_step != self.last_step:
            self._save(self.checkpointer)

    def _save(self, checkpointer: Checkpointer) -> None:
        checkpointer.save(self.last_step, self.state, Health(loss=self.loss))
        self.saved_step = self.last_step

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """No steps for a while."""
        if trainer.global_rank == 0 and self.checkpointer is not None:
            self.progress.event("paused", what="validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Steps again."""
        if trainer.global_rank == 0 and self.checkpointer is not None:
            self.progress.event("resumed")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The end of the fit; the script may do other work after it, so no steps are expected."""
        self._close()
        if stage == "fit" and trainer.global_rank == 0:
            self.progress.event("paused", what="after training")

    def _close(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.close()
            self.checkpointer = None


def make_callback(parent: Any, folder: Path | None = None, interval_steps: int | None = None) -> Any:
    """Our callback as one of the Lightning package in use, `lightning` or `pytorch_lightning`."""
    return type("PrismCallback", (Saving, parent), {})(folder, interval_steps)


def attach(module: Any) -> None:
    """Give every Trainer of `lightning.pytorch.trainer.trainer` our callback."""
    if automatic_folder() is None:
        return
    package = module.__name__.removesuffix(".trainer.trainer")
    _note_random_states(sys.modules[f"{package}.loops.fetchers"]._DataFetcher)
    trainer_class, parent = module.Trainer, sys.modules[f"{package}.callbacks"].Callback
    original = trainer_class.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if not any(isinstance(callback, Saving) for callback in self.callbacks):
            self.callbacks.insert(0, make_callback(parent))

    trainer_class.__init__ = initialise


def _note_random_states(fetcher_class: Any) -> None:
    """Remember from which random states an epoch's order is drawn."""
    original = fetcher_class.__iter__

    @functools.wraps(original)
    def start(self: Any) -> Any:
        self.prism_random = random_states()
        return original(self)

    fetcher_class.__iter__ = start


def _set_epoch(fit_loop: Any) -> None:
    for loader in fit_loop._combined_loader.flattened:
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(fit_loop.epoch_progress.current.processed)
