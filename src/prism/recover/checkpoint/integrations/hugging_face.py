"""Hugging Face's Trainer, unchanged: saves that do not stop it, and a resume from the newest good state.

The Trainer's own steps are kept: after it has made model, optimizer and scheduler, they are filled; the epochs before
the restored step are passed over, and its own code skips the batches of the epoch it was in.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from prism.recover.checkpoint.checkpointer import Checkpointer
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

_MARK = "prism"  # what the Trainer's own code is told to resume from; its loaders are not used


class LoopState(Stateful):
    """Scheduler, the Trainer's own state, and this rank's random states."""

    def __init__(self, trainer: Any, rank: int) -> None:
        self.trainer = trainer
        self.rank = rank
        self.random = ""

    def state_dict(self) -> dict[str, Any]:
        """Everything as text, each value under one name."""
        trainer = self.trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        return {
            "trainer": _describe(trainer.state),
            "scheduler": PlainStates.pack(trainer.lr_scheduler.state_dict()) if trainer.lr_scheduler else "",
            "scaler": PlainStates.pack(scaler.state_dict()) if scaler is not None else "",
            f"random-{self.rank}": random_states(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it; the random states are restored after the batches have been skipped."""
        trainer = self.trainer
        for name, value in json.loads(state_dict["trainer"]).items():
            if name not in ("stateful_callbacks", "max_steps", "num_train_epochs") and hasattr(trainer.state, name):
                setattr(trainer.state, name, value)
        if state_dict["scheduler"]:
            trainer.lr_scheduler.load_state_dict(PlainStates.unpack(state_dict["scheduler"]))
        scaler = getattr(trainer.accelerator, "scaler", None)
        if state_dict["scaler"] and scaler is not None:
            scaler.load_state_dict(PlainStates.unpack(state_dict["scaler"]))
        self.random = state_dict.get(f"random-{self.rank}", "")


class Session:
    """One call of `Trainer.train` under Prism."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.progress = Progress.from_environment(trainer.args.process_index)
        self.checkpointer: Checkpointer | None = None
        self.state: dict[str, Any] = {}
        self.loop = LoopState(trainer, trainer.args.process_index)
        self.loss: float | None = None
        self.norm: float | None = None
        self.restored_step = 0
        self.paused = False

    def open(self, steps_per_epoch: int) -> None:
        """Restore the newest good state into the objects that the Trainer has just created."""
        trainer = self.trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # without accelerate's wrapper
        self.checkpointer = open_checkpointer(self.progress)
        self.state = {"train": TrainState(trainer.model_wrapped, optimizer), "loop": self.loop}
        restored = self.checkpointer.restore(self.state)
        self.restored_step = restored.step if restored is not None else 0
        self.epoch, self.skipped = divmod(self.restored_step, steps_per_epoch)

    def step_end(self, control: Any) -> None:
        """After every optimizer step: report, save when a save is due and after the last step, end at a preemption."""
        assert self.checkpointer is not None
        step = self.trainer.state.global_step
        self.progress.step(step)
        reason = self.checkpointer.should_save(step)
        if reason or step >= self.trainer.state.max_steps:
            self.checkpointer.save(step, self.state, Health(loss=self.loss, grad_norm=self.norm))
        if reason == "preemption":
            control.should_training_stop = True

    def evaluating(self, begins: bool) -> None:
        """Report that the Trainer does something other than steps, or continues with them."""
        if begins != self.paused and self.progress.rank == 0:
            self.progress.event("paused" if begins else "resumed", what="evaluation")
        self.paused = begins

    def logged(self, logs: dict[str, Any]) -> None:
        """Keep the loss, which the Trainer logs every few steps."""
        self.loss = _number(logs.get("loss"))
        self.norm = _number(logs.get("grad_norm"))
        if self.loss is not None:
            self.progress.step(self.trainer.state.global_step, loss=self.loss, grad_norm=self.norm)

    def close(self) -> None:
        """Finish the writes. A preempted job exits here: the code after the training expects a complete one."""
        if self.checkpointer is None:
            return
        preempted = self.checkpointer.preempted
        self.checkpointer.close()
        self.checkpointer = None
        if preempted:
            sys.stdout.flush()
            sys.exit(0)


def attach(module: Any) -> None:
    """Add our steps to the Trainer class of `transformers.trainer`."""
    if automatic_folder() is None:
        return
    trainer_class = module.Trainer
    needed = ("train", "_prepare_for_training", "_run_epoch", "_load_rng_state", "_init_training_state")
    missing = [name for name in needed if not hasattr(trainer_class, name)]
    if missing:
        raise RuntimeError(f"transformers 5 or newer is needed; this Trainer has no {missing[0]}")
    callback_class = _make_callback(module.TrainerCallback)
    for name, wrap in _WRAPPERS.items():
        setattr(trainer_class, name, wrap(getattr(trainer_class, name), callback_class))


def _make_callback(parent: Any) -> Any:
    class PrismCallback(parent):  # type: ignore[misc]
        """The Trainer's hook between steps."""

        def __init__(self, session: Session) -> None:
            self.session = session

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.session.step_end(control)

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.session.evaluating(False)

        def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.session.evaluating(True)

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.session.evaluating(True)  # the script may do other work after training; no steps are expected

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            self.session.logged(logs or {})

    return PrismCallback


