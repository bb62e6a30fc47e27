"""Silent data corruption: a rank whose numbers are wrong without any error, found and named."""

from prism.recover.checkpoint.corruption.guard import CorruptionGuard
from prism.recover.checkpoint.corruption.judging import Corruption, CorruptionConfig

__all__ = ["Corruption", "CorruptionConfig", "CorruptionGuard"]
