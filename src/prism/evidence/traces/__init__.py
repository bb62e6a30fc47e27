"""What a tenant's own tools recorded: readers that turn it into evidence."""

from prism.evidence.traces.flight_recorder import Call, Dump, read_dump, read_dumps
from prism.evidence.traces.hang import Hang, find_hang
from prism.evidence.traces.kineto import Profile, read_profile
from prism.evidence.traces.profiled_ranks import ProfiledJob, compare_ranks, study_files, study_rank, write_spans

__all__ = [
    "Call",
    "Dump",
    "Hang",
    "Profile",
    "ProfiledJob",
    "compare_ranks",
    "find_hang",
    "read_dump",
    "read_dumps",
    "read_profile",
    "study_files",
    "study_rank",
    "write_spans",
]
