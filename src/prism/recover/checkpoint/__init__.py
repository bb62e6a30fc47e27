"""Asynchronous, verified checkpoints inside the trainer. Needs torch.

The names below load on first use: the launcher of in-place restarts and host tests need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.recover.checkpoint.checkpointer import CheckpointConfig, Checkpointer
    from prism.recover.checkpoint.corruption import Corruption, CorruptionConfig, CorruptionGuard
    from prism.recover.checkpoint.loop import TrainingLoop
    from prism.recover.checkpoint.restore import Restored
    from prism.recover.checkpoint.train_state import TrainState
    from prism.recover.manifest import Health

_HOME = {
    "CheckpointConfig": "prism.recover.checkpoint.checkpointer",
    "Checkpointer": "prism.recover.checkpoint.checkpointer",
    "Corruption": "prism.recover.checkpoint.corruption",
    "CorruptionConfig": "prism.recover.checkpoint.corruption",
    "CorruptionGuard": "prism.recover.checkpoint.corruption",
    "Health": "prism.recover.manifest",
    "Restored": "prism.recover.checkpoint.restore",
    "TrainState": "prism.recover.checkpoint.train_state",
    "TrainingLoop": "prism.recover.checkpoint.loop",
}

__all__ = [
    "CheckpointConfig",
    "Checkpointer",
    "Corruption",
    "CorruptionConfig",
    "CorruptionGuard",
    "Health",
    "Restored",
    "TrainState",
    "TrainingLoop",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'prism.recover.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
