"""DeepSpeed, unchanged: its own checkpoints written in the background, and a resume to the exact step.

A DeepSpeed script has a loop of its own, which nobody can enter in the middle. So after a restart the loop begins anew,
and the steps up to the restored one are passed over: data are read and the forward pass runs without gradients, so that
the script sees results of the usual shape; backward pass and optimizer do nothing. At the restored step weights,
optimizer, schedule and random states are loaded, and the run goes on as if it had never stopped. This needs a loop that
reads the same data in the same order each time.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from prism.recover.checkpoint.integrations.automatic import automatic_folder, random_states, set_random_states
from prism.recover.checkpoint.integrations.deepspeed_files import BackgroundFiles, find_proven, step_of
from prism.recover.checkpoint.preemption import PreemptionNotice
from prism.recover.checkpoint.ranks import LaggedVote, Ranks
from prism.recover.interval import IntervalConfig, SaveClock
from prism.recover.progress import AUTO_INTERVAL, Progress


class Session:
    """One DeepSpeed engine under Prism."""

    def __init__(self, engine: Any) -> None:
        folder = automatic_folder()
        assert folder is not None
        self.engine, self.folder = engine, folder
        self.ranks = Ranks()
        self.progress = Progress.from_environment(self.ranks.rank)
        self.clock = SaveClock(IntervalConfig(), self.progress.orders.num_failures, self.progress.orders.uptime_s)
        self.interval = int(os.environ.get(AUTO_INTERVAL) or 0)
        self.files = BackgroundFiles(folder, self.ranks.rank, self.ranks.world_size)
        self.notice = PreemptionNotice()
        self._told_to_go = LaggedVote(self.ranks)
        self.tag = self.ranks.on_first(lambda: find_proven(folder))
        self.passed = 0  # optimizer steps of the script's loop so far, including skipped ones
        self.micro_steps = 0
        self._next_save: int | None = None
        atexit.register(self.files.close)
        if self.passing and self.ranks.rank == 0:
            self.progress.event("paused", what="passing over the steps of earlier attempts")

    @property
    def passing(self) -> bool:
        """Whether the loop has yet to reach the restored step."""
        return self.tag is not None

    def pass_over(self) -> None:
        """Count a micro-step of the loop that was done in an earlier attempt."""
        self.micro_steps += 1
        if self.micro_steps % self.engine.gradient_accumulation_steps():
            return
        self.passed += 1
        assert self.tag is not None
        if self.passed == step_of(self.tag):
            self._load(self.tag)

    def _load(self, tag: str) -> None:
        self.tag = None
        path, kept = self.engine.prism_load(str(self.folder), tag=tag)
        if path is None:
            raise RuntimeError(f"{self.folder / tag}: DeepSpeed could not load it")
        set_random_states(kept[f"prism-random-{self.ranks.rank}"] if kept else "")
        if self.ranks.rank == 0:
            self.progress.event("resumed")
            self.progress.event("restored", step=self.passed, source="storage")

    def step_done(self) -> None:
        """After every optimizer step: report, save when a save is due, end at a preemption."""
        self.passed += 1
        self.progress.step(self.passed)
        self.clock.step_done(time.monotonic())
        going = bool(self._told_to_go.ask(int(self.notice.given)))
        if self._next_save is None:
            self._next_save = self.passed + self.ranks.from_first(self.interval or self.clock.interval_steps) - 1
        if going or self.passed >= self._next_save:
            self._save(going)

    def _save(self, going: bool) -> None:
        started, step, tag = time.monotonic(), self.passed, f"step-{self.passed:09d}"
        kept = {f"prism-random-{rank}": text for rank, text in enumerate(self.ranks.gather(random_states()))}
        self.engine.save_checkpoint(str(self.folder), tag=tag, client_state=kept, save_latest=False)
        self.files.commit(tag, lambda error: self._tell(step, error))
        self.clock.save_done(time.monotonic() - started)
        self._next_save = step + self.ranks.from_first(self.interval or self.clock.interval_steps)
        if going:
            self.files.close()
            atexit.unregister(self.files.close)
            self.ranks.barrier()
            if self.ranks.rank == 0:
                self.progress.event("preempted", step=step)
            sys.stdout.flush()
            sys.exit(0)

    def _tell(self, step: int, error: str | None) -> None:
        if error is not None:
            self.progress.event("save_failed", step=step, why=f"rank {self.ranks.rank}: {error}")
        elif self.ranks.rank == 0:
            self.progress.event("saved", step=step, healthy=True)

    def give_up(self) -> None:
        """The script loads a checkpoint itself, so its own mechanism is kept."""
        self.tag = None
        self.notice.close()
        self.engine.prism_session = None


def attach(module: Any) -> None:
    """Add our steps to the engine class of `deepspeed.runtime.engine`."""
    if automatic_folder() is None:
        return
    engine_class = module.DeepSpeedEngine
    for name in ("forward", "backward", "step", "load_checkpoint", "is_gradient_accumulation_boundary"):
        if not hasattr(engine_class, name):
            raise RuntimeError(f"this version of DeepSpeed has no DeepSpeedEngine.{name}")
    engine_class.prism_load = engine_class.load_checkpoint
    engine_class.prism_session = None
    for name, wrap in _WRAPPERS.items():
        setattr(engine_class, name, wrap(getattr(engine_class, name)))


def _wrap_init(init: Any) -> Any:
    @functools.wraps(init)
    def run(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if type(self).__name__ != "DeepSpeedEngine":
            sys.stderr.write(
                f"prism: no automatic checkpoints for {type(self).__name__}, which has a loop of its own\n"
            )
            return
        if self.optimizer is None or not dist.is_initialized():
            return  # nothing is trained here
        self.prism_session = session = Session(self)
        save = self.checkpoint_engine.save

        def save_in_background(state_dict: Any, path: str) -> Any:
            ours = self.prism_session is session and str(path).startswith(str(session.folder))
            return session.files.save(state_dict, str(path)) if ours else save(state_dict, path)

        self.checkpoint_engine.save = save_in_background

    return run


def _wrap_forward(forward: Any) -> Any:
    @functools.wraps(forward)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        session = self.prism_session
        if session is None or not session.passing or not self.training:
            return forward(self, *args, **options)
        with torch.no_grad():
            return self.module(*args, **options)

    return run


def _wrap_backward(backward: Any) -> Any:
    @functools.wraps(backward)
    def run(self: Any, loss: Any, *args: Any, **options: Any) -> Any:
        session = self.prism_session
        return loss if session is not None and session.passing else backward(self, loss, *args, **options)

    return run


def _wrap_step(step: Any) -> Any:
    @functools.wraps(step)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        session = self.prism_session
        if session is not None and session.passing:
            return session.pass_over()
        boundary = self.is_gradient_accumulation_boundary()
        found = step(self, *args, **options)
        if session is not None and boundary:
            session.step_done()
        return found

    return run


def _wrap_load(load: Any) -> Any:
    @functools.wraps(load)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        if self.prism_session is not None:
            self.prism_session.give_up()
        return load(self, *args, **options)

    return run


_WRAPPERS = {
    "__init__": _wrap_init,
    "forward": _wrap_forward,
    "backward": _wrap_backward,
    "step": _wrap_step,
    "load_checkpoint": _wrap_load,
}
