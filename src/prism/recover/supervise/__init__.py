"""Outside the trainer: launch, watch, decide, act. Never imports torch, so that it outlives what torch does."""

from prism.recover.supervise.config import SuperviseConfig, read_config
from prism.recover.supervise.runner import Supervisor, Tools
from prism.recover.supervise.state import JobState, Phase
from prism.recover.supervise.status import HostHistory, RunStatus, read_status

__all__ = [
    "HostHistory",
    "JobState",
    "Phase",
    "RunStatus",
    "SuperviseConfig",
    "Supervisor",
    "Tools",
    "read_config",
    "read_status",
]
