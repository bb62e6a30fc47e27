"""Inside the trainer: checkpoints that cost almost nothing, are proven, and survive. Needs torch."""

from prism.recover.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from prism.recover.checkpoint.corruption import Corruption, CorruptionConfig, CorruptionGuard
from prism.recover.checkpoint.loop import TrainingLoop
from prism.recover.checkpoint.restore import Restored
from prism.recover.checkpoint.train_state import TrainState
from prism.recover.manifest import Health

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