def _wrap_train(train: Any, callback_class: Any) -> Any:
    @functools.wraps(train)
    def run(self: Any, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        if resume_from_checkpoint or self.is_deepspeed_enabled:
            # A checkpoint that the script names itself is the script's decision; DeepSpeed has its own format.
            return train(self, resume_from_checkpoint, *args, **options)
        self.prism_session = Session(self)
        callback = callback_class(self.prism_session)
        self.add_callback(callback)
        try:
            found = train(self, None, *args, **options)
            self.prism_session.close()
            return found
        finally:
            self.remove_callback(callback)
            self.prism_session = None

    return run


def _wrap_prepare(prepare: Any, callback_class: Any) -> Any:
    @functools.wraps(prepare)
    def run(self: Any, max_steps: int, train_dataloader: Any, *args: Any, **options: Any) -> Any:
        found = prepare(self, max_steps, train_dataloader, *args, **options)
        session = getattr(self, "prism_session", None)
        if session is not None:
            session.open(self.prism_steps_per_epoch)
        return found

    return run


def _wrap_init_state(initialise: Any, callback_class: Any) -> Any:
    @functools.wraps(initialise)
    def run(self: Any, max_steps: int, num_update_steps_per_epoch: int, *args: Any, **options: Any) -> Any:
        self.prism_steps_per_epoch = num_update_steps_per_epoch
        return initialise(self, max_steps, num_update_steps_per_epoch, *args, **options)

    return run


def _wrap_epoch(run_epoch: Any, callback_class: Any) -> Any:
    @functools.wraps(run_epoch)
    def run(self: Any, **options: Any) -> Any:
        session = getattr(self, "prism_session", None)
        if session is None or not session.restored_step or options["epoch"] > session.epoch:
            return run_epoch(self, **options)
        if options["epoch"] < session.epoch or session.restored_step >= self.state.max_steps:
            return None
        skipped = session.skipped * self.args.gradient_accumulation_steps
        options |= {"epochs_trained": session.epoch, "resume_from_checkpoint": _MARK}
        return run_epoch(self, **options | {"steps_trained_in_current_epoch": skipped})

    return run


def _wrap_random(load: Any, callback_class: Any) -> Any:
    @functools.wraps(load)
    def run(self: Any, checkpoint: Any) -> Any:
        if checkpoint != _MARK:
            return load(self, checkpoint)
        if self.prism_session.loop.random:
            set_random_states(self.prism_session.loop.random)
        return None

    return run


_WRAPPERS = {
    "train": _wrap_train,
    "_init_training_state": _wrap_init_state,
    "_prepare_for_training": _wrap_prepare,
    "_run_epoch": _wrap_epoch,
    "_load_rng_state": _wrap_random,
}


def _describe(state: Any) -> str:
    """The Trainer's state without its references to callbacks, which it creates again."""
    fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}
    return json.dumps({name: value for name, value in fields.items() if name != "stateful_callbacks"}, default=_number)


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value.item() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError):
        return None
