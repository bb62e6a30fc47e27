"""Data loader workers that outlive a warning.

Slurm, Kubernetes and torchrun send SIGTERM to every process of a job. A worker that dies of it takes its rank with it
("DataLoader worker is killed by signal") before the rank has saved. So workers leave SIGTERM to their rank: it ends
them when it is done, and they end by themselves when it is gone.
"""

from __future__ import annotations

import signal
from typing import Any

import torch.utils.data._utils.worker as torch_worker

_run_worker = torch_worker._worker_loop


def shield_workers() -> None:
    """Let every data loader that is started from now on have such workers."""
    torch_worker._worker_loop = run_shielded


def run_shielded(*args: Any, **options: Any) -> None:
    """torch's own worker loop with SIGTERM held back; a function of a module, so that a spawned worker finds it."""
    # Held back, not ignored: torch installs a handler of its own afterwards.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    _run_worker(*args, **options)
