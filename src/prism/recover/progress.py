"""The exchange between a trainer and its supervisor: a few small files and variables, without torch.

Outside a supervised run everything here does nothing, so that the same script runs anywhere.

    progress = Progress.from_environment(rank)
    for step in range(start, total):
        batch = progress.next_batch(batch + 1)     # skips the batches that caused a rollback
        ...
        progress.step(step, loss=loss, grad_norm=norm, batch=batch)
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_DIR = "PRISM_RUN_DIR"
ATTEMPT = "PRISM_ATTEMPT"
ATTEMPT_KEY = "PRISM_ATTEMPT_KEY"  # in the environment of every process of an attempt, by which they are found
RESUME_STEP = "PRISM_RESUME_STEP"
SKIP_BATCHES = "PRISM_SKIP_BATCHES"
HOST = "PRISM_HOST"
NUM_FAILURES = "PRISM_NUM_FAILURES"
UPTIME_S = "PRISM_UPTIME_S"
AUTO = "PRISM_CHECKPOINT"  # automatic checkpoints of known trainers
AUTO_FOLDER = "PRISM_CHECKPOINT_DIR"
AUTO_INTERVAL = "PRISM_CHECKPOINT_STEPS"

STEPS_FILE = "steps.jsonl"
MEMORY_PREFIX = "prism-"  # of the folder of staged states on a host
STORAGE = "the checkpoint storage"  # the name of the pause in which a save waits for earlier ones
BEATS = "beat-*.json"
BEAT_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Batches to skip, from first to last, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrders:
    """The supervisor's instructions for one attempt."""

    run_dir: Path | None = None
    attempt: int = 1
    resume_step: int | None = None  # restore at or before this step; None: the newest
    skip: tuple[BatchRange, ...] = ()
    host: str = ""
    num_failures: int = 0
    uptime_s: float = 0.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> RunOrders:
        """Read the supervisor's variables; all of them are optional."""
        env = os.environ if environment is None else environment
        resume = env.get(RESUME_STEP, "")
        return cls(
            run_dir=Path(env[RUN_DIR]) if env.get(RUN_DIR) else None,
            attempt=int(env.get(ATTEMPT) or 1),
            resume_step=int(resume) if resume else None,
            skip=parse_ranges(env.get(SKIP_BATCHES, "")),
            host=env.get(HOST) or socket.gethostname(),
            num_failures=int(env.get(NUM_FAILURES) or 0),
            uptime_s=float(env.get(UPTIME_S) or 0.0),
        )

    def to_environment(self) -> dict[str, str]:
        """The variables that `from_environment` reads back."""
        return {
            RUN_DIR: str(self.run_dir or ""),
            ATTEMPT: str(self.attempt),
            RESUME_STEP: "" if self.resume_step is None else str(self.resume_step),
            SKIP_BATCHES: ",".join(map(str, self.skip)),
            HOST: self.host,
            NUM_FAILURES: str(self.num_failures),
            UPTIME_S: f"{self.uptime_s:.1f}",
        }


def parse_ranges(text: str) -> tuple[BatchRange, ...]:
    """Read `57-59,100-100`."""
    ranges = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ranges.append(BatchRange(first=int(first), last=int(last or first)))
    return tuple(ranges)


def attempt_dir(run_dir: Path, attempt: int) -> Path:
    """The folder of one attempt's logs and progress."""
    return run_dir / "attempts" / f"{attempt:04d}"


class Progress:
    """One rank's reports. Rank 0 writes every step; every rank has a heartbeat, from a thread of its own.

    A rank that waits for others still beats; one that is stopped, or stuck without letting other threads run, does not:
    that tells the culprit of a hang from its victims.
    """

    def __init__(self, rank: int, orders: RunOrders) -> None:
        self.rank = rank
        self.orders = orders
        self._folder = attempt_dir(orders.run_dir, orders.attempt) if orders.run_dir else None
        self._last_step: int | None = None
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._beat_path = self._folder / f"beat-{rank:05d}.json"
            self._steps_path = self._folder / STEPS_FILE

    @classmethod
    def from_environment(cls, rank: int | None = None) -> Progress:
        """The reports of this process; the rank is torchrun's or Slurm's unless given."""
        found = rank if rank is not None else int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
        return cls(found, RunOrders.from_environment())

    def step(
        self, step: int, *, loss: float | None = None, grad_norm: float | None = None, batch: int | None = None
    ) -> None:
        """Report a finished step; `batch` is the index of its data, if it differs from the step."""
        if self._folder is None:
            return
        first, self._last_step = self._last_step is None, step
        if first:
            self._beat()
            threading.Thread(target=self._beat_on, name="prism-heartbeat", daemon=True).start()
        if self.rank == 0:
            numbers = {"loss": _number(loss), "grad_norm": _number(grad_norm), "batch": batch}
            told = {k: v for k, v in numbers.items() if v is not None}
            self.event("step", step=step, monotonic=round(time.monotonic(), 6), **told)

    def event(self, kind: str, **fields: Any) -> None:
        """Report an event: one line, appended in one write."""
        if self._folder is None:
            return
        line = json.dumps({"kind": kind, "time": time.time(), **fields}, allow_nan=False) + "\n"
        # A full disk under the run folder must not end the training.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._steps_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def pause(self, what: str = "") -> Iterator[None]:
        """Use around code that does not train, such as an evaluation: the supervisor then expects no steps."""
        first = self.rank == 0
        if first:
            self.event("paused", what=what)
        try:
            yield
        finally:
            if first:
                self.event("resumed")

    def _beat_on(self) -> None:
        while True:
            time.sleep(BEAT_INTERVAL_S)
            self._beat()

    def _beat(self) -> None:
        aside = self._beat_path.with_suffix(".tmp")
        document = {"rank": self.rank, "step": self._last_step, "host": self.orders.host, "pid": os.getpid()}
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(document))
            aside.replace(self._beat_path)

    def next_batch(self, batch: int) -> int:
        """The first batch at or after this one that is not skipped."""
        return next_batch(batch, self.orders.skip)


def next_batch(batch: int, skip: tuple[BatchRange, ...]) -> int:
    """The first batch at or after `batch` outside all ranges."""
    for part in sorted(skip, key=lambda r: r.first):
        if part.first <= batch <= part.last:
            batch = part.last + 1
    return batch


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
