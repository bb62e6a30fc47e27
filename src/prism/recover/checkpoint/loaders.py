"""Makes data loader workers ignore the warning signal before a preemption.

Schedulers send SIGTERM to every process of a job. A worker that obeys takes the next batch with it, and the trainer
fails before it can save. Here workers leave these signals to the trainer, and end when the trainer itself ends them.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from torch.utils.data._utils import worker

_plain_loop = worker._worker_loop
_WARNINGS = frozenset({signal.SIGTERM, signal.SIGUSR1})


def shield_workers() -> None:
    """From now on workers of torch's DataLoader ignore the warning signals of anybody but their trainer."""
    worker._worker_loop = run_shielded


def run_shielded(*args: Any, **kwargs: Any) -> Any:
    """torch's loop of a loader worker without the warning signals; found by name in spawned workers."""
    trainer = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WARNINGS)
    threading.Thread(target=_obey_trainer, args=(trainer,), name="prism-signals", daemon=True).start()
    return _plain_loop(*args, **kwargs)


def _obey_trainer(trainer: int) -> None:
    """End only for the trainer: multiprocessing ends stuck workers with SIGTERM."""
    while True:
        found = signal.sigwaitinfo(_WARNINGS)
        if found.si_signo == signal.SIGTERM and found.si_pid in (trainer, os.getpid()):
            os._exit(0)
