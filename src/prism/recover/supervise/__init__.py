"""The supervisor: launches, watches, decides and acts outside the trainer. It never imports torch."""

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
